"""Text generation: a BERT reads a source text and writes a target text (UniLM).

    make train RECIPE=seq2seq

trains a small BERT from scratch. It reads the first paragraph of a docstring of Python's library,
and writes the name of the function or class, split into words.
TensorFlow 1.15.5: dev ROUGE-L 0.3045, seed 1, 3.8 minutes; AMD EPYC with AVX-512 BF16, 2 cores,
load 2; 2026-11-26.
TensorFlow 2.17.1: dev ROUGE-L 0.3039, seed 1, 2.5 minutes; AMD EPYC with AVX-512 BF16, 2 cores,
load 2; 2026-11-26.

    make train RECIPE=seq2seq ARGS="--train a.jsonl --dev b.jsonl --bert chinese_L-12_H-768_A-12"
    ./amp-xla predict runs/seq2seq/latest texts.txt --beams 4
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, Dict, List, Optional

from typing_extensions import Annotated

from amp_xla.config import MAY_CHANGE, parse, within
from amp_xla.data.text.options import TargetFiles, VocabularyOptions
from amp_xla.models.options import EncoderOptions, GenerationOptions
from amp_xla.process.exits import exit_code
from amp_xla.tasks.seq2seq import scores
from amp_xla.tasks.seq2seq.data import TargetBatchOptions, read
from amp_xla.training.answers import Answers
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.context import RunContext, loop_options, text_defaults
from amp_xla.training.options import (
    ClassifierOptions,
    Intervals,
    MemoryOptions,
    PrecisionOptions,
    RunOptions,
    Seed,
    UpdateOptions,
)


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a model that generates a target text for each source text."""

    seed: Seed = 1
    """seed of weights, order and dropout"""
    files: TargetFiles = TargetFiles()
    vocabulary: VocabularyOptions = VocabularyOptions(vocab_size=3000)
    encoder: EncoderOptions = EncoderOptions()
    batches: TargetBatchOptions = TargetBatchOptions(max_length=64, batch_size=32)
    training: ClassifierOptions = ClassifierOptions(epochs=10)
    update: UpdateOptions = UpdateOptions(learning_rate=1e-3)
    memory: MemoryOptions = MemoryOptions()
    intervals: Intervals = Intervals()
    run: RunOptions = RunOptions()
    accumulate: Annotated[int, within(at_least=1), MAY_CHANGE] = 1
    """micro-batches per update; each has --batch-size samples"""
    precision_options: PrecisionOptions = PrecisionOptions()

    def defaults(self) -> Dict[str, Any]:
        """Return the settings of a resumed run, or the defaults of ``--bert``."""
        return text_defaults("seq2seq", self)


def build(config: Config, context: RunContext) -> Any:
    """Build the job up to the first step."""
    from amp_xla.tasks.seq2seq import answers

    # sources and targets -> batches
    data = context.shared(read(config.files, context.preparation()))

    # batches -> logits -> loss -> update
    lm = config.encoder.language_model(
        data.tokenizer.vocab_size, config.batches.max_length, "unilm", context.reads_weights
    )
    steps = context.steps(data.batches)
    inputs = lm.placeholders()
    loss, metrics = lm.loss(inputs, smoothing=config.training.label_smoothing)
    step = context.step(inputs, loss, context.optimizer(steps), lm.weights, metrics)

    # evaluation
    evaluate = answers.evaluation(
        lm, inputs, data.dev_batches, data.tokenizer, data.dev, config.batches
    )
    return context.text_job(lm.transformer.model, step, data, evaluate, lm.architecture())


def main(argv: Optional[List[str]] = None) -> int:
    """Train."""
    config = parse(Config, argv, "amp-xla train seq2seq")
    from amp_xla.training.launch import train

    return train("seq2seq", config, build, loop_options(config, "rouge_l"))


def predict(checkpoint: Checkpoint, lines: List[str]) -> Answers:
    """Return the text for each line by greedy search."""
    return generate(checkpoint, lines, GenerationOptions())


def generate(checkpoint: Checkpoint, lines: List[str], generation: GenerationOptions) -> Answers:
    """Return the generated text for each line."""
    config = checkpoint.config(Config)
    checkpoint.apply_precision()
    from amp_xla.tasks.seq2seq import answers

    return answers.predict(checkpoint, config.encoder, config.batches, lines, generation)


scored = scores.scored  # by `amp-xla evaluate --file`


def exportable(checkpoint: Checkpoint) -> Any:
    """Return the model for ``amp-xla export``."""
    config = checkpoint.config(Config)
    checkpoint.apply_precision(float32=True)
    from amp_xla.export.text_models import language_model

    return language_model(config.encoder, "unilm", checkpoint)


if __name__ == "__main__":
    sys.exit(exit_code(main))
