"""Planted overflows and underflows are found and named, forward and backward."""

from __future__ import annotations

import json
from typing import Any

import pytest

from amp_xla.rewrite import rehearse
from amp_xla.rewrite.rehearsal import Rehearsal
from tests.rewrite import planted


def rehearsed(steps: int = 3, **plant: float) -> Rehearsal:
    head = planted.model(**plant)
    found: Rehearsal = rehearse(head.model, planted.batches(), steps)
    json.dumps(found.to_json(), allow_nan=False)
    return found


def layer(found: Rehearsal, name: str) -> Any:
    return next(entry for entry in found.layers if entry.layer == name)


def test_nothing_planted_nothing_found() -> None:
    found = rehearsed()
    assert found.finding is None
    assert len(found.steps) == 3
    assert found.worst_difference < 1e-3
    assert layer(found, "First").gradient_error < 0.01
    assert not [entry for entry in found.lost if entry.layer == "Planted"]


def test_overflow_forward() -> None:
    found = rehearsed(forward=1e6)
    finding = found.finding
    assert finding is not None
    assert (finding.layer, finding.phase, finding.op, finding.half) == (
        "Planted",
        "forward",
        "Mul",
        True,
    )
    assert finding.node.startswith("Planted/")
    assert not finding.float32_too
    assert finding.source is not None
    assert "x * forward" in finding.source.code
    assert any("1e+06" in remedy for remedy in finding.remedies)
    assert any("_ADD=Mul" in remedy for remedy in finding.remedies)
    assert len(found.steps) == 1  # the first step fails, and the rehearsal ends
    assert "first non-finite node: Planted/" in str(found)


def test_overflow_backward() -> None:
    finding = rehearsed(backward=1e9).finding
    assert finding is not None
    assert (finding.layer, finding.phase) == ("Planted", "backward")
    assert not finding.float32_too


def test_underflow_forward() -> None:
    found = rehearsed(forward=1e-9)
    first = found.lost[0]
    assert (first.layer, first.phase, first.op) == ("Planted", "forward", "Mul")
    assert first.share > 0.9
    assert layer(found, "Planted").activations_lost > 0.9
    assert "Numbers that become zero in float16, forward pass" in str(found)


def test_underflow_backward_and_the_suggested_scale() -> None:
    found = rehearsed(backward=1e-8)
    assert found.finding is None
    assert found.loss_scale == 1.0
    entry = next(entry for entry in found.lost if entry.phase == "backward")
    assert entry.layer == "Planted"
    assert entry.share > 0.5
    # What the weights below it learn from: gone at scale 1, there at the suggested scale.
    first = layer(found, "First")
    assert first.gradients_lost > 0.5
    assert first.gradient_error > 0.5
    assert found.suggested_loss_scale >= 1024
    assert first.gradients_lost_then == 0.0
    assert layer(found, "Planted").backward_lost_then < 0.01
    assert layer(found, "Second").gradients_lost == 0.0
    assert f"suggested constant loss scale: {found.suggested_loss_scale:g} (now 1)" in str(found)


@pytest.mark.parametrize("exact", [False, True])
def test_the_scale_that_is_suggested_is_one_that_works(exact: bool) -> None:
    from amp_xla.precision.optimizer import LossScaleOptimizer

    head = planted.model(backward=1e-8)
    found = rehearse(head.model, planted.batches(), 2)
    head = planted.model(backward=1e-8)
    from amp_xla.backend import keras

    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.01), found.suggested_loss_scale)
    head.model.compile(loss="categorical_crossentropy", optimizer=optimizer)
    again = rehearse(head.model, planted.batches(), 2, exact=exact)
    assert again.finding is None
