"""Runs for which ``auto`` turns XLA on, and the programs that XLA keeps for the next start."""

import os
import re
import shutil

import pytest

from amp_xla import backend
from amp_xla.training import checkpoint
from tests.support.commands import FP32, RECIPE, Commands
from tests.support.running import run_python
from tests.tasks.classification.test_recipe import write_corpus

TF2 = backend.kind() == "tf2"
SMALL = (
    "--train train.tsv --dev dev.tsv --vocab-size 200 --layers 1 --hidden 64 --max-length 24 "
    "--epochs 1 --shapes 3 --checkpoint-every 2 --keep 9"
).split()
JIT = {"TF_XLA_FLAGS": "--tf_xla_cpu_global_jit"}
NO_JIT = {"TF_XLA_FLAGS": "--tf_xla_auto_jit=-1"}  # wins over the session's options
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("xla")
    write_corpus(folder / "train.tsv", 80, 1)
    write_corpus(folder / "dev.tsv", 20, 2)
    return folder


def train(folder, name, *words, fails=None, **env):
    """Train; with ``fails`` as if ``auto`` had turned XLA on."""
    start = ["-m", "recipes.classification"]
    if fails is not None:
        start = ["-m", "tests.support.forced_xla", fails]
    env = {"AMP_XLA_PRECISION": "fp32", "XDG_CACHE_HOME": str(folder / "cache"), **env}
    return run_python(*start, *SMALL, "--name", name, *words, env=env, cwd=folder).err


def last(folder, name):
    """Return the bytes of a run's last checkpoint."""
    newest = checkpoint.steps(folder / "runs" / "classification" / name / "checkpoints")[-1]
    return (newest / checkpoint.TENSORS).read_bytes()


def test_xla_that_fails_ends_no_run(folder):
    said = train(folder, "plain", fails="compile" if TF2 else "99", **NO_JIT)
    assert "XLA on (auto: forced, with at most 2 lengths" in said and "no XLA clusters" in said
    assert ", 2 shapes:" in said
    said = train(folder, "failed", fails="compile" if TF2 else "0", **JIT)
    assert said.count("XLA failed (") == 1 and "starting from the beginning" in said
    assert "XLA off (auto: it failed" in said and "no XLA clusters" in said
    assert last(folder, "failed") == last(folder, "plain")


def test_xla_that_fails_later_goes_on_from_the_last_checkpoint_and_is_resumed(folder):
    said = train(folder, "later", fails="3", **JIT)
    assert re.search(r"\b[1-9]\d* XLA clusters", said) and said.count("XLA failed (") == 1
    assert "resumed from step-00000002" in said, said
    runs = folder / "runs" / "classification"
    shutil.copytree(str(runs / "later"), str(runs / "again"))
    for path in checkpoint.steps(runs / "again" / "checkpoints")[1:]:
        shutil.rmtree(str(path))
    said = train(folder, "again", "--resume", **NO_JIT)  # the mode is that of the checkpoint
    assert "XLA on (auto: as when the run began" in said and ", 2 shapes:" in said
    assert last(folder, "again") == last(folder, "later")


@pytest.mark.once
def test_without_a_gpu_auto_is_off_and_the_flag_wins(folder, server):
    command = Commands(server, folder)
    said = command.done(RECIPE, *SMALL, "--name", "cpu", code=FP32).err
    assert "XLA off (auto: no GPU; --xla on overrules)" in said and ", 3 shapes:" in said
    words = ("--name", "cpu", "--resume", "--xla", "off", "--epochs", "2")
    said = command.done(RECIPE, *SMALL, *words, code=FP32).err
    assert "extended: " in said  # the same mode, chosen by hand


def test_programs_are_kept_and_damaged_ones_are_not_used(folder):
    words = ("--xla", "on")
    if not TF2:  # 1.15 cannot keep those of the runs above
        assert not (folder / "cache").exists()
        return
    train(folder, "fresh", *words)
    programs = sorted((folder / "cache").rglob("*.pb"), key=os.path.getsize)
    assert programs and all((p.parent / f"{p.name}.sha256").exists() for p in programs)
    times = {p: p.stat().st_mtime_ns for p in programs}
    half = programs[0].read_bytes()[: programs[0].stat().st_size // 2]
    programs[0].write_bytes(half)
    programs[1].write_bytes(b"")
    content = bytearray(programs[-1].read_bytes())
    content[len(content) // 2] ^= 1
    programs[-1].write_bytes(bytes(content))
    (programs[2].parent / f"{programs[2].name}.sha256").unlink()  # of a killed process
    train(folder, "second", *words)
    made = {p for p in programs if p.stat().st_mtime_ns != times[p]}
    assert made == {*programs[:3], programs[-1]}  # the others were loaded
    assert last(folder, "second") == last(folder, "fresh")
    shutil.rmtree(str(folder / "cache"))
    train(folder, "without", *words, AMP_XLA_CACHE="off")
    assert not (folder / "cache").exists()
    assert last(folder, "without") == last(folder, "fresh")
