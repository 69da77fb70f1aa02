"""Relations: triples (subject, predicate, object) in a text, by GPLinker on a BERT encoder.

    make train RECIPE=relations

trains a small BERT from scratch to find what a class extends or defines and what a function takes.
TensorFlow 1.15.5: dev F1 0.8271, seed 1, 2.6 minutes; Intel(R) Xeon(R) Processor with AVX-512 BF16,
2 cores, load 4; 2026-11-26. TensorFlow 2.17.1: dev F1 0.8257, seed 1, 2.8 minutes; Intel(R) Xeon(R)
Processor with AVX-512 BF16, 2 cores, load 4; 2026-11-26.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from amp_xla.data.labelled import BatchOptions
from amp_xla.data.text.options import VocabularyOptions
from amp_xla.errors import SettingsError
from amp_xla.models.options import EncoderOptions
from amp_xla.tasks.relations import answers
from amp_xla.tasks.relations.data import RelationFiles, read
from amp_xla.training import launch, options
from amp_xla.training.context import RunContext, text_defaults
from amp_xla.training.evaluation import vectors
from amp_xla.training.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a model that finds triples (subject, predicate, object)."""

    seed: options.Seed = 1
    files: RelationFiles = RelationFiles()
    vocabulary: VocabularyOptions = VocabularyOptions(lowercase=False)
    encoder: EncoderOptions = EncoderOptions()
    batches: BatchOptions = BatchOptions()
    training: options.ClassifierOptions = options.ClassifierOptions(label_smoothing=0.0, epochs=8)
    update: options.UpdateOptions = options.UpdateOptions()
    memory: options.MemoryOptions = options.MemoryOptions()
    attention: options.Attention = "plain"
    intervals: options.Intervals = options.Intervals()
    run: options.RunOptions = options.RunOptions()
    accumulate: options.Accumulate = 1
    tricks: options.TrickOptions = options.TrickOptions()
    precision_options: options.PrecisionOptions = options.PrecisionOptions()

    def __post_init__(self) -> None:
        if self.training.label_smoothing or self.tricks.r_drop:
            raise SettingsError("recipe relations allows only --label-smoothing 0 and --r-drop 0")

    defaults = text_defaults


def build(config: Config, context: RunContext) -> Any:
    """Build the job: data, model and training step."""
    from amp_xla.models import dropout, encoders, losses
    from amp_xla.tasks.relations import model
    from amp_xla.training.step import Inference

    # texts -> batches
    data = context.shared(read(config.files, context.preparation()))

    # batches -> scores
    size, length = data.tokenizer.vocab_size, config.batches.max_length
    encoder = config.encoder.transformer(size, length, context.reads_weights).model
    linker = model.linker(encoder, len(data.labels), config.encoder.dropout)
    inputs = encoders.inputs_of(linker, [None] * 3, [None])  # as in data.with_targets

    # scores -> loss -> update
    def objective(output: Any) -> Any:
        loss = model.sparse_loss(inputs["labels"], output)
        return losses.weighted_mean(loss, inputs["weights"]), {}

    step = context.text_step(linker, inputs, objective, data.batches)

    # evaluation
    output = dropout.without(linker)
    loss = model.sparse_loss(inputs["labels"], output)
    infer = Inference(inputs, {"scores": output, "loss": loss})
    evaluate = answers.evaluation(infer, data)
    return context.text_job(linker, step, data, evaluate)


recipe = Recipe(
    Config, build, "f1", answers.predict, vectors=vectors, scored=answers.scored,
    exportable=answers.exportable,
)  # fmt: skip
main = functools.partial(launch.main, recipe)


if __name__ == "__main__":
    launch.run_program(recipe)
