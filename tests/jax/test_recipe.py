"""recipes/jax_classification.py: training, kill and resume, answers, processes, packages."""

import contextlib
import importlib.metadata
import json
import random
import re
import socket
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from amp_xla.commands import cli
from amp_xla.process.exits import exit_code
from amp_xla.training import checkpoint
from recipes import jax_classification as recipe
from tests.jax.test_bert import loaded
from tests.support.killing import repeatable, state
from tests.support.running import ROOT, run_python, start_python

pytestmark = [pytest.mark.jax, pytest.mark.slow]
CPU = {"JAX_PLATFORMS": "cpu"}  # several devices or processes, also where there is one GPU
RUNS = Path("runs") / "jax_classification"
WORDS = {"a": ["x", "y", "zed"], "b": ["p", "q", "r"]}
FLAGS = (
    "--train train.tsv --dev dev.tsv --layers 1 --hidden 16 --vocab-size 60 --max-length 16 "
    "--shapes 1 --batch-size 8 --epochs 3 --log-every 5"
).split()
# Lets a run kill itself after step 20, with all checkpoints on disk.
KILLED = """
import importlib, os, signal, sys
from amp_xla.process.exits import exit_code
from amp_xla.training.loop import Loop
def killed(self, *args, after_step=Loop.after_step, os=os, signal=signal):
    after_step(self, *args)
    if self.state.step == 20:
        self.finish_writing()
        os.kill(os.getpid(), signal.SIGKILL)
Loop.after_step = killed
sys.exit(exit_code(importlib.import_module(sys.argv[1]).main, sys.argv[2:]))
"""

# Two programs, one per shape, are compiled in these runs only: it takes most of their time.
HALF = ("--policy", "p=f32,c=f16,o=f32", "--loss-scale", "dynamic", "--shapes", "2")


def corpus(folder):
    """Write 120 and 40 texts; the label is the set from which most words come."""
    numbers = random.Random(0)
    for name, count in (("train", 120), ("dev", 40)):
        labels = ("ab" * count)[:count]
        texts = [numbers.choices([*WORDS[x], "w"], k=numbers.randint(3, 12)) for x in labels]
        lines = (f"{' '.join(text)}\t{label}\n" for text, label in zip(texts, labels))
        (folder / f"{name}.tsv").write_text("".join(lines))


