"""``doctor`` against small programs named nvidia-smi and docker, first on PATH."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List

import pytest

from amp_xla.commands import containers, doctor
from amp_xla.speed.machine import Machine
from tests.running import run_python

OLD_DRIVER = """#!/bin/sh
case "$*" in *compute_cap*) echo 'Field "compute_cap" is not a valid field to query.'; exit 2;; esac
echo 'Tesla T4, 440.64.00, 15109, 15000'
"""


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\necho '{text}'\n")
    path.chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: Any) -> Path:
    """A folder that is all of PATH, but for the shell's own place."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def about(found: List[doctor.Finding], subject: str) -> doctor.Finding:
    return next(finding for finding in found if finding.about == subject)


def test_no_gpu_is_said_plainly(path: Path) -> None:
    gpus, found = doctor.graphics({})
    assert gpus == []
    assert (found[0].level, found[0].what) == (
        "note",
        "no NVIDIA GPU: nvidia-smi is not on PATH",
    )


@pytest.mark.parametrize(
    "capability, level, words",
    [
        ("6.1", "warning", "no tensor cores"),
        ("7.5", "ok", "no bfloat16, no TF32"),
        ("8.6", "ok", "bfloat16 and TF32"),
    ],
)
def test_what_a_gpu_can_do(path: Path, capability: str, level: str, words: str) -> None:
    program(path, "nvidia-smi", f"NVIDIA Thing, 470.82.01, 24576, 24000, {capability}")
    gpus, found = doctor.graphics({})
    assert gpus == [doctor.Gpu("NVIDIA Thing", "470.82.01", 24.0, 24000 / 1024, gpus[0].capability)]
    assert found[0].level == level
    assert words in found[0].why


def test_a_driver_that_is_not_running_is_an_error(path: Path) -> None:
    said = "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver."
    program(path, "nvidia-smi", f"#!/bin/sh\necho '{said}'\nexit 9\n")
    gpus, found = doctor.graphics({})
    assert gpus == []
    assert found[0].level == "error"
    assert said in found[0].what


def test_an_old_driver_does_not_know_the_capability(path: Path) -> None:
    program(path, "nvidia-smi", OLD_DRIVER)
    gpus, found = doctor.graphics({"CUDA_VISIBLE_DEVICES": "-1"})
    assert gpus[0].capability is None
    assert "does not tell its compute capability" in found[0].what
    assert "hides every GPU" in found[1].what


def card(name: str, driver: str, capability: str) -> doctor.Gpu:
    return doctor.Gpu(name, driver, 24.0, 24.0, containers.version(capability))


@pytest.mark.parametrize(
    "gpu, release, level, fix",
    [
        (card("NVIDIA GeForce RTX 3090", "470.82.01", "8.6"), (21, 9), "ok", ""),
        (card("NVIDIA GeForce RTX 3090", "470.82.01", "8.6"), (22, 9), "error", "21.10-tf1-py3"),
        # The same driver on a data-center GPU goes through the compatibility package.
        (card("NVIDIA A100-SXM4-40GB", "470.82.01", "8.0"), (23, 3), "ok", ""),
        (card("Tesla T4", "440.64.00", "7.5"), (23, 3), "error", "22.04-tf1-py3"),
        (card("NVIDIA H100", "535.104.05", "9.0"), (21, 9), "error", "23.03-tf1-py3"),
        (card("NVIDIA GeForce GTX 1080", "455.23.05", "6.1"), (20, 6), "error", "21.01-tf1-py3"),
        (card("NVIDIA GeForce GTX 1080", "450.57.00", "6.1"), (20, 6), "error", "newer driver"),
        (card("NVIDIA GeForce RTX 4090", "525.60.13", "8.9"), (21, 9), "ok", ""),
        (card("NVIDIA GeForce RTX 3090", "470.82.01", "8.6"), (20, 3), "error", "21.10-tf1-py3"),
    ],
)
def test_driver_and_gpu_against_the_container(
    gpu: doctor.Gpu, release: containers.Version, level: str, fix: str
) -> None:
    found = doctor.driver(gpu, release)
    assert [finding.level for finding in found] == [level]
    assert fix in found[0].fix


def test_the_page_in_the_documents_is_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
    for group in containers.GROUPS:
        driver = f"{group.driver[0]}.{group.driver[1]}"
        assert f"| {containers.name(group.first)} | {group.cuda} | {driver} |" in page


