"""Checkpoints: every kind of damage is seen, named and fallen back from; nothing bad is written."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np
import pytest

import amp_xla.setup  # noqa: F401
from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.commands import verify
from amp_xla.process import durable
from amp_xla.training.checkpoint import CheckpointError, bundle, directory, find, manifest
from amp_xla.training.checkpoint.checkpoints import Checkpoints, NotFiniteError, restore_weights

SHAPES = {"weight": (31, 7), "slot": (5,), "half": (3,)}


@pytest.fixture
def variables() -> Iterator[List[Any]]:
    backend.K.clear_session()
    made = [
        tf.get_variable("weight", SHAPES["weight"], tf.float32),
        tf.get_variable("slot", SHAPES["slot"], tf.float64, tf.ones_initializer()),
        tf.get_variable("half", SHAPES["half"], tf.bfloat16, tf.ones_initializer()),
        tf.get_variable("count", (), tf.int64, tf.zeros_initializer()),
    ]
    backend.session().run(tf.global_variables_initializer())
    yield made
    backend.K.clear_session()


def loop_state(step: int, row: int = 0) -> Dict[str, Any]:
    identity: Dict[str, Any] = {"assets": {}, "config": {}}
    return {"loop": {"step": step, "not_finite_in_a_row": row}, "identity": identity}


def saved(folder: Path, variables: List[Any], steps: Tuple[int, ...], keep: int = 9) -> Checkpoints:
    folder.mkdir(parents=True, exist_ok=True)
    checkpoints = Checkpoints(folder, variables, keep)
    for step in steps:
        backend.session().run(variables[3].assign(step))
        checkpoints.save(step, loop_state(step), best=step == steps[0])
        checkpoints.wait()
    return checkpoints


def test_what_was_saved_comes_back(tmp_path: Path, variables: List[Any]) -> None:
    checkpoints = saved(tmp_path, variables, (1, 2))
    session = backend.session()
    before = session.run(variables)
    session.run([v.assign(tf.zeros_like(v)) for v in variables])
    assert checkpoints.restore(checkpoints.newest_whole())["loop"]["step"] == 2
    for old, new in zip(before, session.run(variables)):
        assert np.array_equal(old, new)
    session.run(variables[0].assign(tf.zeros_like(variables[0])))
    restore_weights(tmp_path / "step-00000001", variables[:1])
    assert np.array_equal(before[0], session.run(variables[0]))


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "found", "wanted"),
    [
        ("weight", (7, 31), tf.float32, "float32[31,7]", "float32[7,31]"),
        ("weight", (31, 7), tf.float64, "float32[31,7]", "float64[31,7]"),
        ("other", (1,), tf.float32, "none", "float32[1]"),
    ],
)
def test_tensors_are_compared_before_they_are_restored(
    tmp_path: Path, variables: List[Any], name: str, shape: Any, dtype: Any, found: str, wanted: str
) -> None:
    saved(tmp_path, variables, (1,))
    backend.K.clear_session()
    made = tf.get_variable(name, shape, dtype, tf.ones_initializer())
    backend.session().run(tf.global_variables_initializer())
    said = rf"tensor {name}: found {re.escape(found)}, wanted {re.escape(wanted)}"
    with pytest.raises(CheckpointError, match=said):
        restore_weights(tmp_path / "step-00000001", [made])
    with pytest.raises(CheckpointError, match="holds another model.*tensor count: found int64"):
        Checkpoints(tmp_path, [made]).restore(tmp_path / "step-00000001")
    assert np.array_equal(backend.session().run(made), np.ones(shape))


def test_a_snapshot_does_not_change_with_later_steps(variables: List[Any]) -> None:
    made = bundle.Bundle(variables)
    weight = variables[0]
    session = backend.session()
    dense = weight.assign_add(tf.ones_like(weight))
    sparse = weight.scatter_add(tf.IndexedSlices(tf.ones([1, 7]), tf.constant([3])))
    for update in (dense, sparse, dense, sparse):
        held = made.snapshot()
        copies = [np.array(array) for array in held]
        session.run(update)
        assert all(np.array_equal(a, b) for a, b in zip(held, copies))
        assert not np.array_equal(made.snapshot()[0], copies[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_no_nan_reaches_the_disk(
    tmp_path: Path, variables: List[Any], which: int, bad: float
) -> None:
    checkpoints = saved(tmp_path, variables, (1,))
    variable = variables[which]
    value = np.ones(variable.shape.as_list(), np.float32)
    value.reshape(-1)[-1] = bad
    backend.session().run(variable.assign(tf.cast(tf.constant(value), variable.dtype)))
    checkpoints.save(2, loop_state(2))
    with pytest.raises(NotFiniteError, match=f"{variable.op.name} is not finite.*step-00000001"):
        checkpoints.wait()
    assert [p.name for p in manifest.steps(tmp_path)] == ["step-00000001"]
    allowed = Checkpoints(tmp_path, variables, unchecked=[variable])
    allowed.save(3, loop_state(3))
    allowed.wait()


def damages(size: int) -> List[Tuple[str, Any]]:
    cuts = [(f"cut to {n}", lambda data, n=n: data[:n]) for n in {0, 1, size // 2, size - 1}]
    flips = [
        (
            f"bit of byte {at} flipped",
            lambda data, at=at: data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :],
        )
        for at in {0, size // 3, size - 1}
    ]
    return cuts + flips + [("missing", lambda data: None)]


def test_every_damage_to_every_file_is_named_and_survived(
    tmp_path: Path, variables: List[Any], capsys: Any
) -> None:
    checkpoints = saved(tmp_path / "run" / "checkpoints", variables, (1, 2))
    folder = checkpoints.folder / "step-00000002"
    files = sorted(folder.iterdir())
    assert [f.name for f in files] == [
        "MANIFEST", "state.json", "tensors.data-00000-of-00001", "tensors.index",
    ]  # fmt: skip
    tried = 0
    for path in files:
        data = path.read_bytes()
        for how, damage in damages(len(data)):
            new = damage(data)
            if new is None:
                path.unlink()
            else:
                path.write_bytes(new)
            wrong = manifest.problems(folder)
            assert len(wrong) == 1, (path.name, how, wrong)
            assert wrong[0].startswith(f"{path.name}: "), (how, wrong)
            chosen = checkpoints.newest_whole()
            assert chosen is not None
            assert chosen.name == "step-00000001"
            said = capsys.readouterr().err
            assert "step-00000002 is damaged" in said
            assert path.name in said
            with pytest.raises(CheckpointError, match=path.name):
                find(tmp_path / "run", "last")
            assert verify.main(["--run", str(tmp_path / "run")]) == 1
            assert path.name in capsys.readouterr().out
            path.write_bytes(data)
            tried += 1
        assert manifest.problems(folder) == []
    assert tried == 32
    (folder / "stranger").write_bytes(b"x")
    assert manifest.problems(folder) == ["stranger: foreign, not in the manifest"]
    (folder / "stranger").unlink()
    shutil.copytree(str(folder), str(checkpoints.folder / "step-00000003"))
    assert "belongs to step-00000002" in manifest.problems(checkpoints.folder / "step-00000003")[0]


def test_damaged_pointers_are_named_and_repaired(
    tmp_path: Path, variables: List[Any], capsys: Any
) -> None:
    checkpoints = saved(tmp_path / "run" / "checkpoints", variables, (1, 2))
    for pointer in (manifest.LAST, manifest.BEST):
        path = checkpoints.folder / pointer
        data = path.read_bytes()
        for how, damage in damages(len(data))[:-1]:
            path.write_bytes(damage(data))
            with pytest.raises(ValueError, match=pointer):
                manifest.pointed(checkpoints.folder, pointer)
            assert verify.main(["--run", str(tmp_path / "run")]) == 1, how
            assert pointer in capsys.readouterr().out
            newest = checkpoints.newest_whole()
            assert newest is not None
            directory.settle(newest, 1)
            assert path.read_bytes() == data
    with pytest.raises(CheckpointError, match="allowed: best, last, step-00000001"):
        find(tmp_path / "run", "step-7")


def test_settling_sets_damaged_ones_aside_and_removes_unfinished(
    tmp_path: Path, variables: List[Any], capsys: Any
) -> None:
    checkpoints = saved(tmp_path, variables, (1, 2))
    (tmp_path / "step-00000002" / "state.json").write_text("{}")
    (tmp_path / ".tmp-step-00000003").mkdir()
    (tmp_path / ".tmp-step-00000003" / "tensors.index").write_text("half")
    newest = checkpoints.newest_whole()
    assert newest is not None
    directory.settle(newest, 1)
    assert sorted(os.listdir(str(tmp_path))) == [
        "BEST", "LAST", "damaged-step-00000002", "step-00000001",
    ]  # fmt: skip
    assert manifest.pointed(tmp_path, manifest.LAST) == "step-00000001"
    checkpoints.save(2, loop_state(2))
    checkpoints.wait()
    directory.settle(newest, 1)  # one of this name was set aside before
    assert (tmp_path / "damaged-step-00000002+").is_dir()
    checkpoints.save(2, loop_state(2))
    checkpoints.wait()
    (tmp_path / "step-00000001" / "state.json").write_text("")
    (tmp_path / "step-00000002" / "state.json").write_text("")
    with pytest.raises(CheckpointError, match="no whole checkpoint left"):
        checkpoints.newest_whole()


def test_the_newest_and_the_best_are_kept(tmp_path: Path, variables: List[Any]) -> None:
    saved(tmp_path, variables, (1, 2, 3, 4), keep=2)
    names = [p.name for p in manifest.steps(tmp_path)]
    assert names == ["step-00000001", "step-00000003", "step-00000004"]
    again = saved(tmp_path, variables, (4,), keep=2)
    assert [p.name for p in manifest.steps(tmp_path)][-1] == "step-00000004.1"
    assert manifest.pointed(tmp_path, manifest.BEST) == "step-00000004.1"
    with pytest.raises(CheckpointError, match="keep is 0"):
        Checkpoints(tmp_path, variables, keep=0)
    assert again.cost.written == 1


def test_training_waits_only_for_the_copy(
    tmp_path: Path, variables: List[Any], monkeypatch: Any
) -> None:
    checkpoints = saved(tmp_path, variables, (1,))
    free, entered = threading.Event(), threading.Event()
    original = bundle.Bundle.write

    def slow(this: Any, folder: Path, arrays: Any) -> None:
        entered.set()
        assert free.wait(60)
        original(this, folder, arrays)

    monkeypatch.setattr(bundle.Bundle, "write", slow)
    checkpoints.save(2, loop_state(2))
    assert entered.wait(60)
    assert checkpoints.busy
    # The loop goes on and changes what is being written; the checkpoint must not notice.
    backend.session().run(variables[3].assign(99))
    free.set()
    checkpoints.wait()
    assert not checkpoints.busy
    checkpoints.restore(tmp_path / "step-00000002")
    assert backend.session().run(variables[3]) == 1


def test_a_full_disk_is_reported_with_the_bytes_needed(
    tmp_path: Path, variables: List[Any], monkeypatch: Any
) -> None:
    checkpoints = saved(tmp_path, variables, (1,))

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(durable, "write", full)
    checkpoints.save(2, loop_state(2))
    with pytest.raises(CheckpointError, match=r"No space left on device; it needs [\d,]+ bytes"):
        checkpoints.wait()
    assert sorted(os.listdir(str(tmp_path))) == ["BEST", "LAST", "step-00000001"]
    assert manifest.problems(tmp_path / "step-00000001") == []


def test_a_roll_back_finds_one_from_before_the_trouble(
    tmp_path: Path, variables: List[Any]
) -> None:
    checkpoints = saved(tmp_path, variables, (1,))
    checkpoints.save(2, loop_state(2, row=3))
    checkpoints.wait()
    newest, good = checkpoints.newest_whole(), checkpoints.newest_whole(good=True)
    assert newest is not None
    assert good is not None
    assert (newest.name, good.name) == ("step-00000002", "step-00000001")


def test_state_is_plain_json(tmp_path: Path, variables: List[Any]) -> None:
    saved(tmp_path, variables, (1,))
    text = (tmp_path / "step-00000001" / "state.json").read_text("utf-8")
    assert json.loads(text)["loop"]["step"] == 1
