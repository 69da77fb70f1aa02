"""The command lines that `make docker-*` passes to docker, podman and apptainer.

No engine runs here: small programs with their names write down their arguments.
"""

import os

import pytest

from tests.support.running import ROOT, run

pytestmark = pytest.mark.once

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

    def __init__(self, folder):
        self.log, self.runs, self.bin = folder / "log", folder / "my runs", folder / "bin"
        self.bin.mkdir()
        for name in ("docker", "podman", "apptainer"):
            (self.bin / name).write_text(FAKE_ENGINE)
            (self.bin / name).chmod(0o755)
        self.status, self.stderr = 0, ""

    def make(self, target, *variables, **environment):
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
def docker(tmp_path):
    return Docker(tmp_path)


RUN1 = "run --rm --init {gpus} --ipc=host --stop-timeout 300 {user} --ulimit memlock=-1"
RUN = f"{RUN1} --ulimit stack=67108864 --volume {{runs}}:/workspace/amp_xla/runs{{settings}}"
ALL, ONE, TWO = "--gpus all", "--device nvidia.com/gpu=0", "--device nvidia.com/gpu=1"
TRAIN = "./amp-xla train --runtime tf1 --recipe classification --"
BUILD = "build --build-arg BASE_IMAGE=nvcr.io/nvidia/tensorflow"
SIF = "{root}/.cache/apptainer/tf1-tensorflow-23.03-tf1-py3-{revision}.sif"
# (variables of make, the environment): the last command lines of the engine.
LINES = {
    "build": (["docker-build"], {}, [
        "info", f"{BUILD}:23.03-tf1-py3 --build-arg RUNTIME=tf1 --build-arg REVISION={{revision}} "
        "--tag amp_xla:tf1 --tag amp_xla:tf1-{tag} {root}"]),
    "another build": (["docker-build", "RUNTIME=tf2", "IMAGE=b:3"], {}, [
        f"{BUILD}:25.02-tf2-py3 --build-arg RUNTIME=tf2 --build-arg REVISION={{revision}} "
        "--tag b:3 --tag b:tf2-{tag} {root}"]),
    "train": (["docker-train", "ARGS=--epochs 3 --name 'a b'", "NP="], {}, [
        f"run --rm {ALL} --entrypoint nvidia-smi amp_xla:tf1 -L",
        f"{RUN} amp_xla:tf1 {TRAIN} --epochs 3 --name a b"]),
    "ranks": (["docker-train", "NP=2"], {}, [
        f"{RUN} amp_xla:tf1 ./amp-xla ranks --np 2 --runtime tf1 --recipe classification --"]),
    "shell": (["docker-shell"], {}, [f"{RUN} amp_xla:tf1 bash"]),
    "command": (["docker-shell", "ARGS=./amp-xla doctor"], {}, [
        f"{RUN} amp_xla:tf1 ./amp-xla doctor"]),
    "podman": (["docker-train", "ENGINE=podman", "GPUS=0,1"], {}, [
        f"run --rm {ONE} {TWO} --entrypoint nvidia-smi amp_xla:tf1 -L",
        f"{RUN.replace('{gpus}', f'{ONE} {TWO}')} amp_xla:tf1 {TRAIN}"]),
    "apptainer": (["docker-train", "ENGINE=apptainer", "GPUS=1", "ARGS=--train README.md"],
                  {"TF_VAR_x": "x", "AMP_XLA_XLA": "on"}, [
        f"exec --nv {SIF} nvidia-smi -L",
        "exec --cleanenv --pwd /workspace/amp_xla --bind {runs}:/workspace/amp_xla/runs --nv "
        "--bind {root}/README.md:{root}/README.md:ro --env AMP_XLA_XLA=on "
        f"--env CUDA_VISIBLE_DEVICES=1 {SIF} {TRAIN} --train {{root}}/README.md"]),
    "only settings pass": (["docker-train"], dict.fromkeys(
        "TF_VAR_password TF_TOKEN_app TF_HTTP_PASSWORD TF_CLI_ARGS TF_LOG AMP_XLA_XLA "
        "TF_CPP_MIN_LOG_LEVEL NCCL_DEBUG XLA_FLAGS".split(), "off"), [
        RUN.replace("{settings}", " --env AMP_XLA_XLA --env NCCL_DEBUG --env TF_CPP_MIN_LOG_LEVEL "
                    "--env XLA_FLAGS") + f" amp_xla:tf1 {TRAIN}"]),
    "own recipe": (["docker-train", "RECIPE=examples/../setup.py"], {}, [
        f"{RUN} --volume {{root}}/setup.py:{{root}}/setup.py:ro amp_xla:tf1 "
        f"{TRAIN.replace('classification', '{root}/setup.py')}"]),
    "files are mounted": (["docker-train", "ARGS=--train '{odd}' --vocab=README.md --bert "
                           "'{runs}/pretraining/x' --out {out} --name out"], {}, [
        f"{RUN} --volume {{odd}}:{{odd}}:ro --volume {{root}}/README.md:{{root}}/README.md:ro "
        f"--volume {{out}}:{{out}} amp_xla:tf1 {TRAIN} --train {{odd}} --vocab={{root}}/README.md "
        "--bert /workspace/amp_xla/runs/pretraining/x --out {out} --name out"]),
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_the_command_lines(docker, tmp_path, name):
    variables, environment, expected = LINES[name]
    odd, out = tmp_path / "my texts" / "a b.tsv", tmp_path / "made"
    odd.parent.mkdir()
    odd.write_text("a\tb\n")
    places = {"runs": docker.runs, "odd": odd, "out": out}
    calls = docker.make(*(word.format(**places) for word in variables), **environment)
    assert docker.status == 0, docker.stderr
    built = docker.make("docker-build")[-1]
    (revision,) = [word[len("REVISION=") :] for word in built if word.startswith("REVISION=")]
    user = f"--user {os.getuid()}:{os.getgid()}"
    if "podman" in name and os.getuid():
        user = f"--userns keep-id {user}"
    words = {**places, "gpus": ALL, "user": user, "settings": "", "root": ROOT,
             "revision": revision, "tag": revision.replace("+", "-changed")}  # fmt: skip
    assert [" ".join(call) for call in calls[-len(expected) :]] == [
        line.format(**words) for line in expected
    ]
    # Otherwise the daemon would create it, as root.
    assert docker.runs.is_dir() == (variables[0] != "docker-build")


@pytest.mark.parametrize("variables, fake, calls, message", [
    (["ARGS=--train /no.tsv"], {}, 0, "error: --train /no.tsv: no such file or folder here"),
    (["RECIPE=no.py"], {}, 0, "error: RECIPE=no.py: there is no such file."),
    (["ENGINE=podman"], {"FAKE_INFO": "cannot set up"}, 1, "podman does not answer: cannot set up"),
    (["ENGINE=podman"], {"FAKE_GPU": "unresolvable CDI"}, 3, "sudo nvidia-ctk cdi generate"),
    (["GPUS=two"], {}, 0, "error: GPUS=two is unknown. Allowed: all, none, or indices"),
    (["RUNTIME=tf1", "BASE_IMAGE=x:25.02-tf2-py3"], {}, 0, "x:25.02-tf2-py3 is a tf2 image"),
    (["IMAGE=$$(touch pwned)"], {}, 0, "is not an image's name"),
    ([], {"FAKE_INFO": "permission denied while trying to connect"}, 1, "usermod -aG docker"),
    ([], {"FAKE_BUILD": "1"}, 2, "docker pull nvcr.io/nvidia/tensorflow:23.03-tf1-py3"),
    ([], {"FAKE_GPU": 'could not select device driver ""'}, 3, "nvidia-ctk runtime"),
    ([], {"FAKE_STATUS": "3"}, 4, "Error 3"),  # make's line about the exit code of training
])  # fmt: skip
def test_an_error_names_the_next_command_after_so_many_calls(
    docker, variables, fake, calls, message
):
    assert len(docker.make("docker-train", *variables, **fake)) == calls
    assert docker.status == 2 and message in docker.stderr
