"""Planted overflows and underflows are found and named, forward and backward."""

from __future__ import annotations

import json
from typing import Any, Sequence

import pytest

from amp_xla.backend import keras
from amp_xla.diagnose import rehearse
from amp_xla.diagnose.rehearsal import Rehearsal
from amp_xla.precision.optimizer import LossScaleOptimizer
from tests.diagnose import planted


def rehearsed(steps: int = 3, **plant: Sequence[float]) -> Rehearsal:
    head = planted.model(**plant)
    found: Rehearsal = rehearse(head.model, planted.batches(), steps)
    json.dumps(found.to_json(), allow_nan=False)
    return found


def layer(found: Rehearsal, name: str) -> Any:
    return next(entry for entry in found.layers if entry.layer == name)


@pytest.mark.slow
def test_nothing_planted_nothing_found() -> None:
    found = rehearsed()
    assert found.finding is None
    assert len(found.steps) == 3
    assert found.worst_difference < 1e-3
    assert layer(found, "First").gradient_error < 0.01
    assert not [entry for entry in found.lost if entry.layer == "Planted"]


def test_overflow_forward() -> None:
    found = rehearsed(forward=(1e3, 1e3))
    finding = found.finding
    assert finding is not None
    assert (finding.layer, finding.phase, finding.op) == ("Planted", "forward", "Mul")
    assert finding.node.startswith("Planted/")
    assert finding.half
    assert not finding.float32_too
    assert "and float16 ends at 65504" in finding.problem
    assert finding.source is not None
    assert "x = tf.abs(x) * factor" in finding.source.code
    assert "times what float16 holds" in finding.remedies[0]
    assert "_ADD=Mul" in finding.remedies[-1]
    assert len(found.steps) == 1  # the first step fails, and the rehearsal ends
    assert layer(found, "Planted").largest_activation > 1.0
    assert "first non-finite node: Planted/" in str(found)


@pytest.mark.slow
def test_a_factor_that_is_itself_too_large() -> None:
    finding = rehearsed(forward=(1e6,)).finding
    assert finding is not None
    assert (finding.layer, finding.phase, finding.op) == ("Planted", "forward", "Mul")
    assert "a constant of 1e+06 is infinite in float16" in finding.problem
    assert "replace the constant 1e+06" in finding.remedies[0]


@pytest.mark.slow
def test_overflow_backward() -> None:
    finding = rehearsed(backward=(1e4, 1e4)).finding
    assert finding is not None
    assert (finding.layer, finding.phase, finding.op) == ("Planted", "backward", "Mul")
    assert not finding.float32_too
    assert finding.half


@pytest.mark.slow
def test_underflow_forward() -> None:
    found = rehearsed(forward=(1e-5, 1e-5))
    first = found.lost[0]
    assert (first.layer, first.phase, first.op) == ("Planted", "forward", "Mul")
    assert first.share > 0.9
    assert layer(found, "Planted").activations_lost > 0.4
    assert "Numbers that become zero in float16, forward pass" in str(found)


def test_underflow_backward_and_the_suggested_scale() -> None:
    found = rehearsed(backward=(1e-2, 1e-5))
    assert found.finding is None
    assert found.loss_scale == 1.0
    entry = next(entry for entry in found.lost if entry.phase == "backward")
    assert (entry.layer, entry.op) == ("Planted", "Mul")
    assert entry.share > 0.5
    # What the weights below it learn from: gone at scale 1, there at the suggested scale.
    first = layer(found, "First")
    assert first.gradients_lost > 0.5
    assert first.gradient_error > 0.5
    assert found.suggested_loss_scale >= 1024
    assert first.gradients_lost_then < 0.01
    assert layer(found, "Planted").backward_lost_then < 0.01
    assert layer(found, "Second").gradients_lost == 0.0
    assert f"suggested constant loss scale: {found.suggested_loss_scale:g} (now 1)" in str(found)


@pytest.mark.parametrize("exact", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_training_at_such_a_scale_is_finite(exact: bool) -> None:
    head = planted.model(backward=(1e-2, 1e-5))
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.01), 4096.0)
    head.model.compile(loss="categorical_crossentropy", optimizer=optimizer)
    again = rehearse(head.model, planted.batches(), 2, exact=exact)
    assert again.finding is None
    assert again.exact is exact
    assert again.worst_difference < 1e-3
