"""Evaluation and predictions of the classifiers trained in TensorFlow."""

from __future__ import annotations

from typing import Any, Dict, List

from amp_xla.backend import tf
from amp_xla.data.labelled import Labelled
from amp_xla.data.text.labels import Labels
from amp_xla.models import dropout, losses
from amp_xla.training.answers import Answers, label_answers
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.evaluation import Evaluation, classification, of_lines, several_labels
from amp_xla.training.step import Inference


def evaluation(model: Any, inputs: Dict[str, Any], data: Labelled) -> Evaluation:
    """Return the evaluation of a model on dev texts; ``inputs``: see ``inputs_of``."""
    logits = dropout.without(model)
    outputs = {"logits": logits, "loss": losses.cross_entropy(inputs["labels"], logits)}
    several = losses.several(inputs["labels"], logits)
    scores = several_labels if several else classification
    return scores(Inference(inputs, outputs), data.dev_batches, len(data.labels))


def predict(config: Any, checkpoint: Checkpoint, lines: List[str]) -> Answers:
    """Return the probability of each label for each line; precision is already set."""
    labels, several = Labels.load(checkpoint.file("labels.json")).names, config.files.multilabel
    probabilities = tf.nn.softmax if several is None else tf.sigmoid
    rows = of_lines(config, checkpoint, lines, len(labels), probabilities)
    return label_answers(lines, labels, rows, several)
