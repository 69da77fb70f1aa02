"""The command lines that reach docker.

No Docker engine runs where these tests do: a program named `docker` writes down what it was given.
So they prove our half of the conversation, not what the engine makes of it.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import List

import pytest

from tests.packaging.checkout import ROOT, run

pytestmark = pytest.mark.once

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


REVISION = run("git describe --always --dirty=+ --abbrev=10 --match=".split()).stdout.strip()
REVISION = REVISION or "unknown"  # an image has no git checkout
TAG = REVISION.replace("+", "-changed")


class Docker:
    """`make docker-*` with the fake docker; what docker was told, call by call."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.runs = folder / "my runs"
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name in ("docker", "podman"):
            (self.bin / name).write_text(FAKE_DOCKER)
            (self.bin / name).chmod(0o755)
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
        f"REVISION={REVISION}",
    ]
    assert options(build, "--tag") == ["amp_xla:tf1", f"amp_xla:tf1-{TAG}"]


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
    quick = docker.make("docker-test")[-1]
    assert quick[-2:] == ["-m", "not slow and not network"]


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


SECRETS = ("TF_VAR_password", "TF_TOKEN_app", "TF_HTTP_PASSWORD", "TF_CLI_ARGS", "TF_LOG")
TRAVEL = """AMP_XLA_XLA TF_CPP_MIN_LOG_LEVEL TF_ENABLE_ONEDNN_OPTS TF_FORCE_GPU_ALLOW_GROWTH
TF_GPU_ALLOCATOR TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL NCCL_DEBUG HOROVOD_FUSION_THRESHOLD
XLA_FLAGS NVIDIA_TF32_OVERRIDE CUDA_VISIBLE_DEVICES""".split()


def test_only_names_that_are_settings_travel(docker):
    values = dict.fromkeys((*SECRETS, *TRAVEL), "off")
    call = docker.make("docker-train", AMP_XLA_DRIVER_ROOT="/x", **values)[-1]
    given = options(call, "--env")
    assert set(TRAVEL) <= set(given)
    assert not set(given) & {*SECRETS, "AMP_XLA_DRIVER_ROOT"}


def test_a_container_has_time_to_stop_in_order(docker):
    assert options(docker.make("docker-train")[-1], "--stop-timeout") == ["300"]


def test_files_that_the_arguments_name_are_mounted(docker, tmp_path):
    odd = tmp_path / "my texts" / "a b.tsv"
    odd.parent.mkdir()
    odd.write_text("a\tb\n")
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("[PAD]\n")
    earlier = docker.runs / "pretraining" / "x"
    arguments = f"--train '{odd}' --vocab={vocab} --bert '{earlier}' --name out --packed"
    call = docker.make("docker-train", f"ARGS={arguments}")[-1]
    assert docker.status == 0, docker.said
    mounted = options(call, "--volume")
    assert {f"{odd}:{odd}:ro", f"{vocab}:{vocab}:ro"} <= set(mounted) and len(mounted) == 3
    assert call[call.index("--") + 1 :] == [
        *("--train", str(odd), f"--vocab={vocab}", "--bert", f"{WORKSPACE}/runs/pretraining/x"),
        *("--name", "out", "--packed"),
    ]


def test_a_relative_path_means_the_same_file_inside(docker):
    call = docker.make("docker-train", "ARGS=--train README.md --dev ./README.md")[-1]
    readme = str(ROOT / "README.md")
    assert f"{readme}:{readme}:ro" in options(call, "--volume")
    assert call[-4:] == ["--train", readme, "--dev", readme]


def test_a_file_that_is_not_there_is_named_before_the_build(docker):
    assert docker.make("docker-train", "ARGS=--train /no/such.tsv") == []
    assert docker.status == 2
    assert "error: --train /no/such.tsv: no such file or folder here" in docker.said
    assert "DATA=" in docker.said


