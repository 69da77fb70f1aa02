"""Named entities: a BERT encoder with a softmax, a CRF or an (efficient) GlobalPointer.

    make train RECIPE=tagging

trains a small BERT from scratch to find the words of a docstring that name a parameter, a class, a
function or a constant.
TensorFlow 1.15.5: dev F1 0.6616, seed 1, 3.9 minutes; AMD EPYC with AVX-512 BF16, 2 cores, load 3;
2026-11-26.
TensorFlow 2.17.1: dev F1 0.662, seed 1, 2.4 minutes; AMD EPYC with AVX-512 BF16, 2 cores, load 3;
2026-11-26.

    make train RECIPE=tagging ARGS="--train a.bio --dev b.bio --bert chinese_L-12_H-768_A-12"
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Dict

from typing_extensions import Literal

from amp_xla.data.labelled import WindowOptions
from amp_xla.data.text.options import TaggedFiles, VocabularyOptions
from amp_xla.models.options import EncoderOptions
from amp_xla.tasks.tagging import answers
from amp_xla.tasks.tagging.data import read
from amp_xla.tasks.tagging.spans import check, is_flat
from amp_xla.training import launch, options
from amp_xla.training.context import RunContext, text_defaults
from amp_xla.training.evaluation import vectors
from amp_xla.training.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a model that finds named entities."""

    seed: options.Seed = 1
    files: TaggedFiles = TaggedFiles()
    vocabulary: VocabularyOptions = VocabularyOptions(lowercase=False)
    encoder: EncoderOptions = EncoderOptions()
    batches: WindowOptions = WindowOptions()
    training: options.ClassifierOptions = options.ClassifierOptions(label_smoothing=0.0, epochs=5)
    update: options.UpdateOptions = options.UpdateOptions()
    memory: options.MemoryOptions = options.MemoryOptions()
    attention: options.Attention = "plain"
    intervals: options.Intervals = options.Intervals()
    run: options.RunOptions = options.RunOptions()
    head: Literal["softmax", "crf", "global_pointer", "efficient_global_pointer"] = "crf"
    """softmax and crf predict BIO tags; the global pointers predict spans, which may be nested"""
    accumulate: options.Accumulate = 1
    tricks: options.TrickOptions = options.TrickOptions()
    precision_options: options.PrecisionOptions = options.PrecisionOptions()

    def __post_init__(self) -> None:
        check(self.head, self.training.label_smoothing, self.tricks.r_drop)

    def defaults(self) -> Dict[str, Any]:
        """Return the defaults that ``--bert`` sets."""
        return text_defaults(self, nested=not is_flat(self.head))


def build(config: Config, context: RunContext) -> Any:
    """Build the job: data, model and training step."""
    from amp_xla.models import dropout
    from amp_xla.tasks.tagging import model
    from amp_xla.training.step import Inference

    # texts -> batches
    data = context.shared(read(config.files, context.preparation(), config.head))

    # batches -> scores of tags or spans
    size, length = data.tokenizer.vocab_size, config.batches.max_length
    encoder = config.encoder.transformer(size, length, context.reads_weights).model
    tagger = model.tagger(config, encoder, len(data.labels), config.encoder.dropout)
    inputs = tagger.inputs()

    # scores -> loss -> update
    def objective(scores: Any) -> Any:
        return tagger.loss_and_metrics(inputs, scores, config.training.label_smoothing)

    step = context.text_step(tagger.model, inputs, objective, data.batches)

    # evaluation
    scores = dropout.without(tagger.model)
    outputs = {**tagger.outputs(scores), "loss": tagger.total_loss(inputs, scores)}
    infer = Inference(inputs, outputs)
    evaluate = functools.partial(answers.evaluate, infer, data, config.head)
    return context.text_job(tagger.model, step, data, evaluate)


recipe = Recipe(
    Config, build, "f1", answers.predict, vectors=vectors, scored=answers.scored,
    exportable=answers.exportable,
)  # fmt: skip
main = functools.partial(launch.main, recipe)


if __name__ == "__main__":
    launch.run_program(recipe)
