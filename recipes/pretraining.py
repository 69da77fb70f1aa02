"""Pretraining: a BERT learns to fill in masked words, or to continue a text, from raw text.

    make train RECIPE=pretraining

trains a tiny BERT on docstrings of the installed packages, for bert4keras and the other recipes.
TensorFlow 1.15.5: held-out loss 3.9981, seed 1, 5.8 minutes; AMD EPYC with AVX-512 BF16, 2 cores,
load 2; 2026-11-26.
TensorFlow 2.17.1: held-out loss 3.7439, seed 1, 5 minutes; AMD EPYC with AVX-512
BF16, 2 cores, load 5; 2026-11-25.

    make train RECIPE=classification ARGS="--bert runs/pretraining/latest"

Other text, of any size, is prepared first, by any number of processes and machines:

    ./amp-xla prepare 'corpus/*.jsonl.gz' data/mine --vocab vocab.txt --length 512
    make train RECIPE=pretraining ARGS="--data data/mine --model base --steps 20000"
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from typing import Any, Dict, List, Optional

from typing_extensions import Annotated, Literal

from amp_xla.config import MAY_CHANGE, flat, parse, within
from amp_xla.models.options import Filling, LanguageModelOptions, training_flops
from amp_xla.models.weights import pretrained
from amp_xla.process.exits import exit_code
from amp_xla.tasks.pretraining import corpus, masked_texts, presets
from amp_xla.tasks.pretraining.data.masking import Masking
from amp_xla.tasks.pretraining.data.stream import LengthOptions, Phases, read
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.context import RunContext
from amp_xla.training.options import (
    Intervals,
    MemoryOptions,
    PrecisionOptions,
    RunOptions,
    Seed,
    UpdateOptions,
)
from amp_xla.training.run import resumed_settings


@dataclasses.dataclass(frozen=True)
class Config:
    """Pretrain a language model."""

    preset: Annotated[Optional[presets.Preset], MAY_CHANGE] = None
    """defaults of a paper, or quick for a laptop; none = roberta if --model is base or large, else
    quick"""
    data: Optional[str] = None
    """folder written by `amp-xla prepare`; none = the built-in corpus, prepared once in .cache"""
    objective: Literal["mlm", "lm", "unilm"] = "mlm"
    """what to predict: mlm = masked words (RoBERTa), lm = the next token (GPT), unilm = the second
    of two segments (UniLM)"""
    mask: Literal["word", "token"] = "word"
    """mask whole words or single tokens; each epoch has new masks"""
    mask_rate: Annotated[float, within(above=0, at_most=0.5)] = 0.15
    """share of the tokens to predict: 80% of them become [MASK], 10% a random token, 10% stay"""
    optimizer: Literal["adamw", "lamb"] = "adamw"
    """optimizer; lamb is for global batches of thousands of samples"""
    beta2: Annotated[float, within(above=0, below=1)] = 0.999
    """decay of Adam's second moments"""
    adam_epsilon: Annotated[float, within(above=0)] = 1e-6
    """epsilon of Adam, added to the denominator"""
    decay: Literal["linear", "cosine", "constant"] = "linear"
    """shape of the learning rate's decay after the warm-up"""
    average: Annotated[float, within(at_least=0, below=1)] = 0.0
    """decay of the moving average of weights for evaluation and export, e.g. 0.999; 0 = off"""
    heldout: Annotated[int, within(at_least=1)] = 512
    """maximum number of held-out sequences to evaluate on"""
    seed: Seed = 1
    """seed of weights, order of samples, masks and dropout"""
    length: LengthOptions = LengthOptions()
    encoder: LanguageModelOptions = LanguageModelOptions()
    update: UpdateOptions = UpdateOptions(learning_rate=1e-3, warmup=0.06)
    memory: MemoryOptions = MemoryOptions()
    precision_options: PrecisionOptions = PrecisionOptions()
    intervals: Intervals = Intervals(evaluate_every=1000, log_every=100)  # in updates
    run: RunOptions = RunOptions()

    def defaults(self) -> Dict[str, Any]:
        """Return the settings of a resumed run, or the defaults of ``preset`` and ``model``."""
        resumed = resumed_settings(type(self), "pretraining", self.run)
        pretrained.check(None if resumed else self.encoder.bert)
        return resumed or presets.settings(self.preset, self.encoder.model)


