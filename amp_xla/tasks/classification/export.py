"""Export of the classifiers trained in TensorFlow."""

from __future__ import annotations

from typing import Any, Optional

from amp_xla.backend import tf
from amp_xla.data.text.labels import Labels
from amp_xla.export.graph import Parts, exportable
from amp_xla.export.model import MEAN_POOLING, Exportable
from amp_xla.export.text_models import classifier_of, dense, encoder_of
from amp_xla.training.checkpoint import Checkpoint


def classifier(config: Any, checkpoint: Checkpoint) -> Exportable:
    """Return the classifier of a run."""
    labels = Labels.load(checkpoint.file("labels.json"))
    several = config.files.separator is not None

    def build(folder: Optional[str]) -> Parts:
        encoder = encoder_of(config, checkpoint, folder)
        model = classifier_of(encoder.model, len(labels))
        chances = (tf.sigmoid if several else tf.nn.softmax)(model.output)
        return Parts(
            encoder, {"probabilities": chances, "logits": model.output},
            dense("classifier", model.get_layer("Logits")), model.weights,
        )  # fmt: skip

    formula = MEAN_POOLING.replace("softmax", "sigmoid") if several else MEAN_POOLING
    return exportable(
        checkpoint, build, config.batches.max_length, labels.names, formula=formula
    )  # fmt: skip
