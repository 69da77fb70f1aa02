"""Predictions of the classifiers trained in TensorFlow."""

from __future__ import annotations

from typing import Any, List

from amp_xla.backend import tf
from amp_xla.models import dropout
from amp_xla.tasks.classification.questions import Questions
from amp_xla.training.answers import LabelAnswers
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.step import Inference
from amp_xla.training.variables import restore_weights


def predict(config: Any, checkpoint: Checkpoint, lines: List[str]) -> LabelAnswers:
    """Return the probability of each label for each line; precision is already set."""
    questions = Questions(config, checkpoint, lines)
    with dropout.inference():
        model = config.encoder.classifier(
            questions.tokenizer.vocab_size, len(questions.labels), config.batches.max_length,
            weights=False, pooling=config.pooling)  # fmt: skip
    restore_weights(checkpoint, model.weights)
    inputs = {"token_ids": model.inputs[0], "segment_ids": model.inputs[1]}
    chances = tf.nn.softmax if config.files.separator is None else tf.sigmoid
    infer = Inference(inputs, {"chances": chances(model.output)})
    return questions.answers(lambda batch: infer(batch)["chances"])