def build(config: Config, context: RunContext) -> Any:
    """Build the job up to the first step."""
    from amp_xla.optimizers.adamw import AdamW
    from amp_xla.optimizers.average import averaged, used_by
    from amp_xla.optimizers.lamb import LAMB
    from amp_xla.process.progress import note
    from amp_xla.training.evaluation import held_out

    # prepared text -> batches
    data, length = corpus.prepared(config.data), config.length
    tokenizer = data.tokenizer()
    note(f"{data.describe()}{data.warnings(tokenizer)}")
    note(presets.described(flat(config), flat(Config())))
    ranks = context.ranks.world.size
    context.micro_batches = accumulate = length.accumulation(ranks)
    masking = Masking(tokenizer, config.mask_rate, config.mask, config.seed)
    phases, held = zip(*read(data, length, config.heldout, config.objective, masking))
    batches = context.share(Phases(*phases))

    # batches -> logits -> loss
    lm = config.encoder.language_model(
        tokenizer.vocab_size, max(phase.length for phase in phases), config.objective,
        context.reads_weights, len(phases) > 1,
    )  # fmt: skip
    inputs = lm.placeholders()
    loss, metrics = lm.loss(inputs)

    # loss -> update
    kind: Any = averaged(AdamW if config.optimizer == "adamw" else LAMB, config.average)
    rule = functools.partial(kind, beta2=config.beta2, epsilon=config.adam_epsilon)
    optimizer = context.optimizer(length.steps, rule, decay=config.decay)
    step = context.step(inputs, loss, optimizer, lm.weights, metrics)
    costs = [training_flops(lm.config, phase.length, phase.predicted) for phase in phases]
    note(
        f"global batch {length.global_batch} = micro-batch "
        f"{length.global_batch / accumulate / ranks:g} x accumulation {accumulate} x ranks "
        f"{ranks}; {costs[0] * length.global_batch / 1e9:.1f} GFLOP per update; "
        f"{', then '.join(phase.describe() for phase in phases)}"
    )

    # evaluation
    evaluate = held_out(lm, inputs, *map(context.ranks.share, reversed(held)))
    return context.job(
        lm.transformer.model, step, batches, used_by(evaluate, optimizer, lm.weights),
        {**tokenizer.assets, "bert_config.json": lm.architecture()},
        {"data": data.settings["corpus_sha256"], "vocabulary": data.settings["vocab_sha256"]},
        export=used_by(lm.write_checkpoint, optimizer, lm.weights),
        rates={"model_flops_per_second": lambda n: costs[n > phases[0].steps_per_epoch()] / ranks},
    )  # fmt: skip


def main(argv: Optional[List[str]] = None) -> int:
    """Train."""
    config = parse(Config, argv, "amp-xla train pretraining")
    from amp_xla.training.launch import train

    loop = config.intervals.loop(monitor="loss", higher_is_better=False)
    return train("pretraining", config, build, loop)


def fill(checkpoint: Checkpoint, texts: List[str], top: int) -> List[List[Filling]]:
    """Return the ``top`` most likely tokens for each [MASK]; the other [MASK]s stay."""
    config = checkpoint.config(Config)
    checkpoint.apply_precision()
    from amp_xla.tasks.pretraining import answers

    return answers.fill(checkpoint, config.objective, config.encoder, texts, top)


evaluate = masked_texts.evaluate  # by `amp-xla evaluate` without --file


def exportable(checkpoint: Checkpoint) -> Any:
    """Return the model for ``amp-xla export``."""
    config = checkpoint.config(Config)
    checkpoint.apply_precision(float32=True)
    from amp_xla.export.text_models import language_model

    return language_model(config.encoder, config.objective, checkpoint)


if __name__ == "__main__":
    sys.exit(exit_code(main))
