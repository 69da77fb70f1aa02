"""bert4keras' own optimizers: what they compute is what they say, or they are refused."""

from __future__ import annotations

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import keras
from amp_xla.errors import UnsupportedError
from amp_xla.precision.optimizer import LossScaleOptimizer

pytestmark = pytest.mark.usefixtures("cleared")
optimizers = backend.bert4keras("optimizers")


def averaged(base, outer=()):
    """Extend a class by averages, and these by ``outer``."""
    cls = optimizers.extend_with_exponential_moving_average(base, name="Averaged")
    for kind in outer:
        cls = getattr(optimizers, f"extend_with_{kind}")(cls, name=f"Averaged_{kind}")
    return cls(learning_rate=0.01, ema_momentum=0.9)


@pytest.mark.parametrize("make, wrapped", [
    (lambda: averaged(optimizers.extend_with_weight_decay(optimizers.Adam)), True),
    (lambda: averaged(optimizers.Adam, ["weight_decay", "piecewise_linear_lr"]), False),
    (lambda: averaged(keras.optimizers.SGD), True),
], ids=["above weight decay", "below two", "keras sgd"])  # fmt: skip
def test_embeddings_are_averaged_once_per_step(make, wrapped):
    model = keras.models.Sequential([
        keras.layers.Embedding(10, 4, input_length=3), keras.layers.Flatten(),
        keras.layers.Dense(1),
    ])  # fmt: skip
    optimizer = make()
    model.compile(LossScaleOptimizer(optimizer, 1000) if wrapped else optimizer, "mse")
    means = [0.0 * weight for weight in model.get_weights()]
    for _ in range(4):
        model.train_on_batch(np.arange(9).reshape(3, 3) % 7, np.ones([3, 1]))  # rows twice
        means = [0.9 * mean + 0.1 * w for mean, w in zip(means, model.get_weights())]
    optimizer.apply_ema_weights()
    for seen, mean in zip(model.get_weights(), means):
        np.testing.assert_allclose(seen, mean / (1 - 0.9**4), rtol=1e-5)


def test_lookahead_which_halves_all_weights_is_refused():
    decay = optimizers.extend_with_weight_decay(optimizers.Adam)
    for extend, base in (
        (optimizers.extend_with_lookahead, decay),
        (optimizers.extend_with_lookahead_v2, keras.optimizers.Adam),
    ):
        with pytest.raises(UnsupportedError, match="at 0, so .* halve all weights; remove it"):
            extend(base, name="L")(learning_rate=1e-3)
