"""Updates in few programs of XLA, at the same bits."""

import functools
import re

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import K, configuring, keras, tf
from amp_xla.precision.optimizer import LossScaleOptimizer
from tests.support.running import run_python

OPTIMIZERS = backend.bert4keras("optimizers")
DECAYING = {"weight_decay_rate": 0.1, "exclude_from_weight_decay": ["bias"]}
EXTENDED = [
    ((), {}),
    (("weight_decay",), DECAYING),
    (("weight_decay", "layer_adaptation"), DECAYING),
    (("piecewise_linear_lr",), {"lr_schedule": {2: 1.0, 4: 0.1}}),
    (("exponential_moving_average",), {"ema_momentum": 0.9}),
    (("lazy_optimization",), {"include_in_lazy_optimization": ["Embedding"]}),
]


def extended(names, **given):
    """Return bert4keras' Adam with extensions."""
    cls = OPTIMIZERS.Adam
    for name in names:
        cls = getattr(OPTIMIZERS, f"extend_with_{name}")(cls)
    return cls(0.01, **given)


class Own(keras.optimizers.Optimizer):
    """Updates that read their moments in the order of ``form``."""

    def __init__(self, form, **given):
        super().__init__(name="Own", **given)
        self.form = form

    def _create_slots(self, variables):
        for variable in variables:
            self.add_slot(variable, "m")
            self.add_slot(variable, "c")

    def _resource_apply_dense(self, gradient, variable):
        m, c = self.get_slot(variable, "m"), self.get_slot(variable, "c")
        first = K.update(m, 0.5 * m + gradient)
        with tf.control_dependencies([first]):
            norm = tf.sqrt(tf.reduce_sum(m * m))
            waits = K.update(c, c + 1.0) if self.form == "counter" else norm
            if self.form == "branch":
                return K.update(
                    variable, variable - tf.cond(norm > 1.0, lambda: m / norm, lambda: m)
                )
        with tf.control_dependencies([waits]):
            return K.update(variable, variable - 0.1 * m / norm)

    def _resource_apply_sparse(self, gradient, variable, indices):
        rows = tf.IndexedSlices(gradient, indices, K.shape(variable))
        return self._resource_apply_dense(tf.convert_to_tensor(rows), variable)

    def get_config(self):
        return super().get_config()


def trained(optimizer):
    """Return all variables after a few steps of a model with an embedding; one overflows."""
    tokens = keras.layers.Input([4], dtype="int32")
    hidden = keras.layers.Embedding(9, 4, name="Embedding")(tokens)
    hidden = keras.layers.Dense(3, activation="tanh")(keras.layers.Flatten()(hidden))
    model = keras.models.Model(tokens, keras.layers.Dense(1)(hidden))
    random = np.random.RandomState(0)
    for variable in model.weights:
        K.set_value(variable, random.randn(*K.int_shape(variable)))
    model.compile(LossScaleOptimizer(optimizer, 1000), "mse")
    for step in range(6):
        targets = random.randn(8, 1) if step != 3 else np.full([8, 1], np.inf)
        model.train_on_batch(random.randint(0, 9, [8, 4]), targets)
    weights = K.batch_get_value(optimizer.variables() + model.weights)
    K.clear_session()
    return weights


@pytest.mark.parametrize("make, rounding", [
    *((functools.partial(extended, names, **given), 0.0) for names, given in EXTENDED),
    (lambda: OPTIMIZERS.AdaFactor(0.01), 1e-6),  # computes its decay anew for each use
    *((functools.partial(Own, form), 0.0) for form in ("norm", "counter", "branch")),
    (lambda: keras.optimizers.Adam(0.01), 0.0),
    (lambda: keras.optimizers.SGD(0.01, momentum=0.9), 0.0),
])  # fmt: skip
def test_updates_are_those_without_xla(make, rounding, cleared, monkeypatch):
    usual = trained(make())
    monkeypatch.setattr(configuring, "compiles", lambda: True)
    for one, other in zip(trained(make()), usual):
        np.testing.assert_allclose(one, other, rtol=rounding, atol=rounding)


@pytest.mark.slow
def test_a_script_is_a_few_programs_that_are_compiled_once(tmp_path):
    env = {"AMP_XLA_XLA": "on", "XLA_FLAGS": "--xla_dump_to=programs --xla_dump_hlo_as_text"}
    done = run_python("-m", "tests.precision.compiled_script", "2", env=env, cwd=tmp_path)
    clusters = int(re.search(r"(\d+) XLA clusters", done.err + done.out).group(1))
    assert clusters <= 5, (
        "before, a model of two layers had 150, and each weight added two or three"
    )
    assert ("executed nodes are " in done.err) == (backend.half_dtype()[0] is not None)
    programs = re.findall(r"step (\d): .*, (\d+) programs", done.out)
    assert [step for step, _ in programs] == list("01234") and len({n for _, n in programs}) == 1
