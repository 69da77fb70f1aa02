"""``doctor`` against small programs named nvidia-smi and docker, first on PATH."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, Optional

import pytest

from amp_xla.backend import nvidia
from amp_xla.commands import doctor
from amp_xla.speed.machine import Machine
from tests.running import run_python

OLD_DRIVER = """#!/bin/sh
case "$*" in *compute_cap*) echo 'Field "compute_cap" is not a valid field to query.'; exit 2;; esac
echo 'Tesla T4, 440.64.00, 15109'
"""
FAILED = "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver."


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\necho '{text}'\n")
    path.chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: Any) -> Path:
    """A folder that is all of PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("smi, level, words", [
    (None, "note", "no NVIDIA GPU: nvidia-smi is not on PATH"),
    ("NVIDIA Thing, 470.82.01, 24576, 6.1", "warning", "no tensor cores"),
    ("NVIDIA Thing, 470.82.01, 24576, 8.6", "ok", "bfloat16 and TF32"),
    (f"#!/bin/sh\necho '{FAILED}'\nexit 9\n", "error", FAILED),
    (OLD_DRIVER, "note", "compute capability unknown"),
])  # fmt: skip
def test_gpus(path: Path, smi: Optional[str], level: str, words: str) -> None:
    if smi:
        program(path, "nvidia-smi", smi)
    findings = doctor.graphics(nvidia.look(os.environ))
    assert findings[0].level == level and words in str(findings[0])


@pytest.mark.parametrize("name, version, level", [
    ("NVIDIA GeForce RTX 3090", "530.30.02", "ok"),
    ("NVIDIA GeForce RTX 3090", "470.82.01", "error"),
    # The same driver on a data-center GPU goes through the compatibility package.
    ("NVIDIA A100-SXM4-40GB", "470.82.01", "ok"),
    ("Tesla T4", "440.64.00", "error"),
])  # fmt: skip
def test_driver_against_the_container(name: str, version: str, level: str) -> None:
    assert doctor.driver(doctor.Gpu(name, version)).level == level


def machine(**changes: Any) -> Machine:
    facts: Dict[str, Any] = dict(
        device="a CPU", gpu=False, driver="", tensorflow="1.15.5", bert4keras="0.11.3", fork=False,
        half_dtype="", python="3.7", container="", cores=2, memory_gib=8.0,
    )  # fmt: skip
    return Machine(**{**facts, **changes})


def test_tensorflow_and_bert4keras() -> None:
    gpu = doctor.Gpu("NVIDIA A100", "470.82.01", 24.0, (8, 0))
    findings = doctor.tensorflow(machine(), [gpu], os.environ)
    assert [f.level for f in findings] == ["ok", "error", "note", "note"]
    assert "TensorFlow sees none" in findings[1].what and "CRF and MEMM" in findings[3].why
    best = machine(fork=True, gpu=True, half_dtype="float16", bert4keras="0.11.5")
    findings = doctor.tensorflow(best, [], {})
    assert [f.level for f in findings] == ["ok", "ok"] and "XLA Lite" in findings[0].why


@pytest.mark.parametrize("environ, words", [
    ({"AMP_XLA_PRECISON": "amp"}, "did you mean AMP_XLA_PRECISION"),
    ({"TF_FORCE_GPU_ALLOW_GROWTH": "1"}, "TF_FORCE_GPU_ALLOW_GROWTH=1 is ignored"),
    ({"AMP_XLA_PRECISION": "amp", "TF_ENABLE_AUTO_MIXED_PRECISION": "1"},
     "TF_ENABLE_AUTO_MIXED_PRECISION=1 turns on NVIDIA's own dynamic loss scaling"),
])  # fmt: skip
def test_environment(environ: Dict[str, str], words: str) -> None:
    findings = doctor.environment(environ, machine())
    assert [f.level for f in findings] == ["error"]
    assert words in findings[0].what and "unset" in findings[0].fix


@pytest.mark.parametrize("runtimes, smi, level, words", [
    (None, False, "note", "not installed"),
    ('{"runc":{"path":"runc"}}', True, "error", "without NVIDIA's runtime"),
    ('{"nvidia":{}}', True, "ok", "with NVIDIA's runtime"),
    ("#!/bin/sh\necho 'Cannot connect to the Docker daemon'\nexit 1\n", False, "error", "Cannot"),
])  # fmt: skip
def test_docker(
    path: Path, monkeypatch: Any, runtimes: Optional[str], smi: bool, level: str, words: str
) -> None:
    monkeypatch.setattr(doctor, "IN_CONTAINER", path / "no.dockerenv")
    if runtimes:
        program(path, "docker", runtimes)
    if smi:
        program(path, "nvidia-smi", OLD_DRIVER)
    finding = doctor.docker()
    assert finding.level == level and words in finding.what


def test_the_command(tmp_path: Path) -> None:
    program(tmp_path, "nvidia-smi", "NVIDIA GeForce RTX 3090, 460.32.03, 24268, 8.6")
    environ = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = run_python("-m", "amp_xla", "doctor", "--json", env=environ)
    findings = json.loads(done.out)
    wrong = [f for f in findings if f["level"] == "error"]
    assert done.code == 1 and [f["about"] for f in wrong] == ["driver", "TensorFlow"]
    assert "460.32.03 is too old" in wrong[0]["what"]
    assert all(f["what"] and f["why"] for f in findings)
