"""Text classification: a BERT encoder, pooling, one softmax.

    make train RECIPE=classification

trains a small BERT from scratch: which of 12 packages of Python's library is a docstring from?
TensorFlow 1.15.5: dev accuracy 0.8853, seed 1, 2.2 minutes; AMD EPYC with AVX-512
BF16, 2 cores, load 4; 2026-11-25.
TensorFlow 2.17.1: dev accuracy 0.8957, seed 1, 1.8 minutes; AMD EPYC with AVX-512
BF16, 2 cores, load 4; 2026-11-25.

    make train RECIPE=classification ARGS="--train a.tsv --dev b.tsv --bert chinese_L-12_H-768_A-12"
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, Dict, List, Optional

from typing_extensions import Annotated

from amp_xla.config import MAY_CHANGE, parse, within
from amp_xla.data import labelled
from amp_xla.data.batches.options import PackedBatchOptions
from amp_xla.data.batches.rank_shard import whole
from amp_xla.data.text.options import MultiLabelTextFiles, VocabularyOptions
from amp_xla.errors import SettingsError
from amp_xla.models.options import EncoderOptions, Pooling
from amp_xla.process.exits import exit_code
from amp_xla.training.answers import LabelAnswers
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
    """Train a text classifier."""

    seed: Seed = 1
    """seed of weights, order and dropout"""
    files: MultiLabelTextFiles = MultiLabelTextFiles()
    vocabulary: VocabularyOptions = VocabularyOptions()
    encoder: EncoderOptions = EncoderOptions()
    pooling: Pooling = "mean"
    """vector of a text: mean of its tokens; the first token (cls); or that through BERT's pooler,
    which transformers' classifiers need (export --format hf)"""
    batches: PackedBatchOptions = PackedBatchOptions()
    training: ClassifierOptions = ClassifierOptions()
    update: UpdateOptions = UpdateOptions()
    memory: MemoryOptions = MemoryOptions()
    intervals: Intervals = Intervals()
    run: RunOptions = RunOptions()
    accumulate: Annotated[int, within(at_least=1), MAY_CHANGE] = 1
    """micro-batches per update; each has --batch-size samples"""
    class_weights: Optional[str] = None
    """weights of labels in the loss: balanced (inverse frequency), or spam=5,ham=0.5; none = 1"""
    tricks: TrickOptions = TrickOptions()
    precision_options: PrecisionOptions = PrecisionOptions()

    def defaults(self) -> Dict[str, Any]:
        """Return the settings of a resumed run, or the defaults of ``--bert`` and multilabel."""
        several = self.files.multilabel is not None
        smoothing = {"label_smoothing": 0.0} if several else {}
        return {**text_defaults("classification", self), **smoothing}


def build(config: Config, context: RunContext) -> Any:
    """Build the job up to the first step."""
    from amp_xla.backend import tf
    from amp_xla.models import dropout, losses
    from amp_xla.training.evaluation import classification, several_labels
    from amp_xla.training.step import Inference

    # texts -> batches
    several, smoothing = config.files.multilabel is not None, config.training.label_smoothing
    if several and (smoothing or config.class_weights):
        raise SettingsError("--multilabel excludes --label-smoothing and --class-weights")
    data = context.shared(labelled.read(config.files, context.preparation()))
    class_weights = labelled.class_weights(config.class_weights, data.labels, data.ids)

    # batches -> logits
    model = config.encoder.classifier(
        data.tokenizer.vocab_size, len(data.labels), config.batches.max_length,
        whole(data.batches).slots, context.reads_weights, config.pooling,
    )  # fmt: skip
    texts = [None] * (model.output.shape.ndims - 1)
    inputs = {
        **dict(zip(("token_ids", "segment_ids", "position_ids", "slots"), model.inputs)),
        "labels": tf.placeholder(tf.int32, texts + [len(data.labels)] * several, name="labels"),
        "weights": tf.placeholder(tf.float32, texts, name="weights"),
    }

    # logits -> loss -> update
    def objective(logits: Any) -> Any:
        return losses.classification(
            inputs["labels"], logits, inputs["weights"], smoothing, class_weights
        )

    tricks = context.tricks(model)
    optimizer = context.optimizer(context.steps(data.batches), tricks.rule)
    divergence = losses.divergence_of_several if several else losses.divergence
    loss, accuracy = tricks.loss(objective, inputs["weights"], optimizer.loss_scale, divergence)
    loss += sum(model.losses)
    step = context.step(inputs, loss, optimizer, tricks.variables, {"accuracy": accuracy})

    # evaluation
    with dropout.inference():
        logits = model(model.inputs)
    outputs = {"logits": logits, "loss": losses.cross_entropy(inputs["labels"], logits)}
    scores = several_labels if several else classification
    evaluate = scores(Inference(inputs, outputs), data.dev_batches, len(data.labels))
    return context.text_job(model, step, data, tricks.evaluation(evaluate, optimizer))


def main(argv: Optional[List[str]] = None) -> int:
    """Train."""
    config = parse(Config, argv, "amp-xla train classification")
    from amp_xla.training.launch import train

    monitor = "accuracy" if config.files.multilabel is None else "micro_f1"
    return train("classification", config, build, loop_options(config, monitor))


def predict(checkpoint: Checkpoint, lines: List[str]) -> LabelAnswers:
    """Return the label probabilities of each line, a text or two texts separated by a tab."""
    config = checkpoint.config(Config)
    checkpoint.apply_precision()
    from amp_xla.tasks.classification import answers

    return answers.predict(config, checkpoint, lines)


def exportable(checkpoint: Checkpoint) -> Any:
    """Return the model for ``amp-xla export``."""
    config = checkpoint.config(Config)
    checkpoint.apply_precision(float32=True)
    from amp_xla.tasks.classification.export import classifier

    return classifier(config, checkpoint)


if __name__ == "__main__":
    sys.exit(exit_code(main))
