"""Classifiers: evaluation, prediction, scores, export. TensorFlow is imported in functions."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any, Dict, List

import numpy as np

from amp_xla.data.labelled import Labelled
from amp_xla.data.text.labels import Labels, Scale
from amp_xla.export.model import Exportable, Run
from amp_xla.report.scores import correlations
from amp_xla.training import evaluation as inference
from amp_xla.training import sample_scores
from amp_xla.training.answers import Answers, label_answers
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.sample_scores import NumberScores, Samples, Scorer

POINTS = 500  # of the scatter plot
_LOAD = (
    'from transformers import pipeline; pipeline("text-classification", "{{}}", truncation=True{})'
)


def evaluation(model: Any, inputs: Dict[str, Any], data: Labelled) -> inference.Evaluation:
    """Return a function that evaluates a model on dev texts; ``inputs``: placeholders by name."""
    from amp_xla.models import dropout, losses
    from amp_xla.training.step import Inference

    logits = dropout.without(model)
    if isinstance(data.labels, Scale):
        values = {"score": logits[..., 0], "loss": losses.squared(inputs["labels"], logits)}
        return functools.partial(_of_numbers, Inference(inputs, values), data)
    outputs = {"logits": logits, "loss": losses.cross_entropy(inputs["labels"], logits)}
    infer, batches = Inference(inputs, outputs), data.dev_batches
    if losses.several(inputs["labels"], logits):
        return functools.partial(inference.several_labels, infer, batches)
    return functools.partial(inference.classification, infer, batches, len(data.labels))


def _of_numbers(infer: inference.Infer, data: Labelled) -> Dict[str, float]:
    """Return mean loss, mean absolute error, and the correlations of labels with predictions."""
    labels = np.array(data.dev.labels, np.float64)
    values, loss = inference.per_sample(infer, data.dev_batches, len(labels), ("score", "loss"))
    found = data.labels.labels(values)
    error, mean = float(np.abs(found - labels).mean()), float(loss.mean())
    return {**correlations(labels, found), "mean_absolute_error": error, "loss": mean}


def predict(config: Any, checkpoint: Checkpoint, lines: List[str]) -> Answers:
    """Return the label probabilities of each line, or the predicted number in a regression."""
    from amp_xla.backend import tf

    if config.files.regression:
        scale = Scale.load(checkpoint.file("labels.json"))
        values = inference.of_lines(config, checkpoint, lines, 1, lambda logits: logits[:, 0])
        pairs = zip(map(scale.labels, values.tolist()), lines)
        return Answers(
            [([f"{x:.4f}", line], {"score": float(f"{x:.12g}")}) for x, line in pairs],
            {"score": None},
        )
    labels, several = Labels.load(checkpoint.file("labels.json")).names, config.files.multilabel
    probabilities = tf.nn.softmax if several is None else tf.sigmoid
    rows = inference.of_lines(config, checkpoint, lines, len(labels), probabilities)
    return label_answers(lines, labels, rows, several)


def exportable(config: Any, checkpoint: Checkpoint) -> Exportable:
    """Return the model to export: a classifier, or a regression model."""
    from amp_xla.backend import tf
    from amp_xla.export import text_models

    if config.files.regression:
        return _regression(config, checkpoint)
    labels = Labels.load(checkpoint.file("labels.json")).names
    activation, formula, problem, more = tf.nn.softmax, "softmax({})", "single", ""
    if config.files.multilabel is not None:
        activation, formula, problem, more = tf.sigmoid, "sigmoid({})", "multi", ", top_k=None"
    return text_models.classifier(
        config, checkpoint, len(labels),
        lambda logits: {"probabilities": activation(logits), "logits": logits}, formula, labels,
        load=_LOAD.format(more), settings={"problem_type": f"{problem}_label_classification"},
    )  # fmt: skip


def _regression(config: Any, checkpoint: Checkpoint) -> Exportable:
    """Return the regression model; its exported head predicts in the scale of the labels."""
    from amp_xla.export import text_models

    scale = Scale.load(checkpoint.file("labels.json"))
    exported = text_models.classifier(
        config, checkpoint, 1, lambda logits: {"score": scale.labels(logits[:, 0])}, "{}",
        load=_LOAD.format(', function_to_apply="none"'),
        settings={"problem_type": "regression", "id2label": {"0": "score"},
                  "label2id": {"score": 0}},
    )  # fmt: skip
    head = {
        name: scale.labels(value) if name.endswith("bias") else value * (scale.high - scale.low)
        for name, value in exported.head.items()
    }

    def reload(folder: Path) -> Run:
        run = exported.reload(folder)
        return lambda *inputs: (run(*inputs) - scale.low) / (scale.high - scale.low)

    return dataclasses.replace(exported, head=head, reload=reload)


class RegressionScores(NumberScores):
    """Scores of a regression, and the points of its scatter plot."""

    def score(self, rows: np.ndarray) -> Dict[str, float]:
        error = float(np.abs(rows[:, 0] - rows[:, 1]).mean())
        return {**super().score(rows), "mean_absolute_error": error}

    def details(self) -> Dict[str, Any]:
        return {"scatter": self.rows()[:POINTS].tolist()}


def scored(checkpoint: Checkpoint, samples: Samples) -> Scorer:
    """Return a function that computes the scores of answers to ``samples``."""
    if Path(checkpoint.file("labels.json")).read_bytes()[:1] != b"{":
        return sample_scores.scored(checkpoint, samples)
    return lambda answers: RegressionScores(samples, np.array([each["score"] for each in answers]))
