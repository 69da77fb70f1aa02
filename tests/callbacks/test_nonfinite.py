"""Steps of ``fit`` that are not finite are counted and named as what the optimizer did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


def trained(folder: Path, optimizer: Any, **options: Any) -> Any:
    """Train an epoch of 26 steps; all weights are NaN after step 3 if it is applied."""
    model = build()
    if optimizer is not None:
        model.compile(OPTIMIZERS[optimizer](), "mse")
    run = Run(folder, log_every=1, **options)
    return fit(model, run, x=BAD, shuffle=False, batch_size=1, epochs=1)


@pytest.mark.parametrize("optimizer", [None, *OPTIMIZERS])
def test_a_step_counts_as_skipped_only_if_it_was(
    optimizer: Any, tmp_path: Path, capfd: Any
) -> None:
    if optimizer is None:
        assert trained(tmp_path, optimizer)["skipped_steps"] == [1]
        assert "26 steps (1 skipped)" in capfd.readouterr().err
        return
    with pytest.raises(
        AmpXlaError, match="step 22: loss nan .*: 20 not finite in a row, and there"
    ):
        trained(tmp_path, optimizer)
    said = "step 3: loss nan at loss scale 1, not finite, applied: only LossScaleOptimizer skips it"
    assert capfd.readouterr().err.count(said) == 1
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["skipped_steps"] for line in lines if line["step"] > 20] == [0, 0, 0]


@pytest.mark.parametrize("policy, words", [
    ("stop", "step 3: loss nan at loss scale 1, not finite, applied: only LossScaleOptimizer "),
    ("report", "20 not finite in a row"),
])  # fmt: skip
def test_on_nonfinite_names_what_was_done(
    policy: str, words: str, tmp_path: Path, capfd: Any
) -> None:
    with pytest.raises(AmpXlaError, match=words):
        trained(tmp_path, "Keras", on_nonfinite=policy)
    reported = "not finite, applied: only LossScaleOptimizer skips it; report and batch: "
    assert (reported in capfd.readouterr().err) == (policy == "report")
    assert (tmp_path / "nonfinite-00000003/report.txt").is_file()
