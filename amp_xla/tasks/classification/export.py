"""Export of the classifiers trained in TensorFlow."""

from __future__ import annotations

from typing import Any

from amp_xla.backend import tf
from amp_xla.data.text.labels import Labels
from amp_xla.export import text_models
from amp_xla.export.model import Exportable
from amp_xla.training.checkpoint import Checkpoint


def classifier(config: Any, checkpoint: Checkpoint) -> Exportable:
    """Return the classifier of a run."""
    labels = Labels.load(checkpoint.file("labels.json")).names
    several = config.files.multilabel is not None
    activation = tf.sigmoid if several else tf.nn.softmax
    load = (
        'from transformers import pipeline; pipeline("text-classification", "{}", truncation=True'
    )
    problem = ("multi" if several else "single") + "_label_classification"
    return text_models.classifier(
        config, checkpoint, len(labels),
        lambda logits: {"probabilities": activation(logits), "logits": logits},
        "sigmoid({})" if several else "softmax({})", labels,
        load=load + (", top_k=None)" if several else ")"), settings={"problem_type": problem},
    )  # fmt: skip
