"""Sentence similarity: a cross-encoder, CoSENT, or SimCSE with and without labels.

    make train RECIPE=similarity

trains a small BERT from scratch by CoSENT: are two docstrings from the same package of Python's
library? The runs below have accuracy 0.6797 and 0.7315, with the threshold chosen on the dev pairs.
TensorFlow 1.15.5: dev Spearman 0.4156, seed 1, 2.2 minutes; AMD EPYC with AVX-512 BF16, 2 cores,
load 3; 2026-11-26. Seeds 2 and 3: 0.4433, 0.4283.
TensorFlow 2.17.1: dev Spearman 0.4889, seed 1, 1.4 minutes; AMD EPYC with AVX-512 BF16, 2 cores,
load 3; 2026-11-26. Seeds 2 and 3: 0.4943, 0.4414.

    make train RECIPE=similarity ARGS="--train a.tsv --dev b.tsv --bert chinese_L-12_H-768_A-12"
    ./amp-xla predict runs/similarity/latest lines.txt --query "a text"
"""

from __future__ import annotations

import dataclasses
import re
import sys
from typing import Any, Dict, List, Optional

from typing_extensions import Annotated

from amp_xla.config import parse, within
from amp_xla.data.batches.options import BatchOptions
from amp_xla.data.text.options import PairFiles, VocabularyOptions
from amp_xla.errors import SettingsError
from amp_xla.models.options import EncoderOptions
from amp_xla.process.exits import exit_code
from amp_xla.tasks.similarity import scores
from amp_xla.tasks.similarity.data import Method, apart, needed, read, split
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
    TrickOptions,
    UpdateOptions,
)


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a model of sentence similarity."""

    seed: Seed = 1
    """seed of weights, order and dropout"""
    files: PairFiles = PairFiles()
    vocabulary: VocabularyOptions = VocabularyOptions()
    encoder: EncoderOptions = EncoderOptions()
    batches: BatchOptions = BatchOptions()
    training: ClassifierOptions = ClassifierOptions(epochs=2)
    update: UpdateOptions = UpdateOptions()
    memory: MemoryOptions = MemoryOptions()
    intervals: Intervals = Intervals()
    run: RunOptions = RunOptions()
    method: Method = "cosent"
    """cross-encoder encodes both texts together; the others encode each text as a vector. cosent
    trains the order of cosines; simcse takes the other texts of a micro-batch as negatives;
    unsupervised-simcse needs no labels and pairs each text with itself"""
    accumulate: Annotated[int, within(at_least=1)] = 1
    """micro-batches per update; each has --batch-size pairs, and its pairs are compared only with
    each other"""
    tricks: TrickOptions = TrickOptions()
    precision_options: PrecisionOptions = PrecisionOptions()

    def __post_init__(self) -> None:
        if self.tricks.r_drop and apart(self.method):
            raise SettingsError(f"--r-drop excludes --method {self.method}; allowed: cross-encoder")

    def defaults(self) -> Dict[str, Any]:
        """Return the settings of a resumed run, or the defaults of ``--bert``."""
        return text_defaults("similarity", self, needs=needed(self.method))


def build(config: Config, context: RunContext) -> Any:
    """Build the job up to the first step."""
    from amp_xla.models import dropout, losses
    from amp_xla.tasks.similarity import model as similarity
    from amp_xla.tasks.similarity.answers import evaluation, threshold_of
    from amp_xla.training.step import Inference

    # pairs -> batches
    data = context.shared(read(config.method, config.files, context.preparation()))

    # batches -> logits or vectors
    model = similarity.network(
        config.method, config.encoder, data.tokenizer.vocab_size, config.batches.max_length,
        context.reads_weights,
    )  # fmt: skip
    inputs = similarity.placeholders(config.method)
    rows = similarity.model_inputs(config.method, inputs)

    # logits or vectors -> loss -> update
    smoothing = config.training.label_smoothing if data.labels.binary else 0.0

    def objective(output: Any) -> Any:
        return similarity.loss(config.method, output, inputs, smoothing), {}

    tricks = context.tricks(model)
    optimizer = context.optimizer(context.steps(data.batches), tricks.rule)
    loss, metrics = tricks.loss(
        objective, inputs["weights"], optimizer.loss_scale, losses.divergence_of_several, rows
    )
    loss += sum(model.losses)
    step = context.step(inputs, loss, optimizer, tricks.variables, metrics)

    # evaluation
    with dropout.inference():
        outputs = {"scores": similarity.scores(config.method, model(rows))}
    evaluate = evaluation(
        Inference(inputs, outputs), data.dev_batches, data.labels.values(data.dev.labels),
        data.labels.binary, threshold_of(config.method, data.labels),
    )  # fmt: skip
    return context.text_job(model, step, data, tricks.evaluation(evaluate, optimizer))


def main(argv: Optional[List[str]] = None) -> int:
    """Train."""
    config = parse(Config, argv, "amp-xla train similarity")
    from amp_xla.training.launch import train

    return train("similarity", config, build, loop_options(config, "spearman"))


def predict(checkpoint: Checkpoint, lines: List[str]) -> Answers:
    """Return the scores of lines; each line is two texts with a tab between."""
    config = checkpoint.config(Config)
    texts, others = split(lines)
    checkpoint.apply_precision()
    from amp_xla.tasks.similarity import answers

    return answers.predict(config, checkpoint, texts, others)


def rank(checkpoint: Checkpoint, lines: List[str], query: str) -> Answers:
    """Return the scores of a text with each line."""
    query, *lines = (re.sub(r"[\t\r\n]", " ", text) for text in [query, *lines])
    return predict(checkpoint, [f"{query}\t{line}" for line in lines])


scored = scores.scored  # by `amp-xla evaluate --file`


def exportable(checkpoint: Checkpoint) -> Any:
    """Return the model for ``amp-xla export``."""
    config = checkpoint.config(Config)
    checkpoint.apply_precision(float32=True)
    from amp_xla.tasks.similarity.export import similarity

    return similarity(config, checkpoint)


if __name__ == "__main__":
    sys.exit(exit_code(main))
