"""Steps of ``fit`` that are not finite are counted and named as what the optimizer did."""

import json

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import keras
from amp_xla.callbacks import Run
from amp_xla.errors import AmpXlaError
from tests.support.small_fit import X, build, fit

pytestmark = [pytest.mark.slow, pytest.mark.once]

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


APPLIED = "step 3: loss nan at loss scale 1, not finite, but applied: LossScaleOptimizer skips it"


def test_a_step_that_was_skipped_is_counted(tmp_path, capfd):
    assert trained(tmp_path, None)["skipped_steps"] == [1]
    assert "26 steps (1 skipped)" in capfd.readouterr().err


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
