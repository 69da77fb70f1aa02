"""Reading: find the answer to a question in a passage, or no answer, by BERT's head for SQuAD.

    make train RECIPE=reading

trains a small BERT from scratch to answer what a function takes, returns or does. The passage is
the function's signature and the first paragraph of its docstring.
TensorFlow 1.15.5: dev F1 0.9428, seed 1, 6.2 minutes; AMD EPYC with AVX-512 BF16, 2 cores,
load 6; 2026-11-29.
TensorFlow 2.17.1: dev F1 0.9455, seed 1, 3.3 minutes; AMD EPYC with AVX-512 BF16, 2 cores,
load 5; 2026-11-29.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from typing_extensions import Annotated

from amp_xla.config import within
from amp_xla.data.labelled import WindowOptions
from amp_xla.data.text.options import VocabularyOptions
from amp_xla.errors import SettingsError
from amp_xla.models.options import EncoderOptions
from amp_xla.tasks.reading import answers, scores
from amp_xla.tasks.reading.data import ReadingFiles, read
from amp_xla.training import launch, options
from amp_xla.training.context import RunContext, text_defaults
from amp_xla.training.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a model that answers questions by spans of a passage."""

    seed: options.Seed = 1
    files: ReadingFiles = ReadingFiles()
    vocabulary: VocabularyOptions = VocabularyOptions()
    encoder: EncoderOptions = EncoderOptions()
    batches: WindowOptions = WindowOptions(max_length=384)
    max_answer: Annotated[int, within(at_least=1)] = 30
    """maximum tokens of an answer"""
    training: options.ClassifierOptions = options.ClassifierOptions(
        label_smoothing=0.0, token_dropout=0.0, epochs=3
    )
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
            raise SettingsError("recipe reading allows only --label-smoothing 0 and --r-drop 0")

    defaults = text_defaults


def build(config: Config, context: RunContext) -> Any:
    """Build the job: data, model and training step."""
    from amp_xla.models import dropout, encoders, losses
    from amp_xla.tasks.reading import model
    from amp_xla.training.step import Inference

    # questions and passages -> batches
    data = context.shared(read(config.files, context.preparation(), config.max_answer))

    # batches -> scores of the first and the last token
    size, length = data.tokenizer.vocab_size, config.batches.max_length
    reader = model.reader(config.encoder.transformer(size, length, context.reads_weights))
    inputs = encoders.inputs_of(reader, [None, 2], [None])

    # scores -> loss -> update
    def objective(output: Any) -> Any:
        return losses.weighted_mean(model.loss(inputs, output), inputs["weights"]), {}

    step = context.text_step(reader, inputs, objective, data.batches)

    # evaluation
    output = dropout.without(reader)
    infer = Inference(inputs, {"scores": output, "loss": model.loss(inputs, output)})
    evaluate = functools.partial(
        answers.evaluate, infer, data, model.threshold(), config.max_answer
    )
    return context.text_job(reader, step, data, evaluate)


recipe = Recipe(
    Config, build, "f1", answers.predict, scored=scores.scored, exportable=answers.exportable
)
main = functools.partial(launch.main, recipe)


if __name__ == "__main__":
    launch.run_program(recipe)
