"""``doctor`` with small programs that replace nvidia-smi on PATH."""

import pytest

from amp_xla.backend import nvidia
from amp_xla.commands import doctor

OLD_DRIVER = """#!/bin/sh
case "$*" in *compute_cap*) echo 'Field "compute_cap" is not a valid field to query.'; exit 2;; esac
echo 'Tesla T4, 440.64.00, 15109'
"""
FAILED = "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver."


def program(folder, name, text):
    path = folder / name
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\necho '{text}'\n")
    path.chmod(0o755)


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Make a folder that is the only one on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("smi, level, words", [
    ("NVIDIA Thing, 470.82.01, 24576, 6.1", "warning", "no tensor cores"),
    ("NVIDIA Thing, 470.82.01, 24576, 8.6", "ok", "bfloat16 and TF32"),
    (f"#!/bin/sh\necho '{FAILED}'\nexit 9\n", "error", FAILED),
    (OLD_DRIVER, "note", "compute capability unknown"),
])  # fmt: skip
def test_gpus(path, smi, level, words):
    program(path, "nvidia-smi", smi)
    findings = doctor.graphics(nvidia.look())
    assert findings[0].level == level and words in str(findings[0])


@pytest.mark.parametrize("name, version, level", [
    ("NVIDIA GeForce RTX 3090", "530.30.02", "ok"),
    ("NVIDIA GeForce RTX 3090", "470.82.01", "error"),
    # The same driver on a data-center GPU goes through the compatibility package.
    ("NVIDIA A100-SXM4-40GB", "470.82.01", "ok"),
    ("Tesla T4", "440.64.00", "error"),
])  # fmt: skip
def test_driver_against_the_container(name, version, level):
    assert doctor.driver(doctor.Gpu(name, version)).level == level
