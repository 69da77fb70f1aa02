"""Export of the classifiers trained in TensorFlow."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from amp_xla.backend import tf
from amp_xla.data.text.labels import Labels, Scale
from amp_xla.export import text_models
from amp_xla.export.model import Exportable, Run
from amp_xla.training.checkpoint import Checkpoint


def classifier(config: Any, checkpoint: Checkpoint) -> Exportable:
    """Return the classifier of a run, or the model that predicts numbers."""
    if config.files.regression:
        return _regression(config, checkpoint)
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


def _regression(config: Any, checkpoint: Checkpoint) -> Exportable:
    """Return the model of numbers; its exported head includes the scale of the labels."""
    scale = Scale.load(checkpoint.file("labels.json"))
    exported = text_models.classifier(
        config, checkpoint, 1, lambda logits: {"score": scale.labels(logits[:, 0])}, "{}",
        load='from transformers import pipeline; pipeline("text-classification", "{}", '
        'truncation=True, function_to_apply="none")',
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
