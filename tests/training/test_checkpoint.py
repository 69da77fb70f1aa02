"""Checkpoints: each kind of damage is named and survived, and nothing bad is written."""

import dataclasses
import errno
import functools
import hashlib
import math
import os
import shutil
from unittest import mock

import numpy as np
import pytest

from amp_xla.commands import verify
from amp_xla.data.text.labels import Labels, Scale
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.models.options import EncoderOptions
from amp_xla.models.weights.pretrained import encoded
from amp_xla.training import checkpoint
from amp_xla.training.checkpoint import CheckpointError
from amp_xla.training.loop import Loop
from amp_xla.training.manifest import manifest_of, read_manifest
from amp_xla.training.state import LoopState
from tests.support import run_folders as runs

pytestmark = pytest.mark.once

FIRST, SECOND = "step-00000001", "step-00000002"


def names(folder):
    return [path.name for path in checkpoint.steps(folder)]


def test_every_damage_to_every_file_is_named_and_survived(tmp_path, capsys):
    folder = tmp_path / "run" / "checkpoints"
    runs.checkpointed(folder, 1)
    path = runs.checkpointed(folder, 2)
    files = sorted(path.iterdir())
    assert [f.name for f in files] == [
        "manifest.json", "state.json", "tensors.safetensors", "vocab.txt",
    ]  # fmt: skip
    for file in files:
        data = file.read_bytes()
        size = len(data)
        damages = {f"cut to {n}": data[:n] for n in {0, 1, size // 2, size - 1}}
        for at in {0, size // 3, size - 1}:
            damages[f"bit of {at}"] = data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
        for how, damage in {**damages, "missing": None}.items():
            file.unlink()
            if damage is not None:
                file.write_bytes(damage)
            wrong = checkpoint.problems(path)
            assert [line.split(":")[0] for line in wrong] == [file.name], (how, wrong)
            assert checkpoint.newest(folder).path.name == FIRST
            said = capsys.readouterr().err
            assert f"{SECOND} is damaged" in said and file.name in said
            with pytest.raises(CheckpointError, match=f"{file.name}.*whole checkpoints: {FIRST}$"):
                checkpoint.find(tmp_path / "run", "last")
            assert verify.main(["--run", str(tmp_path / "run")]) == 1
            assert file.name in capsys.readouterr().out
            file.write_bytes(data)
        assert checkpoint.problems(path) == []
    (path / "stray").write_bytes(b"x")
    assert checkpoint.problems(path) == ["stray: not in the manifest"]
    (path / "stray").unlink()
    shutil.copytree(str(path), str(folder / "step-00000003"))
    assert "belongs to step-00000002" in checkpoint.problems(folder / "step-00000003")[0]


FILES = "state.json", "tensors.safetensors", "manifest.json", "vocab.txt"


@pytest.mark.parametrize("name", [*FILES, SECOND])
@pytest.mark.parametrize("code", ["EACCES", "EIO", "ESTALE", "EMFILE"])
def test_what_cannot_be_read_is_no_damage(tmp_path, monkeypatch, name, code):
    """Nothing is set aside: with the right permission or on another day the files are whole."""
    run, real = tmp_path / "run", (os.open, os.listdir)
    folder = run / "checkpoints"
    for step in (1, 2):
        runs.checkpointed(folder, step)

    def failing(call, path, *arguments, **named):
        if str(path).endswith(str(folder / SECOND / name if name in FILES else folder)):
            raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)), str(path))
        return call(path, *arguments, **named)

    for call in real:
        monkeypatch.setattr(os, call.__name__, functools.partial(failing, call))
    checks = (
        checkpoint.newest,
        lambda _: checkpoint.find(run),
        lambda _: checkpoint.find(run, "last"),
    )
    for check in (*checks, lambda _: verify.main(["--run", str(run)])):
        with pytest.raises((CheckpointError, OSError), match=os.strerror(getattr(errno, code))):
            check(folder)
    training = mock.Mock(**{"run.checkpoints": folder, "run.continuing": "continue"})
    assert name not in FILES or Loop._resumable(training) == f"{SECOND} cannot be read"
    monkeypatch.undo()
    assert checkpoint.newest(folder).path.name == SECOND


def test_files_have_the_mode_of_the_umask(tmp_path):
    for mask in (0o002, 0o027, 0o077):
        old = os.umask(mask)
        try:
            path = runs.checkpointed(tmp_path / str(mask), 1)
        finally:
            os.umask(old)
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.iterdir()}
        assert modes == dict.fromkeys(FILES, 0o666 & ~mask)
        assert path.stat().st_mode & 0o777 == 0o777 & ~mask


