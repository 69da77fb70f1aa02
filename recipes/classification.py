"""Text classification: a BERT encoder, pooling, one softmax.

    make train RECIPE=classification

trains a small BERT from scratch to classify docstrings by package: 12 packages of Python's library.
TensorFlow 1.15.5: dev accuracy 0.8853, seed 1, 2.2 minutes; AMD EPYC with AVX-512
BF16, 2 cores, load 4; 2026-11-25.
TensorFlow 2.17.1: dev accuracy 0.8957, seed 1, 1.8 minutes; AMD EPYC with AVX-512
BF16, 2 cores, load 4; 2026-11-25.

    make train RECIPE=classification ARGS="--train a.tsv --dev b.tsv --bert chinese_L-12_H-768_A-12"
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Dict, Optional

from amp_xla.data.batches.protocol import whole
from amp_xla.data.labelled import WindowOptions
from amp_xla.data.text.options import VocabularyOptions
from amp_xla.errors import SettingsError
from amp_xla.models.options import EncoderOptions, Pooling
from amp_xla.tasks.classification import answers
from amp_xla.tasks.classification.data import MultiLabelTextFiles, class_weights, read
from amp_xla.training import launch, options
from amp_xla.training.context import RunContext, text_defaults
from amp_xla.training.evaluation import vectors
from amp_xla.training.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a text classifier."""

    seed: options.Seed = 1
    files: MultiLabelTextFiles = MultiLabelTextFiles()
    vocabulary: VocabularyOptions = VocabularyOptions()
    encoder: EncoderOptions = EncoderOptions()
    pooling: Pooling = "mean"
    """vector of a text: mean = mean of its tokens; cls = the first token; pooler = the first token
    after BERT's pooler, as transformers' classifiers have it (export --format hf)"""
    batches: WindowOptions = WindowOptions()
    packed: bool = False
    """put several texts into each row of max_length tokens: one shape, hardly any padding"""
    training: options.ClassifierOptions = options.ClassifierOptions()
    update: options.UpdateOptions = options.UpdateOptions()
    memory: options.MemoryOptions = options.MemoryOptions()
    attention: options.Attention = "plain"
    intervals: options.Intervals = options.Intervals()
    run: options.RunOptions = options.RunOptions()
    accumulate: options.Accumulate = 1
    class_weights: Optional[str] = None
    """label weights in the loss: balanced (inverse frequency), or spam=5,ham=0.5; none = all 1"""
    tricks: options.TrickOptions = options.TrickOptions()
    precision_options: options.PrecisionOptions = options.PrecisionOptions()

    def defaults(self) -> Dict[str, Any]:
        """Return the defaults that ``--bert``, ``--multilabel`` and ``--regression`` set."""
        hard = self.files.regression or self.files.multilabel is not None
        smoothing = {"label_smoothing": 0.0} if hard else {}
        return {**text_defaults(self), **smoothing}


def build(config: Config, context: RunContext) -> Any:
    """Build the job: data, model and training step."""
    from amp_xla.models import encoders, losses
    from amp_xla.models.packed import over_windows

    # texts -> batches
    several, number = config.files.multilabel is not None, config.files.regression
    smoothing = config.training.label_smoothing
    if (several or number) and (smoothing or config.class_weights or number * config.tricks.r_drop):
        flag, more = ("--regression", ", --r-drop") if number else ("--multilabel", "")
        raise SettingsError(f"{flag} excludes --label-smoothing, --class-weights{more}")
    data = context.shared(read(config.files, context.preparation(config.packed)))
    weights = class_weights(config.class_weights, data.labels, data.ids)

    # batches -> logits
    model = config.encoder.classifier(
        data.tokenizer.vocab_size, len(data.labels), config.batches.max_length,
        whole(data.batches).slots, context.reads_weights, config.pooling,
    )  # fmt: skip
    model = over_windows(model) if config.batches.stride else model
    shape = [None] * (model.output.shape.ndims - 1)  # of one number per text
    kind = "float32" if number else "int32"
    inputs = encoders.inputs_of(model, shape + [len(data.labels)] * several, shape, kind)

    # logits -> loss -> update
    def objective(logits: Any) -> Any:
        if number:
            error = losses.squared(inputs["labels"], logits)
            return losses.weighted_mean(error, inputs["weights"]), {}
        loss, accuracy = losses.classification(
            inputs["labels"], logits, inputs["weights"], smoothing, weights
        )
        return loss, {"accuracy": accuracy}

    divergence = losses.divergence_of_several if several else losses.divergence
    step = context.text_step(model, inputs, objective, data.batches, divergence=divergence)

    # evaluation
    evaluate = answers.evaluation(model, inputs, data)
    return context.text_job(model, step, data, evaluate)


recipe = Recipe(
    Config, build, lambda config: config.files.monitor, answers.predict, vectors=vectors,
    scored=answers.scored, exportable=answers.exportable,
)  # fmt: skip
main = functools.partial(launch.main, recipe)


if __name__ == "__main__":
    launch.run_program(recipe)
