"""Two real processes over Gloo: sums over ranks are what one of them would have computed."""

from __future__ import annotations

import json
from typing import Any, Dict, List

import numpy as np
import pytest

from tests.horovod import on_two_ranks

pytestmark = [pytest.mark.horovod, pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def both(tmp_path_factory: Any) -> List[Dict[str, Any]]:
    """What rank 0 and rank 1 found."""
    folder = tmp_path_factory.mktemp("reduction")
    output = on_two_ranks("tests.precision.reduction_worker", folder)
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
    found[0]["said"] = output
    return found


@pytest.mark.parametrize(("compression", "close"), [("none", 1e-7), ("fp16", 2e-3), ("bf16", 8e-3)])
def test_ordinary_gradients_are_summed(both: Any, compression: str, close: float) -> None:
    mine = [np.array(found["mine"][0]) for found in both]
    for found in both:
        np.testing.assert_allclose(found[compression][1], mine[0] + mine[1], close, close)
    assert both[0][compression] == both[1][compression]  # to the last bit, or the ranks drift apart


def test_a_gradient_of_1e_7_survives_where_a_cast_of_unscaled_ones_loses_it(both: Any) -> None:
    for compression, close in (("fp16", 2e-3), ("bf16", 8e-3)):
        np.testing.assert_allclose(both[0][compression][0], 2e-7, close)
    lost = np.abs(np.array(both[0]["unscaled"][0]) - 2e-7) / 2e-7
    assert lost.min() > 0.1


@pytest.mark.parametrize("kind", ["few", "many"])
def test_rows_of_an_embedding_are_summed_either_way(both: Any, kind: str) -> None:
    wanted = sum(np.array(found[f"{kind} here"][0]) for found in both)
    for found in both:
        np.testing.assert_allclose(found[kind][0], wanted, 1e-5, 1e-5)
    assert both[0][kind] == both[1][kind]
    # 1600 rows of 32 bytes and their ids are what a table of 1000 is, there and back.
    assert "of 1000 x 8: its rows are sent if a batch has fewer than 1600" in both[0]["said"]


def test_nan_on_one_rank_is_skipped_on_both(both: Any) -> None:
    zero, one = (found["skipping"] for found in both)
    assert zero == one
    (first, scale), (second, halved), (third, _) = zero
    assert second == first
    assert halved == scale / 2
    assert third != second


def test_the_first_tensor_that_differs_is_named(both: Any) -> None:
    for found in both:
        assert found["differing"].startswith("other is not the same on all ranks: rank 1 differs")


def test_python_values_are_exchanged(both: Any) -> None:
    for found in both:
        assert found["gathered"] == [{"rank": 0, "text": ""}, {"rank": 1, "text": "ä"}]
        assert found["first"] == "of rank 0" and found["all"] == [0, 10]
        assert found["total"] == [[1, 3], [5, 7]]
