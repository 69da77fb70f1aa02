"""A user's script, whose models are inspected and rehearsed."""

from __future__ import annotations

import amp_xla.setup  # noqa: F401

# isort: split
import sys
from typing import Any, Iterator, List, Tuple

import numpy as np
from bert4keras.backend import K, keras
from bert4keras.layers import ConditionalRandomField, Loss
from bert4keras.models import build_transformer_model
from bert4keras.optimizers import Adam
from own_data import LENGTH  # a module in the script's folder

from amp_xla.precision.optimizer import LossScaleOptimizer

LABELS, VOCABULARY = 5, 50
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position": 64, "hidden_act": "gelu",
}  # fmt: skip


def tagger() -> Any:
    """Return a model with a CRF."""
    bert = build_transformer_model(model="bert", **SIZES)
    crf = ConditionalRandomField()
    model = keras.models.Model(bert.inputs, crf(keras.layers.Dense(LABELS)(bert.output)))
    model.compile(loss=crf.sparse_loss, optimizer=LossScaleOptimizer(Adam(2e-5), 512))
    return model


class CrossEntropy(Loss):  # type: ignore[misc]
    """The loss of title generation, by add_loss."""

    def compute_loss(self, inputs: Any, mask: Any = None) -> Any:
        ids, segments, predicted = inputs
        loss = K.sparse_categorical_crossentropy(ids[:, 1:], predicted[:, :-1])
        weights = K.cast(segments[:, 1:], K.floatx())
        return K.sum(loss * weights) / K.sum(weights)


def title_writer() -> Tuple[Any, Any]:
    """Return a UniLM and a batch for it."""
    bert = build_transformer_model(model="bert", application="unilm", **SIZES)
    model = keras.models.Model(bert.inputs, CrossEntropy(2)([*bert.inputs, bert.output]))
    scale = float(sys.argv[1]) if sys.argv[1:] else 256.0
    model.compile(optimizer=LossScaleOptimizer(Adam(2e-5), scale))
    return model, (tokens(4), None)


def tokens(rows: int) -> List[np.ndarray]:
    """Return token and segment ids."""
    ids = np.random.RandomState(0).randint(5, VOCABULARY, (rows, LENGTH))
    return [ids, np.zeros_like(ids) + (np.arange(LENGTH) > 5)]


def batches() -> Iterator[Any]:
    """Yield batches for the writer."""
    while True:
        yield tokens(2), None


def tagged() -> Any:
    ids, segments = tokens(4)
    return [ids, segments * 0], ids % LABELS


def named() -> Any:
    ids, segments = tokens(4)
    return {"Input-Segment": segments * 0 + 1, "Input-Token": ids}


if __name__ == "__main__":
    raise SystemExit("it would train now")