def test_what_is_no_file_of_the_folder_or_has_another_size_is_not_read(tmp_path):
    path = runs.checkpointed(tmp_path / "checkpoints", 1)
    manifest, tensors = path / "manifest.json", path / "tensors.safetensors"
    files, whole = read_manifest(path), manifest.read_bytes()
    for name in ("../state.json", "/etc/hostname"):
        manifest.write_bytes(manifest_of(path.name, {**files, name: {"bytes": 1, "sha256": "0"}}))
        assert checkpoint.problems(path) == [f"{name}: missing"]
    manifest.write_bytes(whole)
    size = tensors.stat().st_size
    os.truncate(str(tensors), 1 << 42)
    assert checkpoint.problems(path) == ["tensors.safetensors: content differs from its SHA-256"]
    os.truncate(str(tensors), size)
    (path / "state.json").rename(tmp_path / "elsewhere")
    (path / "state.json").symlink_to(tmp_path / "elsewhere")
    assert checkpoint.problems(path) == ["state.json: not a regular file"]
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    assert checkpoint.steps(path.parent) == []


def test_damaged_checkpoints_are_set_aside(tmp_path):
    runs.checkpointed(tmp_path, 1)
    for _ in range(2):  # the second one finds the name of the first
        runs.checkpointed(tmp_path, 2)
        (tmp_path / SECOND / "state.json").write_text("{}")
        checkpoint.set_aside_damaged(checkpoint.newest(tmp_path))
    assert sorted(os.listdir(str(tmp_path))) == [f"damaged-{SECOND}", f"damaged-{SECOND}+", FIRST]
    (tmp_path / FIRST / "state.json").write_text("")
    with pytest.raises(CheckpointError, match="no whole checkpoint left"):
        checkpoint.newest(tmp_path)


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ([0.5, 0.4, 0.4, 0.6], 2),
        ([None, math.nan, 0.3, math.nan], 3),
        ([None, None, None, None], None),
    ],
)
def test_the_newest_and_the_best_are_kept(tmp_path, values, best):
    loop = LoopState()
    for step, value in enumerate(values, 1):
        loop.step = step
        if value is not None:
            loop.record(value, higher_is_better=False)
        state = {**runs.state(step), "loop": dataclasses.asdict(loop)}
        checkpoint.write(tmp_path, runs.tensors(step), state, {})
        checkpoint.prune(tmp_path, keep=1)
    kept = sorted({4} | ({best} if best else set()))
    assert names(tmp_path) == [f"step-{step:08d}" for step in kept]
    runs.checkpointed(tmp_path, 4)
    assert names(tmp_path)[-1] == "step-00000004.1"


def test_nothing_that_is_not_finite_is_written(tmp_path):
    runs.checkpointed(tmp_path, 1)
    tensors = {**runs.tensors(2), "slot": np.array([0.0, np.nan])}
    with pytest.raises(CheckpointError, match=f"slot is not finite, so {SECOND} was not written"):
        checkpoint.write(tmp_path, tensors, runs.state(2), {})
    assert os.listdir(str(tmp_path)) == [FIRST]


@pytest.mark.parametrize(
    ("run", "name", "words"),
    [
        ("/etc", None, "/etc is not a run folder: it has no checkpoints folder"),
        ("/nowhere", None, "/nowhere is not a folder"),
        ("run", "step-7", f"has no checkpoint step-7; allowed: best, last, {FIRST}$"),
        ("plain", "best", f"has no checkpoint best; allowed: last, {FIRST}$"),
    ],
)
def test_what_cannot_be_found_is_one_clear_line(tmp_path, run, name, words):
    runs.checkpointed(tmp_path / "plain/checkpoints", 1)
    runs.checkpointed(tmp_path / "run" / "checkpoints", 1)
    (runs.checkpointed(tmp_path / "run" / "checkpoints", 2) / "state.json").write_text("")
    with pytest.raises(CheckpointError, match=words):
        checkpoint.find(tmp_path / run, name)


def test_files_of_which_checkpoints_have_a_hash_keep_their_bytes():
    """Otherwise runs of earlier versions cannot be resumed."""
    tokenizer = Tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "好", "a"])
    model = EncoderOptions(layers=1, hidden=64).architecture(6, 16)
    scale, labels = Scale(0.0, 5.0, False).encoded(), Labels(("好", "bad")).encoded()
    files = [*tokenizer.assets.values(), labels, scale, model, encoded({"id2label": ["好"]})]
    hashes = [hashlib.sha256(content).hexdigest()[:8] for content in files]
    assert hashes == ["d0087f20", "6b777e42", "babf2e9b", "0159fe87", "1a99bf67", "db3cb55b"]
