"""Text generation: a BERT reads a source text and writes a target text (UniLM).

    make train RECIPE=seq2seq

trains a small BERT from scratch. It reads the first paragraph of a docstring of Python's library,
and writes the name of the function or class, split into words.
TensorFlow 1.15.5: dev ROUGE-L 0.2446, seed 1, 8 minutes; AMD EPYC with AVX-512 BF16, 2 cores,
load 8; 2026-11-29.
TensorFlow 2.17.1: dev ROUGE-L 0.2509, seed 1, 6.1 minutes; AMD EPYC with AVX-512 BF16, 2 cores,
load 7; 2026-11-29.

    make train RECIPE=seq2seq ARGS="--train a.jsonl --dev b.jsonl --bert chinese_L-12_H-768_A-12"
    ./amp-xla predict runs/seq2seq/latest texts.txt --beams 4
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from typing_extensions import Annotated

from amp_xla.config import within
from amp_xla.data.labelled import BatchOptions
from amp_xla.data.text.options import VocabularyOptions
from amp_xla.errors import SettingsError
from amp_xla.models.options import EncoderOptions
from amp_xla.tasks.seq2seq import scores
from amp_xla.tasks.seq2seq.data import TargetFiles, read
from amp_xla.training import launch, options
from amp_xla.training.context import RunContext, text_defaults
from amp_xla.training.recipe import Recipe, lazy


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a model that generates a target text for each source text."""

    seed: options.Seed = 1
    files: TargetFiles = TargetFiles()
    vocabulary: VocabularyOptions = VocabularyOptions(vocab_size=3000)
    encoder: EncoderOptions = EncoderOptions()
    batches: BatchOptions = BatchOptions(max_length=64, batch_size=32)
    max_target: Annotated[int, within(at_least=2)] = 16
    """maximum tokens per target, including its [SEP]; the source has the rest of --max-length"""
    training: options.ClassifierOptions = options.ClassifierOptions(epochs=10)
    update: options.UpdateOptions = options.UpdateOptions(learning_rate=1e-3)
    memory: options.MemoryOptions = options.MemoryOptions()
    intervals: options.Intervals = options.Intervals()
    run: options.RunOptions = options.RunOptions()
    accumulate: options.Accumulate = 1
    precision_options: options.PrecisionOptions = options.PrecisionOptions()

    def __post_init__(self) -> None:
        if self.max_target > self.batches.max_length - 3:
            raise SettingsError(
                f"--max-target {self.max_target}: --max-length {self.batches.max_length} allows at "
                f"most {self.batches.max_length - 3}, because the source needs at least 3 tokens"
            )

    defaults = text_defaults


def build(config: Config, context: RunContext) -> Any:
    """Build the job: data, model and training step."""
    from amp_xla.tasks.seq2seq import answers

    # sources and targets -> batches
    data = context.shared(read(config.files, context.preparation(), config.max_target))

    # batches -> logits -> loss -> update
    size, length = data.tokenizer.vocab_size, config.batches.max_length
    lm = config.encoder.language_model(size, length, "unilm", context.reads_weights)
    inputs = lm.placeholders()
    loss, metrics = lm.loss(inputs, smoothing=config.training.label_smoothing)
    optimizer = context.optimizer(context.steps(data.batches))
    step = context.step(inputs, loss, optimizer, lm.weights, metrics)

    # evaluation
    max_source = config.batches.max_length - config.max_target
    evaluate = answers.evaluation(lm, inputs, data, max_source, config.max_target)
    return context.text_job(lm.transformer.model, step, data, evaluate, lm.architecture())


predict = lazy("amp_xla.tasks.seq2seq.answers:predict")
recipe = Recipe(
    Config, build, "rouge_l", predict, generate=predict, scored=scores.scored,
    exportable=lazy("amp_xla.export.text_models:language_model"),
)  # fmt: skip
main = functools.partial(launch.main, recipe)


if __name__ == "__main__":
    launch.run_program(recipe)
