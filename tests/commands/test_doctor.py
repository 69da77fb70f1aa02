"""``doctor`` with small programs that replace nvidia-smi and docker on PATH."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict

import pytest

from amp_xla.backend import nvidia
from amp_xla.commands import doctor
from amp_xla.speed.machine import Machine

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
    """Make a folder that is the only one on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("smi, level, words", [
    ("NVIDIA Thing, 470.82.01, 24576, 6.1", "warning", "no tensor cores"),
    ("NVIDIA Thing, 470.82.01, 24576, 8.6", "ok", "bfloat16 and TF32"),
    (f"#!/bin/sh\necho '{FAILED}'\nexit 9\n", "error", FAILED),
    (OLD_DRIVER, "note", "compute capability unknown"),
])  # fmt: skip
def test_gpus(path: Path, smi: str, level: str, words: str) -> None:
    program(path, "nvidia-smi", smi)
    findings = doctor.graphics(nvidia.look(os.environ))
    assert findings[0].level == level and words in str(findings[0])


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


def test_docker(path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(doctor, "IN_CONTAINER", path / "no.dockerenv")
    program(path, "nvidia-smi", OLD_DRIVER)
    program(path, "docker", '{"runc":{"path":"runc"}}')
    finding = doctor.docker()
    assert finding.level == "error" and "without NVIDIA's runtime" in finding.what
    program(path, "docker", "#!/bin/sh\necho 'Cannot connect to the Docker daemon'\nexit 1\n")
    finding = doctor.docker()
    assert finding.level == "error" and "Cannot connect" in finding.what


@pytest.mark.parametrize("name, version, level", [
    ("NVIDIA GeForce RTX 3090", "530.30.02", "ok"),
    ("NVIDIA GeForce RTX 3090", "470.82.01", "error"),
    # The same driver on a data-center GPU goes through the compatibility package.
    ("NVIDIA A100-SXM4-40GB", "470.82.01", "ok"),
    ("Tesla T4", "440.64.00", "error"),
])  # fmt: skip
def test_driver_against_the_container(name: str, version: str, level: str) -> None:
    assert doctor.driver(doctor.Gpu(name, version)).level == level
