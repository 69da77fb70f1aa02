"""Sentence similarity: a cross-encoder, CoSENT, or SimCSE with and without labels.

    make train RECIPE=similarity

trains a small BERT from scratch by CoSENT to tell whether two docstrings are from the same package
of Python's library. The runs below have accuracy 0.6797 and 0.7315, with the threshold chosen on
the dev pairs.
TensorFlow 1.15.5: dev Spearman 0.4156, seed 1, 2.2 minutes; AMD EPYC with AVX-512 BF16, 2 cores,
load 3; 2026-11-26. Seeds 2 and 3: 0.4433, 0.4283.
TensorFlow 2.17.1: dev Spearman 0.4889, seed 1, 1.4 minutes; AMD EPYC with AVX-512 BF16, 2 cores,
load 3; 2026-11-26. Seeds 2 and 3: 0.4943, 0.4414.

    make train RECIPE=similarity ARGS="--train a.tsv --dev b.tsv --bert chinese_L-12_H-768_A-12"
    ./amp-xla predict runs/similarity/latest lines.txt --query "a text"
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Dict

from typing_extensions import Annotated

from amp_xla.config import within
from amp_xla.data.labelled import BatchOptions
from amp_xla.data.text.options import VocabularyOptions
from amp_xla.models.options import EncoderOptions, Pooling
from amp_xla.tasks.similarity import answers
from amp_xla.tasks.similarity.data import Method, PairFiles, check, needed, read
from amp_xla.training import launch, options
from amp_xla.training.context import RunContext, text_defaults
from amp_xla.training.evaluation import vectors
from amp_xla.training.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a model of sentence similarity."""

    seed: options.Seed = 1
    files: PairFiles = PairFiles()
    vocabulary: VocabularyOptions = VocabularyOptions()
    encoder: EncoderOptions = EncoderOptions()
    batches: BatchOptions = BatchOptions()
    training: options.ClassifierOptions = options.ClassifierOptions(epochs=2)
    update: options.UpdateOptions = options.UpdateOptions()
    memory: options.MemoryOptions = options.MemoryOptions()
    intervals: options.Intervals = options.Intervals()
    run: options.RunOptions = options.RunOptions()
    method: Method = "cosent"
    """cross-encoder reads both texts of a pair together; the others make a vector of each text.
    cosent learns the order of the labels; simcse compares a pair with the others of its
    micro-batch; unsupervised-simcse needs no labels and pairs each text with itself"""
    accumulate: Annotated[int, within(at_least=1)] = 1
    """micro-batches per update; each has --batch-size pairs, and its pairs are compared only with
    each other"""
    pooling: Pooling = "mean"
    """vector of a cross-encoder's pair: mean = mean of its tokens; cls = the first token; pooler =
    the first token after BERT's pooler, as in sentence-transformers' CrossEncoder (export)"""
    tricks: options.TrickOptions = options.TrickOptions()
    precision_options: options.PrecisionOptions = options.PrecisionOptions()

    def __post_init__(self) -> None:
        check(self.method, self.tricks.r_drop, self.pooling)

    def defaults(self) -> Dict[str, Any]:
        """Return the defaults that ``--bert`` sets."""
        return text_defaults(self, needs=needed(self.method))


def build(config: Config, context: RunContext) -> Any:
    """Build the job: data, model and training step."""
    from amp_xla.models import dropout, losses
    from amp_xla.tasks.similarity import model as similarity
    from amp_xla.training.step import Inference

    # pairs -> batches
    data = context.shared(read(config.method, config.files, context.preparation()))

    # batches -> logits or vectors
    sizes = data.tokenizer.vocab_size, config.batches.max_length
    model, inputs, rows = similarity.network(
        config.method, config.encoder, *sizes, context.reads_weights, config.pooling
    )

    # logits or vectors -> loss -> update
    smoothing = config.training.label_smoothing if data.labels.binary else 0.0

    def objective(output: Any) -> Any:
        return similarity.loss(config.method, output, inputs, smoothing), {}

    step = context.text_step(
        model, inputs, objective, data.batches,
        divergence=losses.divergence_of_several, inputs_of_model=rows,
    )  # fmt: skip

    # evaluation
    outputs = {"scores": similarity.scores(config.method, dropout.without(model, rows))}
    threshold = similarity.threshold_of(config.method, data.labels)
    evaluate = functools.partial(answers.evaluate, Inference(inputs, outputs), data, threshold)
    return context.text_job(model, step, data, evaluate)


recipe = Recipe(
    Config, build, "spearman", answers.predict, rank=answers.predict, vectors=vectors,
    scored=answers.scored, exportable=answers.exportable,
)  # fmt: skip
main = functools.partial(launch.main, recipe)


if __name__ == "__main__":
    launch.run_program(recipe)
