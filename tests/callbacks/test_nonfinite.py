"""Steps of ``fit`` that are not finite, also by optimizers of Keras' own wrappers."""

import json
from typing import Any

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import K, keras, tf
from amp_xla.callbacks import Run
from amp_xla.errors import AmpXlaError
from tests.support.small_fit import KilledAfter, X, build, fit, once, resumed

pytestmark = pytest.mark.slow

adam = backend.bert4keras("optimizers").Adam
BAD = X.copy()
BAD[3] = np.nan

OPTIMIZERS = {
    "Keras": keras.optimizers.SGD,
    "bert4keras": lambda: backend.bert4keras("optimizers").extend_with_weight_decay(adam)(1e-2),
}


def trained(folder, optimizer, **options):
    """Train an epoch of 26 steps; all weights are NaN after step 3 if it is applied."""
    model = build()
    if optimizer is not None:
        model.compile(OPTIMIZERS[optimizer](), "mse")
    run = Run(folder, log_every=1, **options)
    return fit(model, run, x=BAD, shuffle=False, batch_size=1, epochs=1)


APPLIED = "loss nan at loss scale 1; loss or gradients not finite, but applied: "
APPLIED += "only LossScaleOptimizer skips it"


@pytest.mark.once
def test_a_step_that_was_skipped_is_counted(tmp_path, capfd):
    assert trained(tmp_path, None)["skipped_steps"] == [1]
    assert "26 steps (1 skipped)" in capfd.readouterr().err


@pytest.mark.once
@pytest.mark.parametrize("optimizer, policy, words", [
    ("Keras", "skip", "step 22: loss nan .*: 20 not finite in a row, and there"),
    ("bert4keras", "report", "step 22: loss nan .*: 20 not finite in a row, and there"),
    ("Keras", "stop", APPLIED),
])  # fmt: skip
def test_a_step_that_was_applied_is_named(optimizer, policy, words, tmp_path, capfd):
    with pytest.raises(AmpXlaError, match=words):
        trained(tmp_path, optimizer, on_nonfinite=policy)
    said = capfd.readouterr().err
    assert said.count(APPLIED) == (policy != "stop")
    assert (f"{APPLIED}; report and batch: " in said) == (policy == "report")
    assert (tmp_path / "nonfinite-00000003/report.txt").is_file() == (policy != "skip")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert not any(line["skipped_steps"] for line in lines)


def wrapped(optimizer, scale="dynamic"):
    """Return Keras' own wrapper, on either TensorFlow."""
    kind = getattr(keras.mixed_precision, "LossScaleOptimizer", None)
    if kind is None:
        return keras.mixed_precision.experimental.LossScaleOptimizer(optimizer, scale)
    return kind(optimizer) if scale == "dynamic" else kind(optimizer, False, scale)


def keras_adam(rate: Any = 0.01) -> Any:
    return keras.optimizers.Adam(rate)


def rewriting() -> Any:
    """Return the module that turns the graph rewrite on and off."""
    module = getattr(tf, "mixed_precision", None)
    is_new = hasattr(module, "enable_mixed_precision_graph_rewrite")
    return module if is_new else tf.train.experimental  # TensorFlow 1.15


def rewritten(optimizer):
    return rewriting().enable_mixed_precision_graph_rewrite(optimizer)


SCALED = {
    "dynamic": lambda: wrapped(keras_adam()),
    "fixed": lambda: wrapped(keras_adam(), 128.0),
    "schedule": lambda: wrapped(
        keras_adam(keras.optimizers.schedules.ExponentialDecay(0.01, 3, 0.5))
    ),
    "rewrite": lambda: rewritten(keras_adam()),
    "train": lambda: rewritten(tf.train.AdamOptimizer(0.01)),
}


@pytest.mark.parametrize("name", ["dynamic", "rewrite", "train", *once("fixed", "schedule")])
def test_keras_own_loss_scaling_trains_and_resumes(name, tmp_path, request):
    request.addfinalizer(rewriting().disable_mixed_precision_graph_rewrite)
    if hasattr(keras.mixed_precision, "experimental"):  # 1.15 remembers another test's policy
        keras.mixed_precision.experimental.set_policy(None)
    rows = np.array(np.random.RandomState(0).randn(26, 4))
    rows[0] = 1e9 if name == "fixed" else np.nan  # one batch in each epoch of 7 is skipped

    def trained(run, *more):
        model, seen = build(dropout=0.0), []
        model.compile(SCALED[name](), "mse")
        log = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(logs))
        fit(model, run, log, *more, x=rows)
        state = K.batch_get_value(sorted(tf.global_variables(), key=lambda v: v.name))
        return [array.tobytes() for array in model.get_weights() + state], seen[-1]

    (whole, logs), (again, _) = resumed(trained, tmp_path, KilledAfter(17))
    assert again == whole
    scale, skipped = (128.0, 0) if name == "fixed" else (2.0**15 / 2**4, 4)
    assert (logs["loss_scale"], logs["skipped_steps"]) in [(scale, skipped), (2 * scale, skipped)]
