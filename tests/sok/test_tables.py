"""Tables spread over real ranks are the table whole: SparseOperationKit's own tests, by figures.

Alone and on two ranks over Gloo; in graphs on TensorFlow 1.15, in tf.function on 2.x.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.errors import AmpXlaError
from amp_xla.sok import saver
from amp_xla.sok.table import Rows
from tests.horovod import ROOT, need_horovod

FIGURES = ["tf1", "tf1_uint32", "tf1_two_tables", "tf2", "tf2_dense", "tf2_odd"]
MIXED = ["tf2_mixed", "tf2_dense_odd_mixed"]
SMALL = [f"small_{case}" for case in [*FIGURES[1:3], *FIGURES[4:], MIXED[1], "tf2_nan"]]
pytestmark = pytest.mark.timeout(1500)


def horovodrun(count):
    runner = str(Path(sys.executable).parent / "horovodrun")
    return [sys.executable, runner, "--gloo", "-np", str(count), "-H", f"localhost:{count}"]


def ran(folder, count, *cases):
    """Runs cases on so many ranks: {case: what each rank saw}."""
    command = [sys.executable, "-m", "tests.sok.worker", str(folder), *cases]
    if count > 1:
        need_horovod()
        command = [*horovodrun(count), *command]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=str(ROOT), timeout=900
    )
    assert done.returncode == 0, done.stdout.decode()[-6000:]
    return {
        case: [json.loads((folder / f"{case}-{count}-{r}.json").read_text()) for r in range(count)]
        for case in cases
    }


def check_figures(found):
    for case, seen in found.items():
        if "nan" in case or not ("tf1" in case or "tf2" in case):
            continue
        for steps in seen:
            apart = max(step["apart"] for step in steps)
            sparse = 1e-3 if "mixed" in case else (1e-4 if "tf2" in case else 1e-3)
            assert apart <= sparse, (case, apart)
            for step in steps:
                close = 1e-3 if "mixed" in case else 1e-5
                assert step["loss"] == pytest.approx(step["loss_whole"], rel=close), case
        kernels = [[step["kernel"] for step in steps] for steps in seen]
        assert all(kernel == kernels[0] for kernel in kernels), case  # the copied part stays one


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="module")
def alone(folder):
    return ran(folder, 1, *SMALL[:-1], "dump", "start", "refused", "ragged", "lazy")


@pytest.fixture(scope="module")
def two(folder, alone):
    """After ``alone``, whose dump is read."""
    return ran(folder, 2, *SMALL, "start", "restore", "dump")


def test_alone_it_is_an_embedding(alone):
    check_figures(alone)


@pytest.mark.horovod
@pytest.mark.slow
def test_two_ranks_hold_what_one_process_would(alone, two):
    check_figures(two)


@pytest.mark.horovod
@pytest.mark.slow
def test_a_nan_on_one_rank_is_a_skipped_step_on_both(two):
    seen = two["small_tf2_nan"]
    for steps in seen:
        scales = [step["scale"] for step in steps]
        # What a step reads of the scale is before or after its own decision, the same in all.
        assert sorted(set(scales), reverse=True) == [2.0**15, 2.0**14]
        assert steps[4]["kernel"] == steps[3]["kernel"] != steps[2]["kernel"]
        assert np.isfinite([step["kernel"] for step in steps]).all()
    assert [s["kernel"] for s in seen[0]] == [s["kernel"] for s in seen[1]]


@pytest.mark.horovod
@pytest.mark.slow
def test_a_new_table_is_the_same_on_any_number_of_ranks(alone, two):
    whole = np.array(alone["start"][0])
    assert whole.shape == (101, 4) and np.abs(whole).max() <= 0.05 and np.std(whole) > 0.025
    for rank, rows in enumerate(two["start"]):
        assert np.array_equal(whole[rank::2], np.array(rows))


@pytest.mark.horovod
@pytest.mark.slow
def test_shards_are_read_on_another_number_of_ranks(alone, two, folder):
    whole = np.arange(303, dtype=np.float32).reshape(101, 3)
    assert np.array_equal(np.array(alone["dump"][0]), whole)
    for rank, rows in enumerate(two["restore"]):  # of what one process wrote
        assert np.array_equal(np.array(rows), whole[rank::2])
    again = ran(folder, 1, "restore_of_2")["restore_of_2"][0]  # of what two wrote
    assert np.array_equal(np.array(again), whole)


def test_what_is_not_allowed_is_said(alone):
    said = alone["refused"][0]
    for text, words in zip(
        said,
        [
            ("range: slot", "has id", "allowed: 0 to 6"),
            ("combiner is 'max'; allowed: sum, mean",),
            ("slot_num is 0; allowed: 1 or more",),
            ("a table has 0 rows of 1",),
            ("global_batch_size is 0; allowed: a multiple of the 1 ranks",),
            ("shared", "is not a table"),
            ("shared", "is not a table"),
            ("nowhere must hold the files of one table", "found: none"),
            ("values of shape (6, 2) do not fit a table of [7, 2]",),
        ],
    ):
        assert all(word in text for word in words), text
    assert "1" in said[0].split("slot")[1] and "9" in said[0]


def test_ragged_ids_are_sparse_ids(alone):
    ragged, sparse = np.array(alone["ragged"][0])
    assert ragged.shape == (2, 2, 2)
    np.testing.assert_array_equal(ragged, sparse)
    assert (ragged[0, 1] == 0).all() and (ragged[0, 0] != 0).all()


def test_lazy_adam_leaves_rows_alone_that_are_not_asked_for(alone):
    adam, lazy = np.array(alone["lazy"][0])
    np.testing.assert_allclose(adam[0], lazy[0], rtol=1e-6)  # asked for in every step
    assert (adam[1] < lazy[1]).all() and np.allclose(lazy[1], 0.9, atol=1e-6)
    assert (lazy[2] == 1).all() and (adam[2] == 1).all()


def test_files_of_another_table_are_refused(tmp_path):
    wide, rows = Rows(5, 3, "t"), Rows(5, 2, "t")
    saver.write_rows(tmp_path, "t", {"t": np.zeros((5, 3), np.float32)})
    with pytest.raises(AmpXlaError, match=r"needs float32 \[5, 2\]"):
        saver.read_rows(tmp_path, "t", "t", rows)
    path = tmp_path / "t-0-of-1.safetensors"
    path.rename(tmp_path / "t-0-of-2.safetensors")
    with pytest.raises(AmpXlaError, match="lacks the rows of rank 1"):
        saver.read_rows(tmp_path, "t", "t", wide)
    (tmp_path / "t-0-of-2.safetensors").rename(tmp_path / "t-0-of-0.safetensors")
    with pytest.raises(AmpXlaError, match="found: none"):
        saver.read_rows(tmp_path, "t", "t", wide)
    path.write_bytes(b"damaged")
    with pytest.raises(AmpXlaError, match="cannot read t in"):
        saver.read_rows(tmp_path, "t", "t", wide)


@pytest.mark.horovod
@pytest.mark.slow
def test_the_tutorial_learns_on_two_ranks():
    """Its label is in the parity of one id, which a table learns by heart."""
    need_horovod()
    file = ROOT / "examples" / "sok" / f"amp_{backend.kind()}.py"
    done = subprocess.run(
        [*horovodrun(2), sys.executable, str(file), "--steps", "150", "--batch", "2048"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=str(ROOT),
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    text = done.stdout.decode()
    assert done.returncode == 0, text[-6000:]
    losses = [float(loss) for loss in re.findall(r"step \d+ loss ([\d.]+)", text)]
    assert len(losses) == 150
    assert losses[0] == pytest.approx(0.693, abs=0.01)
    assert losses[-1] < 0.6
