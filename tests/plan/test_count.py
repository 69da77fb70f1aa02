"""The work of a step is counted in its graph."""

from __future__ import annotations

import pytest

from amp_xla.diagnose import inspect
from amp_xla.plan.count import count
from tests.support import heads

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def head() -> heads.Head:
    return heads.build("classifier")


def test_counts(head: heads.Head) -> None:
    work, inspected = count(head.model, head.batch), inspect(head.model, head.batch)
    assert sum(p.flops for p in work.products) == inspected.matmul_flops
    half = sum(p.flops for p in work.products if p.half)
    assert half / inspected.matmul_flops == pytest.approx(inspected.half_flops_share)
    weights = head.model.trainable_weights
    assert work.variables == len(weights)
    assert work.parameters == sum(w.shape.num_elements() for w in weights)
    # Fusion saves traffic, and so does half precision; what is kept is read at least once.
    assert work.kept < work.fused.full < work.unfused.full
    assert work.fused.amp < work.fused.full
    # Batch 4, length 24, hidden 32: a layer's tensors are 27 times its input, not a few and not
    # hundreds.
    assert 10 < work.kept / (4 * 4 * 24 * 32) < 100
