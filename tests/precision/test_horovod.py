"""Two real processes over Gloo: one decision, one loss scale, sums over ranks."""

import json

import numpy as np
import pytest

from tests.support.horovod import on_two_ranks

SOK = ("sok", "sok_reduced", "sok_minimized")
SKIPPING = ("reducing", "clipped", "distributed", "keras_distributed", "summed", *SOK)
# The first run on a machine compiles Horovod, which takes minutes; later ones find the wheel.
pytestmark = [pytest.mark.horovod, pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Return case -> results of (rank 0, rank 1)."""
    folder = tmp_path_factory.mktemp("ranks")
    on_two_ranks("tests.support.horovod_worker", folder)
    found = {}
    for file in folder.glob("*-0.json"):
        case = file.name[: -len("-0.json")]
        found[case] = [json.loads((folder / f"{case}-{rank}.json").read_text()) for rank in (0, 1)]
    return found


def column(steps, key):
    return [step[key] for step in steps]


@pytest.mark.parametrize("case", SKIPPING)
def test_ranks_skip_together_and_keep_equal_scales(ranks, case):
    zero, one = ranks[case]
    assert column(zero, "state") == column(one, "state")
    assert column(zero, "shared") == column(one, "shared")
    # 8; nan halves; one finite; inf halves; two finite double: 8, 4, 4, 2, 2, 4.
    scales = [state[2] for state in column(zero, "state")]
    assert scales == [8.0, 4.0, 4.0, 2.0, 2.0, 4.0]
    assert zero[-1]["state"][:2] == [4.0, 2.0]
    for steps in (zero, one):
        for bad in (1, 3):  # NaN, then infinity, on rank 1 only
            assert steps[bad]["shared"] == steps[bad - 1]["shared"]
            assert steps[bad]["own"] == steps[bad - 1]["own"]
        assert steps[2]["own"] != steps[1]["own"]


def test_tables_stay_each_ranks_own_and_shared_gradients_are_averaged_once(ranks):
    zero, one = ranks["reducing"]
    assert zero[-1]["own"] != one[-1]["own"]
    moved = np.abs(np.subtract(zero[0]["own"], zero[-1]["own"])).sum(axis=1)
    assert set(np.flatnonzero(moved)) == {1, 3, 5}  # rank 0's rows; rank 1 trains row 2
    for case in SOK:
        assert ranks[case] == ranks["reducing"]


def test_the_ranks_clip_by_one_norm(ranks):
    """Learning rate 1: the update's length over both ranks' variables is the clip norm."""
    zero, one = ranks["clipped"]
    for before, after in ((1, 2), (3, 4), (4, 5)):
        moved = [np.subtract(a, b) for a, b in zip(zero[before]["shared"], zero[after]["shared"])]
        moved += [np.subtract(r[before]["own"], r[after]["own"]) for r in (zero, one)]
        length = np.sqrt(sum(float((d**2).sum()) for d in moved))
        assert length == pytest.approx(0.01, rel=1e-3)


def test_a_window_bad_on_one_rank_is_skipped_on_both(ranks):
    zero, one = ranks["accumulating"]
    shared = column(zero, "shared")
    assert shared == column(one, "shared")
    assert shared[0] == shared[1] == shared[2] == shared[3]  # two windows, each with a bad half
    assert shared[4] == shared[3] and shared[5] != shared[4]
    assert [step["state"][:3] for step in zero] == [step["state"][:3] for step in one]
    assert zero[-1]["state"][:3] == [1.0, 2.0, 2.0]


@pytest.mark.parametrize("compression, close", [("none", 1e-7), ("fp16", 2e-3)])
def test_gradients_are_summed_also_those_of_1e_7(ranks, compression, close):
    zero, one = ranks["sums"]
    assert zero[compression] == one[compression]  # to the last bit, or the ranks drift apart
    tiny, plain = zero[compression]
    np.testing.assert_allclose(plain, np.add(zero["mine"], one["mine"]), close, close)
    np.testing.assert_allclose(tiny, 2e-7, close)
    # A cast of unscaled gradients loses them.
    assert (np.abs(np.array(zero["unscaled"]) - 2e-7) / 2e-7).min() > 0.1


def test_rows_of_an_embedding_are_summed(ranks):
    zero, one = ranks["sums"]
    np.testing.assert_allclose(
        zero["rows"], np.add(zero["rows here"], one["rows here"]), 1e-5, 1e-5
    )
    assert zero["rows"] == one["rows"]
