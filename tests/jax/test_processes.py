"""recipes/jax_classification.py: several processes and devices; the packages that it needs."""

from __future__ import annotations

import contextlib
import importlib.metadata
import re

import numpy as np
import pytest

from amp_xla.training import checkpoint
from tests.support import small_jax as small
from tests.support.killing import repeatable
from tests.support.small_jax import RUNS

pytestmark = [pytest.mark.jax, pytest.mark.slow]


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


def test_few_packages_are_enough(folder, tmp_path):
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
    paths = {"PYTHONPATH": f"{tmp_path}:{small.ROOT}"}
    small.train(folder, "--name", "few", "--epochs", "1", **paths)
    (folder / "few.txt").write_text("x y zed x\n")
    said = small.run(folder, "-m", "amp_xla", "predict", str(RUNS / "few"), "few.txt", **paths)
    assert re.search("^[ab]\t", said, re.MULTILINE)
    words = ("-m", "benchmarks.gpu", "--trial", "--steps", "2", "--out", "few/gpu", "--only")
    said = small.run(folder, *words, "JAX bf16, cuDNN", **paths)
    assert "JAX bf16, cuDNN attention, batch 4: ok" in said


def test_two_processes_are_one(folder):
    one_epoch = ("--epochs", "1", "--name")
    small.train(folder, *one_epoch, "one", **small.CPU)
    words = ["-m", "recipes.jax_classification", *small.FLAGS, *one_epoch, "two"]
    first, second = small.together(folder, words)
    assert "2 processes" in first and "step 5/" not in second  # one speaks
    runs = [folder / RUNS / name for name in ("one", "two")]
    one, two = (checkpoint.find(run).tensors() for run in runs)
    worst = max(np.abs(np.float64(one[n]) - np.float64(two[n])).max() for n in one)
    assert worst < 1e-5
    for a, b in zip(*map(repeatable, runs)):
        assert a.pop("kind") == b.pop("kind")
        assert a == pytest.approx(b, rel=1e-5, abs=1e-5)


def test_a_batch_that_devices_cannot_share_is_refused(folder):
    flags = "--xla_force_host_platform_device_count=3"
    said = small.train(folder, code=2, XLA_FLAGS=flags, **small.CPU)
    assert "error: --batch-size 8 cannot be shared by 3 devices; allowed is a multiple of 3" in said
