"""A model with one layer that multiplies what passes it, on the way forward or back.

By several factors, as one beyond float16's range would itself be infinite, or zero.
"""

from __future__ import annotations

from typing import Any, Iterator, List, Sequence

import numpy as np

from amp_xla import backend
from amp_xla.backend import K, keras, tf
from tests.diagnose.heads import Head

FEATURES, CLASSES, BATCH = 16, 4, 8


def model(forward: Sequence[float] = (), backward: Sequence[float] = ()) -> Head:
    """First -> Planted -> Second -> Classes, in a fresh graph; ``Planted`` multiplies."""
    K.clear_session()
    tf.set_random_seed(1)

    def times(x: Any, factors: Sequence[float]) -> Any:
        for factor in factors:
            # Without the magnitude between them, constant folding would make one factor of two.
            x = tf.abs(x) * factor
        return x

    @tf.custom_gradient
    def planted(x: Any) -> Any:
        return times(tf.identity(x), forward), lambda gradient: times(gradient, backward)

    inputs = keras.layers.Input((FEATURES,), name="Features")
    x = keras.layers.Dense(32, name="First")(inputs)
    x = keras.layers.Lambda(planted, name="Planted")(x)
    x = keras.layers.Dense(32, name="Second")(x)
    output = keras.layers.Dense(CLASSES, activation="softmax", name="Classes")(x)
    built = keras.models.Model(inputs, output)
    built.compile(loss="categorical_crossentropy", optimizer=keras.optimizers.SGD(0.01))
    backend.session()
    return Head(built, next(batches()))


def batches() -> Iterator[List[np.ndarray]]:
    """Batches without end."""
    random = np.random.RandomState(0)
    while True:
        labels = random.randint(0, CLASSES, BATCH)
        yield [random.randn(BATCH, FEATURES).astype(np.float32), np.eye(CLASSES)[labels]]
