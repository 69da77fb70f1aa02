"""Published ways to pretrain BERT, as settings of the pretraining recipe.

Lengths are those of the prepared text; steps are updates. Where a paper trains in two phases,
these are the first one's, and ``PHASES`` says both. What is left out on purpose, everywhere:
next-sentence prediction, which RoBERTa found to be of no help (arXiv 1907.11692, table 2), and
masks that stay the same in every pass (its table 1). Adam has the bias correction of its paper,
which Google's code for BERT leaves out.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

# What nobody's paper has; the preset ``quick`` is made of the opposites, for minutes on a laptop.
_PLAIN: Dict[str, Any] = dict(
    topic=0.0, embeddings="random", positions="random", attention="random", init_range=0.02,
    dropout=0.1, mask="token", mask_rate=0.15, optimizer="adamw", decay="linear", average=0.0,
    weight_decay=0.01, clip_norm=1.0, beta2=0.999, adam_epsilon=1e-6,
)  # fmt: skip

PUBLISHED: Dict[str, Dict[str, Any]] = {
    # Devlin et al., arXiv 1810.04805, appendix A.2, and google-research/bert.
    "bert": dict(
        _PLAIN, learning_rate=1e-4, warmup=0.01, steps=1_000_000, global_batch=256,
    ),
    # Liu et al., arXiv 1907.11692, table 9; the large model has rates of its own.
    "roberta": dict(
        _PLAIN, learning_rate=6e-4, warmup=0.048, steps=500_000, global_batch=8192, beta2=0.98,
        clip_norm=0.0,
    ),
    # NVIDIA/DeepLearningExamples, TensorFlow/LanguageModeling/BERT, its first phase; the optimizer
    # is that of You et al., arXiv 1904.00962.
    "lamb": dict(
        _PLAIN, optimizer="lamb", learning_rate=6e-3, warmup=0.2843, steps=7_038,
        global_batch=65_536,
    ),
    # Cui et al., arXiv 1906.08101: RoBERTa-wwm-ext, Chinese words cut by a segmenter.
    "wwm": dict(
        _PLAIN, mask="word", learning_rate=1e-4, warmup=0.01, steps=1_000_000, global_batch=384,
    ),
    # Geiping & Goldstein, arXiv 2212.14034: its training, not its changes to the layers. The number
    # of updates is what a day holds: it stays the user's.
    "cramming": dict(
        _PLAIN, dropout=0.0, learning_rate=1e-3, warmup=0.5, global_batch=4096, beta2=0.98,
        adam_epsilon=1e-12, clip_norm=0.5,
    ),
    "quick": {},
}  # fmt: skip
_LARGE = {"roberta": dict(learning_rate=4e-4, warmup=0.06)}

# Tokens a sequence, where a preset is meant for them.
PHASES = {
    "bert": "text prepared with --length 128, and --phase2-length 512",
    "roberta": "512 tokens",
    "lamb": "128 tokens; then 512: --global-batch 32768 --steps 1563 --learning-rate 4e-3 "
    "--warmup 0.128",
    "wwm": "512 tokens",
    "cramming": "128 tokens; --steps as many as a day holds",
}


def settings(preset: Optional[str], model: str) -> Dict[str, Any]:
    """What a preset says, by the recipe's flags; of ``quick`` nothing, the recipe's own defaults.

    Args:
      preset: a name in ``PUBLISHED``; None = by the model, as ``chosen`` says.
      model: ``tiny``, ``small``, ``base`` or ``large``.
    """
    name = chosen(preset, model)
    return {**PUBLISHED[name], **(_LARGE.get(name, {}) if model == "large" else {})}


def chosen(preset: Optional[str], model: str) -> str:
    """The preset in force: models of BERT's size are trained as BERTs are, unless said."""
    return preset or ("roberta" if model in ("base", "large") else "quick")


def described(values: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """One line: the preset in force, what of it is set otherwise, and what no BERT has.

    Args:
      values: the recipe's settings, flat: name -> value.
      own: the same with its own defaults.
    """
    name = chosen(values["preset"], values["model"])
    wanted = {key: own[key] for key in PUBLISHED["bert"]}
    wanted.update(settings(values["preset"], values["model"]))
    for key in ("steps", "global_batch"):  # every machine has its own
        del wanted[key]
    other = [f"{key} {values[key]}" for key in sorted(wanted) if values[key] != wanted[key]]
    line = f"preset {name}" + (f", but {', '.join(other)}" if other else "")
    found = _tricks(values)
    if found and values["bert"] is None:
        line += f"; unlike BERT {found} (--preset bert is without)"
    if name in PHASES:
        line += f"; meant for {PHASES[name]}"
    return line


def _tricks(values: Mapping[str, Any]) -> str:
    """In words, what of these settings is in no published BERT; empty if nothing is."""
    found = []
    if values["embeddings"] == "counts":
        found.append("tokens start from counts")
    if values["positions"] == "sinusoids":
        found.append("positions from sinusoids")
    if values["attention"] == "neighbours":
        found.append("heads on neighbours")
    if values["init_range"] is None and values["model"] in ("tiny", "small"):
        found.append("weights wider")
    if values["topic"] and values["objective"] == "mlm":
        found.append("a topic loss is added")
    return ", ".join(found)