def machine(**changes: Any) -> Machine:
    facts: Dict[str, Any] = dict(
        device="a CPU",
        gpu=False,
        driver="",
        tensorflow="1.15.5",
        bert4keras="0.11.3",
        fork=False,
        half_dtype="",
        python="3.7",
        container="",
        cores=2,
        memory_gib=8.0,
    )
    facts.update(changes)
    return Machine(**facts)


def test_tensorflow_and_bert4keras() -> None:
    found = doctor.tensorflow(machine(), [card("NVIDIA A100", "470.82.01", "8.0")], os.environ)
    assert [f.level for f in found] == ["ok", "error", "note", "note"]
    assert "TensorFlow sees none" in found[1].what
    assert "CRF and MEMM" in found[3].why
    found = doctor.tensorflow(
        machine(fork=True, gpu=True, half_dtype="float16", bert4keras="0.11.5"), [], {}
    )
    assert [f.level for f in found] == ["ok", "ok"]
    assert "XLA-lite" in found[0].why


@pytest.mark.parametrize(
    "environ, words, fix",
    [
        ({"AMP_XLA_PRECISON": "amp"}, "did you mean AMP_XLA_PRECISION", "AMP_XLA_PRECISON"),
        ({"TF_FORCE_GPU_ALLOW_GROWTH": "1"}, "is ignored", "TF_FORCE_GPU_ALLOW_GROWTH"),
        (
            {"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_ALLOWLIST_ADD": "Softmax"},
            "TensorFlow 1.15 calls it TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_WHITELIST_ADD",
            "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_ALLOWLIST_ADD",
        ),
        (
            {"AMP_XLA_PRECISION": "amp", "TF_ENABLE_AUTO_MIXED_PRECISION": "1"},
            "NVIDIA's own dynamic loss scaling",
            "TF_ENABLE_AUTO_MIXED_PRECISION",
        ),
    ],
)
def test_environment(environ: Dict[str, str], words: str, fix: str) -> None:
    found = doctor.environment(environ, machine())
    assert [f.level for f in found] == ["error"]
    assert words in found[0].what
    assert found[0].fix == f"unset {fix}"


def test_memory(monkeypatch: Any) -> None:
    full = doctor.Gpu("NVIDIA A100", "470.82.01", 40.0, 3.0, (8, 0))
    assert about(doctor.memory([full]), "memory").level == "warning"
    assert doctor.available() is not None


def test_docker(path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(doctor, "IN_CONTAINER", path / "no.dockerenv")
    assert doctor.docker()[0].what == "not installed"
    program(path, "docker", '{"runc":{"path":"runc"}}')
    assert (doctor.docker()[0].level, doctor.docker()[0].what) == (
        "note",
        "runs, without NVIDIA's runtime",
    )
    program(path, "nvidia-smi", "NVIDIA A100, 470.82.01, 40960, 40000, 8.0")
    assert doctor.docker()[0].level == "error"
    program(path, "docker", '{"nvidia":{"path":"nvidia-container-runtime"},"runc":{}}')
    assert doctor.docker()[0].level == "ok"
    program(path, "docker", "#!/bin/sh\necho 'Cannot connect to the Docker daemon'\nexit 1\n")
    assert "Cannot connect to the Docker daemon" in doctor.docker()[0].what


def test_the_command(tmp_path: Path) -> None:
    program(tmp_path, "nvidia-smi", "NVIDIA GeForce RTX 3090, 460.32.03, 24268, 24000, 8.6")
    environ = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = run_python("-m", "amp_xla", "doctor", "--json", "--container", "21.09", env=environ)
    found = json.loads(done.out)
    assert done.code == 1
    wrong = [f for f in found if f["level"] == "error"]
    assert [f["about"] for f in wrong] == ["driver", "TensorFlow"]
    assert "460.32.03 is too old for container 21.09 (CUDA 11.4)" in wrong[0]["what"]
    assert all(f["what"] and f["why"] for f in found)
    assert all(f["fix"] for f in found if f["level"] in ("error", "warning"))
    done = run_python("-m", "amp_xla", "doctor", "--container", "24.01")
    assert done.code == 2
    assert "allowed are 20.03 to 23.03" in done.err