def caches(folder):
    """Return variables with which all runs have the same programs, which are compiled once."""
    least = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
    return {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"), least: "0"}


def run_in(folder, *words, code=0, **environ):
    """Run Python in ``folder``; return its output."""
    env = {**caches(folder), **environ}
    done = run_python(*words, env=env, timeout=280, cwd=folder, code=code)
    return done.out + done.err


def together(folder, words):
    """Run two connected JAX processes; return the output of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": "2", **CPU}
    environ.update(caches(folder))
    both = [start_python(*words, cwd=folder, JAX_PROCESS_ID=str(i), **environ) for i in range(2)]
    said = [b"".join(process.communicate(timeout=280)).decode() for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    return said


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The current folder, with a small corpus; all runs have the programs that one compiled."""
    found = tmp_path_factory.mktemp("runs")
    corpus(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(found)
        jax.config.update("jax_compilation_cache_dir", str(found / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        compilation_cache.reset_cache()
        yield found
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()


def train(name, *words):
    """Train in this process; return the exit code."""
    return exit_code(recipe.main, [*FLAGS, "--name", name, *words])


@pytest.fixture(scope="module")
def whole(folder):
    """A run in float16 with a dynamic loss scale."""
    assert train("whole", *HALF) == 0
    return folder / RUNS / "whole"


def test_it_learns_and_leaves_a_run_folder(whole):
    lines = repeatable(whole)
    assert lines[-1]["dev_accuracy"] > 0.85 and lines[-1]["step"] == 45
    trained = [line for line in lines if "loss" in line]
    assert len(trained) == 9 and trained[-1]["loss"] < trained[0]["loss"]
    assert trained[-1]["loss_scale"] == 2.0**15 and trained[-1]["applied_steps"] == 45
    assert {"config.json", "run.json", "vocab.txt", "labels.json", "bert_config.json"} <= {
        path.name for path in whole.iterdir()
    }
    assert "Policy p=full,c=f16,o=full" in (whole / "report.html").read_text()


def test_commands_for_its_run(whole, folder, capsys):
    (folder / "texts.txt").write_text("x y zed x\n\np q r r\n")
    assert cli.main(["predict", str(whole), "texts.txt"]) == 0
    assert [line[:1] for line in capsys.readouterr().out.splitlines()] == ["a", "", "b"]
    assert cli.main(["verify", str(whole)]) == 0
    export = ["export", str(whole), "--to", "exported", "--format"]
    assert cli.main([*export, "onnx"]) == 2
    assert cli.main([*export, "hf"]) == 0
    said = "".join(capsys.readouterr())
    assert "whole" in said and "allows only --format hf" in said and "head.safetensors" in said
    tensors = checkpoint.find(whole).tensors()
    for path, value in jax.tree_util.tree_flatten_with_path(loaded("exported"))[0]:
        name = f".model.bert{jax.tree_util.keystr(path)}"
        np.testing.assert_array_equal(value, tensors[name], name)


def test_half_precision_parameters_are_exported(folder):
    assert train("half", "--policy", "p=f16,c=f16,o=f16", "--epochs", "1", "--loss-scale", "1") == 0
    assert cli.main(["export", str(RUNS / "half"), "--to", "of_half", "--format", "hf"]) == 0


def test_killed_and_resumed_bitwise(folder, whole, capsys):
    words = [*FLAGS, "--name", "killed", *HALF, "--checkpoint-every", "7"]
    run_in(folder, "-c", KILLED, recipe.__name__, *words, code=-9)
    assert train("killed", *HALF, "--resume") == 0
    assert "resumed from step-" in capsys.readouterr().err
    assert state(folder / RUNS / "killed") == state(whole)


def test_what_is_refused(whole, capsys, monkeypatch):
    assert train("whole", "--resume", *HALF, "--policy", "c=bf16,o=f32") == 2
    said = capsys.readouterr().err
    assert "differs from this command: setting" in said and "setting policy:" in said
    assert train("fused", "--attention", "fused", "--policy", "c=bf16") == 2
    said = capsys.readouterr().err
    assert "error: --attention fused needs " in said and "; found: cpu, bfloat16, heads" in said
    monkeypatch.setattr(jax, "device_count", lambda: 3)
    assert train("three") == 2
    said = capsys.readouterr().err
    assert "error: --batch-size 8 cannot be shared by 3 devices; allowed is a multiple of 3" in said


def test_a_skipped_step_is_reported_once(folder, capsys):
    # Gradients overflow in float16 at this loss scale, weights and logits do not.
    words = ("--policy", "p=f32,c=f16,o=f32", "--loss-scale", "1e30", "--epochs", "1")
    assert train("overflow", *words, "--on-nonfinite", "report") == 0
    said = capsys.readouterr().err
    assert said.count("not finite, skipped;") == 1
    assert "step 0: loss " in said and "gradients overflow at loss scale 1e+30" in said
    run = folder / RUNS / "overflow"
    report = run / "nonfinite-00000000"
    assert json.loads((report / "report.json").read_text())["step"] == 0
    assert np.load(str(report / "batch.npz"))["token_ids"].shape[0] == 8
    last = repeatable(run)[-2]
    assert (last["skipped_steps"], last["applied_steps"]) == (15, 0)


def dependencies(names):
    """Return the names of packages and of all that they need."""
    found, names = set(), list(names)
    while names:
        name = re.sub(r"[-_.]+", "-", names.pop()).lower()
        if name not in found:
            found.add(name)
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # other systems'
                lines = importlib.metadata.requires(name) or ()
                names += [re.match(r"[\w.-]+", x)[0] for x in lines if "extra ==" not in x]
    return found


def test_few_packages_are_enough_and_two_processes_are_one(folder, tmp_path):
    """The recipe, its predictions and its rows of the GPU benchmark; report.html needs jinja2."""
    allowed = dependencies("jax numpy optax safetensors tokenizers tyro".split())
    absent = [
        name
        for name, owners in importlib.metadata.packages_distributions().items()
        if not allowed & {re.sub(r"[-_.]+", "-", owner).lower() for owner in owners}
    ]
    assert {"jinja2", "pytest", "jmp"} <= set(absent)
    code = f"import sys\nsys.modules.update(dict.fromkeys({absent + ['tensorflow']}))\n"
    (tmp_path / "sitecustomize.py").write_text(code)  # also in the processes of the benchmark
    paths = {"PYTHONPATH": f"{tmp_path}:{ROOT}", **CPU}
    words = ["-m", "recipes.jax_classification", *FLAGS, "--epochs", "1", "--name"]
    run_in(folder, *words, "few", **paths)
    (folder / "few.txt").write_text("x y zed x\n")
    few = str(RUNS / "few")
    said = run_in(folder, "-m", "amp_xla", "predict", few, "few.txt", **paths)
    assert re.search("^[ab]\t", said, re.MULTILINE)
    benchmark = ("-m", "benchmarks.gpu", "--trial", "--steps", "2", "--out", "few/gpu", "--only")
    said = run_in(folder, *benchmark, "JAX bf16, cuDNN", **paths)
    assert "JAX bf16, cuDNN attention, batch 4: ok" in said

    first, second = together(folder, [*words, "two"])
    assert "processes: 2" in first and "step 5/" not in second  # one speaks
    runs = [folder / RUNS / name for name in ("few", "two")]
    one, two = (checkpoint.find(run).tensors() for run in runs)
    worst = max(np.abs(np.float64(one[n]) - np.float64(two[n])).max() for n in one)
    assert worst < 1e-5
    for a, b in zip(*map(repeatable, runs)):
        assert a.pop("kind") == b.pop("kind")
        assert a == pytest.approx(b, rel=1e-5, abs=1e-5)
