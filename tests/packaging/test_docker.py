"""The command lines that `make docker-*` passes to docker, podman and apptainer.

No engine runs here: small programs with their names write down their arguments.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import List

import pytest

from tests.running import ROOT, run

pytestmark = pytest.mark.once

WORKSPACE = "/workspace/amp_xla"
FAKE_ENGINE = """#!/bin/sh
for argument; do printf '%s\\n' "$argument"; done >> "$FAKE_LOG"
printf '====\\n' >> "$FAKE_LOG"
case "$1 $*" in
info*) [ -z "$FAKE_INFO" ] || { echo "$FAKE_INFO" >&2; exit 1; };;
build*) [ -z "$FAKE_BUILD" ] || exit 1;;
*nvidia-smi*) [ -z "$FAKE_GPU" ] || { echo "$FAKE_GPU" >&2; exit 125; }
    echo "GPU 0: NVIDIA A100";;
run*) exit "${FAKE_STATUS:-0}";;
esac
"""


class Docker:
    """Runs `make docker-*` with fake engines; returns the arguments of each call."""

    def __init__(self, folder: Path) -> None:
        self.log, self.runs, self.bin = folder / "log", folder / "my runs", folder / "bin"
        self.bin.mkdir()
        for name in ("docker", "podman", "apptainer"):
            (self.bin / name).write_text(FAKE_ENGINE)
            (self.bin / name).chmod(0o755)
        self.status, self.stderr = 0, ""

    def make(self, target: str, *variables: str, **environment: str) -> List[List[str]]:
        done = run(
            ["make", target, f"RUNS={self.runs}", *variables],
            PATH=f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            FAKE_LOG=str(self.log),
            **environment,
        )
        self.status, self.stderr = done.returncode, done.stderr
        text = self.log.read_text() if self.log.exists() else ""
        self.log.write_text("")
        return [call.split("\n")[:-1] for call in text.split("====\n")[:-1] if call]


@pytest.fixture
def docker(tmp_path: Path) -> Docker:
    return Docker(tmp_path)


def options(call: List[str], name: str) -> List[str]:
    """Return all values of an option in a command line."""
    return [call[i + 1] for i, word in enumerate(call) if word == name]


def test_build(docker):
    info, build = docker.make("docker-build")
    assert docker.status == 0, docker.stderr
    assert info == ["info"] and build[0] == "build" and build[-1] == str(ROOT)
    base, runtime, revision = options(build, "--build-arg")
    assert base == "BASE_IMAGE=nvcr.io/nvidia/tensorflow:23.03-tf1-py3" and runtime == "RUNTIME=tf1"
    tag = revision.partition("=")[2].replace("+", "-changed")
    assert options(build, "--tag") == ["amp_xla:tf1", f"amp_xla:tf1-{tag}"]
    build = docker.make("docker-build", "RUNTIME=tf2", "IMAGE=b:3")[-1]
    assert "BASE_IMAGE=nvcr.io/nvidia/tensorflow:25.02-tf2-py3" in build
    assert options(build, "--tag")[0] == "b:3"


def test_train(docker):
    calls = docker.make("docker-train", "ARGS=--epochs 3 --name 'a b'", NP="", HOSTS="")
    assert docker.status == 0, docker.stderr
    assert [call[0] for call in calls] == ["info", "build", "run", "run"]
    probe, train = calls[2:]
    assert probe[-2:] == ["amp_xla:tf1", "-L"] and options(probe, "--gpus") == ["all"]
    image = train.index("amp_xla:tf1")
    assert train[image + 1 :] == [
        *("./amp-xla", "train", "--runtime", "tf1", "--recipe", "classification"),
        *("--", "--epochs", "3", "--name", "a b"),
    ]
    flags = train[:image]
    assert options(flags, "--gpus") == ["all"] and options(flags, "--stop-timeout") == ["300"]
    assert options(flags, "--user") == [f"{os.getuid()}:{os.getgid()}"]
    assert options(flags, "--volume") == [f"{docker.runs}:{WORKSPACE}/runs"]
    assert {"--rm", "--init", "--ipc=host", "memlock=-1"} <= set(flags) and "--tty" not in flags
    assert docker.runs.is_dir()  # otherwise the daemon would create it, as root
    ranks = docker.make("docker-train", "NP=2")[-1]
    assert ranks[ranks.index("amp_xla:tf1") + 1 :][:4] == ["./amp-xla", "ranks", "--np", "2"]
    docker.make("docker-train", FAKE_STATUS="3")
    assert docker.status == 2 and "Error 3" in docker.stderr


def test_shell(docker):
    shell = docker.make("docker-shell")[-1]
    assert shell[shell.index("amp_xla:tf1") + 1 :] == ["bash"]
    command = docker.make("docker-shell", "ARGS=./amp-xla doctor")[-1]
    assert command[command.index("amp_xla:tf1") + 1 :] == ["./amp-xla", "doctor"]


def test_podman_and_apptainer(docker):
    build, _, call = docker.make("docker-train", "ENGINE=podman", "GPUS=0,1")[1:]
    assert build[0] == "build" and docker.status == 0
    assert options(call, "--device") == ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]
    assert options(call, "--userns") == ([] if os.getuid() == 0 else ["keep-id"])
    words = ["ENGINE=apptainer", "GPUS=1", "ARGS=--train README.md"]
    build, probe, train = docker.make("docker-train", *words, TF_VAR_x="x", AMP_XLA_XLA="on")
    image = build[-2]
    assert build[:2] == ["build", "--force"] and build[-1] == "scripts/apptainer.def"
    assert probe == ["exec", "--nv", image, "nvidia-smi", "-L"]
    readme = str(ROOT / "README.md")
    flags, command = train[: train.index(image)], train[train.index(image) + 1 :]
    assert {"--nv", "--cleanenv", f"{readme}:{readme}", "CUDA_VISIBLE_DEVICES=1"} <= set(flags)
    assert "AMP_XLA_XLA=on" in flags and not any("TF_VAR" in word for word in flags)
    assert command[:2] == ["./amp-xla", "train"] and command[-2:] == ["--train", readme]


def test_only_settings_reach_the_container(docker):
    secrets = {"TF_VAR_password", "TF_TOKEN_app", "TF_HTTP_PASSWORD", "TF_CLI_ARGS", "TF_LOG"}
    settings = {"AMP_XLA_XLA", "TF_CPP_MIN_LOG_LEVEL", "NCCL_DEBUG", "XLA_FLAGS"}
    values = dict.fromkeys(secrets | settings, "off")
    flags = set(options(docker.make("docker-train", **values)[-1], "--env"))
    assert settings <= flags and not flags & {*secrets, "HOME"}


def test_files_in_the_arguments_are_mounted(docker, tmp_path):
    odd = tmp_path / "my texts" / "a b.tsv"
    odd.parent.mkdir()
    odd.write_text("a\tb\n")
    earlier, out = docker.runs / "pretraining" / "x", tmp_path / "made"
    arguments = f"--train '{odd}' --vocab=README.md --bert '{earlier}' --out {out} --name out"
    call = docker.make("docker-train", f"ARGS={arguments}")[-1]
    assert docker.status == 0, docker.stderr
    readme = ROOT / "README.md"
    assert options(call, "--volume")[1:] == [
        f"{odd}:{odd}:ro",
        f"{readme}:{readme}:ro",
        f"{out}:{out}",
    ]
    assert call[call.index("--") + 1 :] == [
        *("--train", str(odd), f"--vocab={readme}", "--bert", f"{WORKSPACE}/runs/pretraining/x"),
        *("--out", str(out), "--name", "out"),
    ]


@pytest.mark.parametrize(
    "variables, message",
    [
        (["ARGS=--train /no/such.tsv"], "error: --train /no/such.tsv: no such file or folder here"),
        (["GPUS=two"], "error: GPUS=two is unknown. Allowed: all, none, or indices"),
        (["RUNTIME=tf1", "BASE_IMAGE=x:25.02-tf2-py3"], "x:25.02-tf2-py3 is a tf2 image"),
        (["HOSTS=a:1,b:1"], "error: HOSTS=a:1,b:1: start one container per host"),
        (["IMAGE=$$(touch pwned)"], "is not an image's name"),
    ],
)
def test_refused_before_docker_is_called(docker, variables, message):
    assert docker.make("docker-train", *variables) == []
    assert docker.status == 2 and message in docker.stderr


@pytest.mark.parametrize(
    "fake, calls, advice",
    [
        ({"FAKE_INFO": "permission denied while trying to connect"}, 1, "usermod -aG docker"),
        ({"FAKE_BUILD": "1"}, 2, "docker pull nvcr.io/nvidia/tensorflow:23.03-tf1-py3"),
        ({"FAKE_GPU": 'could not select device driver ""'}, 3, "nvidia-ctk runtime"),
    ],
)
def test_failures_name_the_next_command(docker, fake, calls, advice):
    assert len(docker.make("docker-train", **fake)) == calls
    assert docker.status == 2 and advice in docker.stderr
