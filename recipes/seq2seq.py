"""Text generation: a BERT reads a source text and writes a target text (UniLM).

    make train RECIPE=seq2seq

trains a small BERT from scratch. It reads the first paragraph of a docstring of Python's library,
and writes the name of the function or class, split into words. For comparison: on the dev texts,
the paragraph's first three words as the answer have ROUGE-L 0.1769, and the name that belongs to
the most similar training text has 0.2563 (Python 3.12, `benchmarks/first_words.py` of revision
6c424ec).
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
from typing import Any, List, Optional

from typing_extensions import Annotated

from amp_xla.config import MAY_CHANGE, parse, within
from amp_xla.data import seq2seq as data_of
from amp_xla.data.labelled import Labelled, Preparation
from amp_xla.data.seq2seq import TargetBatchOptions
from amp_xla.data.text.options import TargetFiles, VocabularyOptions
from amp_xla.models.options import GenerationOptions
from amp_xla.process.exits import exit_code
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.classifier import ClassifierConfig
from amp_xla.training.options import ClassifierOptions, PrecisionOptions, TransformerUpdateOptions


@dataclasses.dataclass(frozen=True)
class Config(ClassifierConfig):
    """Train a model that generates a target text for each source text."""

    recipe = "seq2seq"
    monitor = "rouge_l"
    files: TargetFiles = TargetFiles()  # type: ignore[assignment]
    vocabulary: VocabularyOptions = VocabularyOptions(vocab_size=3000)
    batches: TargetBatchOptions = TargetBatchOptions(max_length=64, batch_size=32)
    training: ClassifierOptions = ClassifierOptions(epochs=10)
    update: TransformerUpdateOptions = TransformerUpdateOptions(learning_rate=1e-3)
    accumulate: Annotated[int, within(at_least=1), MAY_CHANGE] = 1
    """micro-batches per update; each has --batch-size samples"""
    precision_options: PrecisionOptions = PrecisionOptions()

    def data(self, how: Preparation) -> Labelled:
        """Read the texts, and return them with their targets and batches."""
        return data_of.read(self.files, how)


def build(config: Config, resume_from: Optional[Checkpoint] = None) -> Any:
    """Build the job up to the first step."""
    config = resume_from.pinned(config) if resume_from else config
    resolved = config.precision_options.resolve()
    from amp_xla.models import dropout
    from amp_xla.training import distributed, job, seq2seq
    from amp_xla.training.step import TrainStep

    job.seed_everything(config.seed)
    data = config.read(config.accumulate)
    ranks = distributed.current()
    accumulate = ranks.micro_batches(config.accumulate)
    batches, dev_batches = (ranks.share(b, accumulate) for b in (data.batches, data.dev_batches))
    step_input = dropout.install(config.seed)
    lm = config.encoder.language_model(
        data.tokenizer.vocab_size, config.batches.max_length, "unilm", weights=not resume_from
    )
    steps = config.steps(batches)
    inputs = lm.placeholders()
    loss, metrics = lm.loss(inputs, smoothing=config.training.label_smoothing)
    evaluate = seq2seq.evaluation(lm, inputs, dev_batches, data.tokenizer, data.dev, config.batches)
    optimizer, rate = config.update.scheduled(steps, resolved.loss_scale, accumulate=accumulate)
    step = TrainStep(inputs, step_input, loss, optimizer, lm.weights, rate, metrics)
    return job.Job(
        lm.transformer.model, step, batches, evaluate,
        {**data.assets, "bert_config.json": lm.architecture()}, resolved,
        identity=data.fingerprints,
    )  # fmt: skip


def main(argv: Optional[List[str]] = None) -> int:
    """Train."""
    config = parse(Config, argv, "amp-xla train seq2seq")
    from amp_xla.training.launch import train

    return train("seq2seq", config, build, config.loop)


def predict(
    checkpoint: Checkpoint, lines: List[str], generation: GenerationOptions = GenerationOptions()
) -> List[str]:
    """Return the generated text for each line."""
    config = checkpoint.config(Config)
    checkpoint.apply_precision()
    from amp_xla.training import seq2seq

    return seq2seq.answers(checkpoint, config.encoder, config.batches, lines, generation)


def exportable(checkpoint: Checkpoint) -> Any:
    """Return the model for ``amp-xla export``."""
    config = checkpoint.config(Config)
    checkpoint.apply_precision(float32=True)
    from amp_xla.export.text_models import language_model

    return language_model(config.encoder, "unilm", checkpoint)


if __name__ == "__main__":
    sys.exit(exit_code(main))