def test_other_commands_write_where_the_user_finds_it(docker, tmp_path):
    texts, out = tmp_path / "texts.txt", tmp_path / "made" / "here"
    texts.write_text("a\n")
    command = f"predict --run '{docker.runs}/classification/latest' --file {texts}"
    call = docker.make("docker-run", f"CMD={command}")[-1]
    place = call.index("-m", call.index("amp_xla:tf1") + 5)
    assert call[place:] == [
        *("-m", "amp_xla", "predict", "--run", f"{WORKSPACE}/runs/classification/latest"),
        *("--file", str(texts)),
    ]
    call = docker.make("docker-run", f"CMD=prepare --corpus {texts} --out {out}")[-1]
    assert f"{out}:{out}" in options(call, "--volume") and out.is_dir()
    docker.make("docker-run")
    assert docker.status == 2 and "docker-run needs a command" in docker.said


def test_podman(docker):
    build, _, call = docker.make("docker-train", "ENGINE=podman", "GPUS=0,1")[1:]
    assert build[0] == "build" and docker.status == 0
    assert options(call, "--device") == ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]
    assert options(call, "--gpus") == []
    # Rootless: the files that it writes are this user's.
    assert options(call, "--userns") == ([] if os.getuid() == 0 else ["keep-id"])
    docker.make("docker-train", "ENGINE=lxc")
    assert docker.status == 2 and "Allowed: docker, podman" in docker.said


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


def test_several_folders_and_names_with_spaces_and_colons(docker, tmp_path):
    plain, odd = tmp_path / "plain", tmp_path / 'a b: c, "d"'
    plain.mkdir()
    odd.mkdir()
    call = docker.make("docker-train", f"DATA={plain} {tmp_path}")[-1]
    assert {f"{plain}:{plain}:ro", f"{tmp_path}:{tmp_path}:ro"} <= set(options(call, "--volume"))
    call = docker.make("docker-train", f"DATA={odd}")[-1]
    (mount,) = options(call, "--mount")
    assert next(csv.reader([mount])) == ["type=bind", f"source={odd}", f"target={odd}", "readonly"]
    docker.runs = tmp_path / "runs: mine"
    call = docker.make("docker-train")[-1]
    (mount,) = options(call, "--mount")
    assert next(csv.reader([mount])) == [
        *("type=bind", f"source={docker.runs}", f"target={WORKSPACE}/runs")
    ]


@pytest.mark.parametrize("name", ["IMAGE", "BASE_IMAGE"])
@pytest.mark.parametrize("value", ["--privileged", "x'; touch pwned;'", "$(touch pwned)", "a b"])
def test_what_is_no_image_s_name_is_refused_before_docker_sees_it(docker, name, value):
    assert docker.make("docker-shell", f"{name}={value.replace('$', '$$')}") == []
    assert docker.status == 2 and f"error: {name}={value} is not an image's name" in docker.said
    assert not (ROOT / "pwned").exists()


@pytest.mark.parametrize(
    "variables, base, image",
    [
        (["RUNTIME=tf1"], "nvcr.io/nvidia/tensorflow:23.03-tf1-py3", "amp_xla:tf1"),
        (["RUNTIME=tf2"], "nvcr.io/nvidia/tensorflow:25.02-tf2-py3", "amp_xla:tf2"),
        (["BASE_IMAGE=a:22.12-tf2-py3"], "a:22.12-tf2-py3", "amp_xla:tf2"),
        (["BASE_IMAGE=a:21.09-tf1-py3"], "a:21.09-tf1-py3", "amp_xla:tf1"),
        (["BASE_IMAGE=mine:1"], "mine:1", "amp_xla:auto"),
        (["BASE_IMAGE=a/b@sha256:01", "RUNTIME=tf1"], "a/b@sha256:01", "amp_xla:tf1"),
        (["BASE_IMAGE=mine:1", "RUNTIME=tf2", "IMAGE=b:3"], "mine:1", "b:3"),
    ],
)
def test_the_image_and_the_runtime_follow_each_other(docker, variables, base, image):
    build = docker.make("docker-build", *variables)[-1]
    assert f"BASE_IMAGE={base}" in build and options(build, "--tag")[0] == image


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
