"""Every command of docs/servers.md, as far as a machine without these engines can follow it.

docker, podman, apptainer and srun are programs that write down what they were given (srun then runs
its command); make and this project's scripts are the real ones, in a folder that looks like a
checkout and has the files that the page names. What would build an environment is only printed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import List

import pytest

from tests.packaging.checkout import ROOT, run

pytestmark = pytest.mark.once

PAGE = (ROOT / "docs" / "servers.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (\S.*)$", PAGE, re.MULTILINE)
WRITES = """#!/bin/sh
printf '%s' "${0##*/}" >> "$FAKE_LOG"
for argument; do printf '\\t%s' "$argument" >> "$FAKE_LOG"; done
printf '\\n' >> "$FAKE_LOG"
case "$1 $*" in *"nvidia-smi"*) echo "GPU 0: NVIDIA A100" ;; esac
"""
SRUN = WRITES + 'while case "$1" in --*) ;; *) false ;; esac; do shift; done\nexec "$@"\n'
SRUN_OPTIONS = {
    *("gpus", "cpus-per-task", "signal", "container-image", "container-remap-root"),
    *("container-save", "container-mounts", "container-workdir"),
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    made = tmp_path / "checkout"
    made.mkdir()
    for entry in ROOT.iterdir():
        if entry.name not in ("runs", ".venvs", ".cache", "data", ".git"):
            (made / entry.name).symlink_to(entry)
    for name in ("train.tsv", "dev.tsv", "vocab.txt", "texts.txt", "texts"):
        (made / name).write_text("a\tb\n")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("docker", "podman", "apptainer"):
        (tools / name).write_text(WRITES)
    (tools / "srun").write_text(SRUN)
    for tool in tools.iterdir():
        tool.chmod(0o755)
    return made


def calls(checkout: Path, command: str, **environment: str) -> List[List[str]]:
    log = checkout.parent / "log"
    log.write_text("")
    path = f"{checkout.parent / 'bin'}:/usr/local/bin:/usr/bin:/bin"
    done = run(["bash", "-c", command], root=checkout, PATH=path, FAKE_LOG=str(log), **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.split("\t") for line in log.read_text().splitlines()]


def test_the_page_has_commands() -> None:
    for word in ("make train", "docker-train", "podman", "apptainer-train", "srun", "compose"):
        assert any(word in command for command in COMMANDS), word


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page(checkout: Path, command: str) -> None:
    if command.startswith("scripts/"):
        assert (ROOT / command.split()[0]).exists()
        return
    builds = re.search(r"\bmake (train|env)\b", command)
    seen = calls(checkout, command, **({"MAKEFLAGS": "-n"} if builds else {}))
    if "srun" in command:
        options = [word for word in seen[0][1:] if word.startswith("--")]
        assert {word[2:].split("=")[0] for word in options} <= SRUN_OPTIONS
    elif builds is None:
        assert seen


def test_apptainer(checkout: Path) -> None:
    words = "--train train.tsv --dev dev.tsv"
    command = f'make apptainer-train RECIPE=classification GPUS=1 ARGS="{words}"'
    build, probe, train = calls(checkout, command, AMP_XLA_PRECISION="tf32", TF_VAR_secret="x")
    assert build[1:3] == ["build", "--force"] and build[-1] == "scripts/apptainer.def"
    image = build[-2]
    assert image == str(checkout / ".cache/apptainer/tf1-tensorflow-23.03-tf1-py3-unknown.sif")
    assert probe[1:] == ["exec", "--nv", image, "nvidia-smi", "-L"]
    given, inside = train[: train.index(image)], train[train.index(image) + 1 :]
    file = str(checkout / "train.tsv")
    assert {"--nv", "--cleanenv", f"{file}:{file}", "AMP_XLA_PRECISION=tf32"} <= set(given)
    assert "CUDA_VISIBLE_DEVICES=1" in given and not any("TF_VAR" in word for word in given)
    assert f"{checkout / 'runs'}:/workspace/amp_xla/runs" in given
    assert inside[:6] == ["python3", "-m", "scripts.environment", "run", "--runtime", "tf1"]
    assert inside[-4:] == ["--train", file, "--dev", str(checkout / "dev.tsv")]


def test_the_definition_and_the_compose_file_say_what_the_dockerfile_says() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    definition = (ROOT / "scripts" / "apptainer.def").read_text()
    compose = (ROOT / "compose.yaml").read_text()
    (base,) = re.findall(r"^ARG BASE_IMAGE=(\S+)$", dockerfile, re.MULTILINE)
    assert f"BASE_IMAGE={base}\n" in definition and f"BASE_IMAGE:-{base}}}" in compose
    install = "-m scripts.container_install"
    for step in ("scripts/container_base.py", f"{install} --runtime", f"{install} --check"):
        assert step in dockerfile and step in definition
    for needed in ("requirements", "amp_xla", "recipes", "scripts", "tests", "Makefile"):
        assert re.search(rf"^    .*\b{needed}\b.* /workspace/amp_xla/$", definition, re.MULTILINE)
    for word in (
        "stop_grace_period: 5m",
        "ipc: host",
        "init: true",
        "runs:/workspace/amp_xla/runs",
    ):
        assert word in compose
