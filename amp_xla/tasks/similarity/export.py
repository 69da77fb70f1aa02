"""Export of similarity models."""

from __future__ import annotations

from typing import Any, Optional

from amp_xla.backend import keras, tf
from amp_xla.export.graph import Parts, exportable
from amp_xla.export.model import LINEAR, MEAN, Exportable
from amp_xla.export.text_models import classifier_of, dense, encoder_of
from amp_xla.models import encoders
from amp_xla.tasks.similarity.answers import threshold_of
from amp_xla.tasks.similarity.data import Scale, apart
from amp_xla.tasks.similarity.model import unit
from amp_xla.training.checkpoint import Checkpoint


def similarity(config: Any, checkpoint: Checkpoint) -> Exportable:
    """Return the model of a run: similarity of two texts, or the vector of a text."""
    method, scale = config.method, Scale.load(checkpoint.file("labels.json"))
    low, high = scale.low, scale.high

    def build(folder: Optional[str]) -> Parts:
        encoder = encoder_of(config, checkpoint, folder)
        if not apart(method):
            model = classifier_of(encoder.model, 1)
            score = low + (high - low) * tf.sigmoid(model.output[:, 0])
            head = dense("classifier", model.get_layer("Logits"))
            return Parts(encoder, {"similarity": score}, head, model.weights)
        model = keras.models.Model(encoder.model.inputs, encoders.pooled(encoder.model))
        threshold = threshold_of(method, scale)
        numbers = {} if threshold is None else {"threshold": threshold}
        vectors = {"vectors": unit(model.output)}
        return Parts(encoder, vectors, {}, [*model.weights, *numbers.values()], numbers)

    formula = f"{MEAN}, divided by its length"
    if not apart(method):
        formula = f"{low:g} + {high - low:g} * sigmoid({MEAN}{LINEAR})"
    return exportable(checkpoint, build, config.batches.max_length, formula=formula)
