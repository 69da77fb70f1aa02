"""The command lines that reach docker.

No Docker engine runs where these tests do: a program named `docker` writes down what it was given.
So they prove our half of the conversation, not what the engine makes of it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import List

import pytest

from tests.packaging.checkout import ROOT, run

WORKSPACE = "/workspace/amp_xla"
FAKE_DOCKER = """#!/bin/sh
for argument; do printf '%s\\n' "$argument"; done >> "$FAKE_LOG"
printf '====\\n' >> "$FAKE_LOG"
case "$1 $*" in
info*) [ -z "$FAKE_INFO" ] || { echo "$FAKE_INFO" >&2; exit 1; };;
build*) [ -z "$FAKE_BUILD" ] || exit 1;;
run*nvidia-smi*) [ -z "$FAKE_GPU" ] || { echo "$FAKE_GPU" >&2; exit 125; }
    echo "GPU 0: NVIDIA A100";;
run*) exit "${FAKE_STATUS:-0}";;
esac
"""


class Docker:
    """`make docker-*` with the fake docker; what docker was told, call by call."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.runs = folder / "my runs"
        self.bin = folder / "bin"
        self.bin.mkdir()
        (self.bin / "docker").write_text(FAKE_DOCKER)
        (self.bin / "docker").chmod(0o755)
        self.status = 0
        self.said = ""

    def make(self, command: str, *variables: str, **environment: str) -> List[List[str]]:
        done = run(
            ["make", command, f"RUNS={self.runs}", *variables],
            PATH=f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            FAKE_LOG=str(self.log),
            **environment,
        )
        self.status, self.said = done.returncode, done.stderr
        text = self.log.read_text() if self.log.exists() else ""
        self.log.write_text("")
        return [call.split("\n")[:-1] for call in text.split("====\n")[:-1] if call]


@pytest.fixture
def docker(tmp_path):
    return Docker(tmp_path)


def options(call: List[str], name: str) -> List[str]:
    """The values of an option that may be given many times."""
    return [call[i + 1] for i, word in enumerate(call) if word == name]


def test_build(docker):
    info, build = docker.make("docker-build")
    assert docker.status == 0, docker.said
    assert info == ["info"]
    assert build[0] == "build" and build[-1] == str(ROOT)
    assert options(build, "--build-arg") == [
        "BASE_IMAGE=nvcr.io/nvidia/tensorflow:23.03-tf1-py3",
        "RUNTIME=tf1",
    ]
    assert options(build, "--tag") == ["amp_xla:tf1"]


def test_train(docker):
    calls = docker.make("docker-train", "RECIPE=classification", "ARGS=--epochs 3 --name 'a b'")
    assert docker.status == 0, docker.said
    assert [call[0] for call in calls] == ["info", "build", "run", "run"]
    probe, train = calls[2:]
    assert probe[-2:] == ["amp_xla:tf1", "-L"] and options(probe, "--gpus") == ["all"]
    assert "GPU 0: NVIDIA A100" in docker.said
    image = train.index("amp_xla:tf1")
    assert train[image + 1 :] == [
        *("python3", "-m", "scripts.environment", "run", "--runtime", "tf1"),
        *("--recipe", "classification", "--", "--epochs", "3", "--name", "a b"),
    ]
    given = train[:image]
    assert options(given, "--gpus") == ["all"]
    assert "--ipc=host" in given
    assert options(given, "--ulimit") == ["memlock=-1", "stack=67108864"]
    assert options(given, "--user") == [f"{os.getuid()}:{os.getgid()}"]
    assert options(given, "--volume") == [f"{docker.runs}:{WORKSPACE}/runs"]
    assert docker.runs.is_dir()  # else the daemon would make it, as root
    assert "--rm" in given and "--init" in given
    assert "--tty" not in given  # this is no terminal


def test_the_exit_status_of_training_arrives(docker):
    docker.make("docker-train", FAKE_STATUS="3")
    assert docker.status == 2 and "Error 3" in docker.said


def test_shell_and_tests_in_the_image(docker):
    shell = docker.make("docker-shell")[-1]
    assert shell[shell.index("amp_xla:tf1") + 1 :] == ["bash"]
    tests = docker.make("docker-test", "ARGS=tests/data -k reader", "RUNTIME=tf2")[-1]
    assert tests[tests.index("amp_xla:tf2") + 1 :] == [
        *("python3", "-m", "scripts.environment", "run", "--runtime", "tf2", "--"),
        *("-m", "pytest", "-p", "no:cacheprovider", "tests/data", "-k", "reader"),
    ]


