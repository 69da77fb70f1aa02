"""Published ways to pretrain BERT, as settings of the pretraining recipe.

If a paper trains in two phases, the settings are those of the first; ``PHASES`` lists both. Two
details are left out everywhere: next-sentence prediction, which did not help RoBERTa (arXiv
1907.11692, table 2), and masks that are the same in every epoch (table 1). Adam has the bias
correction of its paper, which Google's code for BERT leaves out.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

from typing_extensions import Literal

from amp_xla.models.weights import pretrained

Preset = Literal["bert", "roberta", "lamb", "wwm", "cramming", "quick"]
# Settings of most published models
_PLAIN: Dict[str, Any] = dict(
    dropout=0.1, mask="token", mask_rate=0.15, optimizer="adamw", decay="linear", average=0.0,
    weight_decay=0.01, clip_norm=1.0, beta2=0.999, adam_epsilon=1e-6,
)  # fmt: skip

PRESETS: Dict[str, Dict[str, Any]] = {
    # Devlin et al., arXiv 1810.04805, appendix A.2, and google-research/bert.
    "bert": dict(
        _PLAIN, learning_rate=1e-4, warmup=0.01, steps=1_000_000, global_batch=256,
    ),
    # Liu et al., arXiv 1907.11692, table 9.
    "roberta": dict(
        _PLAIN, learning_rate=6e-4, warmup=0.048, steps=500_000, global_batch=8192, beta2=0.98,
        clip_norm=0.0,
    ),
    # NVIDIA/DeepLearningExamples, TensorFlow/LanguageModeling/BERT, its first phase, with the
    # optimizer of You et al., arXiv 1904.00962.
    "lamb": dict(
        _PLAIN, optimizer="lamb", learning_rate=6e-3, warmup=0.2843, steps=7_038,
        global_batch=65_536,
    ),
    # Cui et al., arXiv 1906.08101: RoBERTa-wwm-ext, Chinese words cut by a segmenter.
    "wwm": dict(
        _PLAIN, mask="word", learning_rate=1e-4, warmup=0.01, steps=1_000_000, global_batch=384,
    ),
    # Geiping & Goldstein, arXiv 2212.14034: its training, not its changes to the layers. It trains
    # for a day; the number of updates depends on the machine.
    "cramming": dict(
        _PLAIN, dropout=0.0, learning_rate=1e-3, warmup=0.5, global_batch=4096, beta2=0.98,
        adam_epsilon=1e-12, clip_norm=0.5,
    ),
    # For minutes on a laptop; the other settings are the recipe's defaults.
    "quick": dict(steps=1600, global_batch=48, micro_batch=48, evaluate_every=400),
}  # fmt: skip
# Settings of older versions, with today's value. A run with another one needs --force-resume.
REMOVED = {"topic": 0.0, "start": "random"}
_LARGE = {"roberta": dict(learning_rate=4e-4, warmup=0.06)}

# Sequence length and further phases of each preset, or its purpose
PHASES = {
    "bert": "text prepared with --length 128, and --phase2-length 512",
    "roberta": "sequences of 512 tokens",
    "lamb": "sequences of 128 tokens; then 512: --global-batch 32768 --steps 1563 "
    "--learning-rate 4e-3 --warmup 0.128",
    "wwm": "sequences of 512 tokens",
    "cramming": "sequences of 128 tokens; set --steps so that training takes about a day",
    "quick": "minutes on a laptop, sequences of 32 tokens",
}


def defaults(config: Any) -> Dict[str, Any]:
    """Return the defaults of ``preset`` and ``model``; raise DataError if ``--bert`` is bad."""
    pretrained.check(config.encoder.bert)
    return settings(config.preset, config.encoder.model)


def settings(preset: Optional[str], model: str) -> Dict[str, Any]:
    """Return the settings of ``preset``; None = the default preset for the model."""
    name = preset_name(preset, model)
    return {**PRESETS[name], **(_LARGE.get(name, {}) if model == "large" else {})}


def preset_name(preset: Optional[str], model: str) -> str:
    """Return the name of the preset; by default ``roberta`` for base and large models."""
    return preset or ("roberta" if model in ("base", "large") else "quick")


def described(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Return one line: the preset, the settings that differ from it, and the preset's purpose.

    ``values`` are the recipe's settings by name, ``defaults`` their default values.
    """
    name = preset_name(values["preset"], values["model"])
    expected = {**defaults, **settings(values["preset"], values["model"])}
    keys = sorted({*PRESETS["bert"]} - {"steps", "global_batch"})  # these depend on the machine
    changed = [f"{key} {values[key]}" for key in keys if values[key] != expected[key]]
    line = f"preset {name}" + (f", but {', '.join(changed)}" if changed else "")
    return f"{line}; meant for {PHASES[name]}"