@pytest.mark.parametrize(
    "given, gpus", [("none", []), ("0,1", ['"device=0,1"']), ("all", ["all"]), ("", ["all"])]
)
def test_gpus(docker, given, gpus):
    calls = docker.make("docker-train", f"GPUS={given}")
    assert options(calls[-1], "--gpus") == gpus
    assert any("nvidia-smi" in call for call in calls) == bool(gpus)


def test_wrong_gpus_are_refused_before_the_build(docker):
    assert docker.make("docker-train", "GPUS=two") == []
    assert "GPUS=two is not understood. Allowed: all, none, or indices" in docker.said


def test_settings_travel_into_the_container(docker):
    call = docker.make("docker-train", AMP_XLA_PRECISION="amp", TF_XLA_FLAGS="--a --b")[-1]
    assert {"AMP_XLA_PRECISION", "TF_XLA_FLAGS"} <= set(options(call, "--env"))
    assert "HOME" not in options(call, "--env")


def test_data_is_mounted_read_only_where_it_lies(docker, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    call = docker.make("docker-train", f"DATA={data}")[-1]
    assert f"{data}:{data}:ro" in options(call, "--volume")
    docker.make("docker-train", "DATA=/no/such")
    assert docker.status != 0 and "DATA=/no/such does not exist" in docker.said


@pytest.mark.parametrize(
    "variables, base, image",
    [
        (["RUNTIME=tf1"], "nvcr.io/nvidia/tensorflow:23.03-tf1-py3", "amp_xla:tf1"),
        (["RUNTIME=tf2"], "nvcr.io/nvidia/tensorflow:25.02-tf2-py3", "amp_xla:tf2"),
        (["BASE_IMAGE=a:22.12-tf2-py3"], "a:22.12-tf2-py3", "amp_xla:tf2"),
        (["BASE_IMAGE=a:21.09-tf1-py3"], "a:21.09-tf1-py3", "amp_xla:tf1"),
        (["BASE_IMAGE=mine:1"], "mine:1", "amp_xla:auto"),
        (["BASE_IMAGE=mine:1", "RUNTIME=tf2", "IMAGE=b:3"], "mine:1", "b:3"),
    ],
)
def test_the_image_and_the_runtime_follow_each_other(docker, variables, base, image):
    build = docker.make("docker-build", *variables)[-1]
    assert f"BASE_IMAGE={base}" in build and options(build, "--tag") == [image]


@pytest.mark.parametrize("wrong, image", [("tf1", "x:25.02-tf2-py3"), ("tf2", "x:23.03-tf1-py3")])
@pytest.mark.parametrize("command", ["docker-build", "docker-train", "docker-shell"])
def test_an_image_of_the_other_runtime_is_refused(docker, command, wrong, image):
    assert docker.make(command, f"RUNTIME={wrong}", f"BASE_IMAGE={image}") == []
    assert docker.status != 0
    assert f"error: RUNTIME={wrong}, but BASE_IMAGE={image} is a" in docker.said


def test_an_unknown_runtime(docker):
    assert docker.make("docker-build", "RUNTIME=jax") == []
    assert "Allowed: auto, tf1, tf2" in docker.said


@pytest.mark.parametrize(
    "message, advice",
    [
        ("permission denied while trying to connect", "usermod -aG docker"),
        ("Cannot connect to the Docker daemon", "sudo systemctl start docker"),
    ],
)
def test_a_daemon_that_does_not_answer(docker, message, advice):
    assert docker.make("docker-train", FAKE_INFO=message) == [["info"]]
    assert docker.status != 0 and advice in docker.said


def test_no_docker_at_all(docker, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "env", "dirname", "make", "sed", "sh"):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    done = run(["make", "docker-build"], PATH=str(tools))
    assert done.returncode != 0 and "docker is not installed" in done.stderr
    assert "make train" in done.stderr


def test_a_build_that_fails_names_the_pull(docker):
    calls = docker.make("docker-train", FAKE_BUILD="1")
    assert [call[0] for call in calls] == ["info", "build"]
    assert "docker pull nvcr.io/nvidia/tensorflow:23.03-tf1-py3" in docker.said


@pytest.mark.parametrize(
    "message, advice",
    [
        ('could not select device driver "" with capabilities: [[gpu]]', "nvidia-ctk runtime"),
        ("nvidia-container-cli: initialization error: nvml error", "nvidia-ctk runtime"),
        ("NVIDIA-SMI has failed", "nvidia-smi on the host"),
    ],
)
def test_no_gpu_for_docker(docker, message, advice):
    calls = docker.make("docker-train", FAKE_GPU=message)
    assert len(calls) == 3  # nothing was trained
    assert message in docker.said and advice in docker.said and "GPUS=none" in docker.said
