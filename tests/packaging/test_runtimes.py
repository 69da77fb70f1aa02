"""The choice of the runtime by machine, request, recipe and run; what doctor says of a machine.

The kernel's files, nvidia-smi and the Pythons are faked.
"""

import json
import os
import re
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from amp_xla.backend import nvidia
from amp_xla.commands import doctor
from amp_xla.errors import UnsupportedError
from amp_xla.speed.machine import look
from scripts.environment import SetupError, installed, runtimes
from scripts.environment.__main__ import main, runtime_for
from tests.support.commands import CLI, Commands
from tests.support.running import ROOT

pytestmark = pytest.mark.once

A100 = "NVIDIA A100-SXM4-40GB, 535.104.05, 40960, 8.0, Disabled"
BROKEN = "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver."


class Machine:
    """A Linux host with these Pythons; `driver` gives it a GPU."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.patch = folder, monkeypatch
        self.minors = ()
        (folder / "bin").mkdir()
        self.path = f"{folder / 'bin'}:/usr/bin:/bin"
        monkeypatch.setenv("PATH", self.path)
        monkeypatch.setattr(nvidia, "ROOT", folder)
        for name in ("AMP_XLA_DEVICE", "CUDA_VISIBLE_DEVICES"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(runtimes, "find", self._find)
        monkeypatch.setattr(runtimes, "inside_container", lambda: False)
        monkeypatch.setattr(runtimes.platform, "system", lambda: "Linux")
        monkeypatch.setattr(runtimes.platform, "machine", lambda: "x86_64")

    def _find(self, minors):
        return next((f"/opt/python{minor}" for minor in minors if minor in self.minors), "")

    def program(self, name, text):
        (self.folder / "bin" / name).write_text(text)
        (self.folder / "bin" / name).chmod(0o755)

    def driver(self, answer, code=0):
        (self.folder / "dev").mkdir()
        (self.folder / "dev" / "nvidia0").write_text("")
        self.program("nvidia-smi", f"#!/bin/sh\necho '{answer}'\nexit {code}\n")

    def container(self, **packages):
        self.patch.setattr(runtimes, "inside_container", lambda: True)
        self.patch.setattr(runtimes, "distributions", lambda python: packages)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


WITH_CUDA = r"^runtime tf2 with CUDA: "
OLD = "NVIDIA GeForce RTX 3090, 470.82.01, 24268, 8.6, [N/A]"
# (Python versions, what nvidia-smi prints, variables, the request): a pattern of the line.
CHOICES = {
    "no Python": ("", "", {}, "auto", r"^runtime tf2: .*uv will download Python 3\.12"),
    "only 3.12": ("3.12", "", {}, "auto", r"^runtime tf2: .*no Python 3\.7 found"),
    "no GPU": ("3.7 3.12", "", {}, "auto", r"^runtime tf1: found Python 3\.7 "
               r"\(/opt/python3\.7\); RUNTIME=tf2 uses TensorFlow 2$"),
    "A100": ("3.7 3.8 3.12", A100, {}, "auto", rf"{WITH_CUDA}.*NVIDIA A100-SXM4-40GB \(8\.0, "
             r"driver 535\.104\.05\); using /opt/python3\.12.*; RUNTIME=nvtf1 or make"),
    "an old driver": ("3.7 3.12", OLD, {}, "auto",
                      r"^runtime tf2: .*driver 470\.82\.01 is older than 525\.60, .*, CPU only"),
    "a broken driver": ("3.12", BROKEN, {}, "auto",
                        rf"{WITH_CUDA}/dev/nvidia0, nvidia-smi reports: NVIDIA-SMI"),
    **{
        f"hidden by {value}": (
            "3.7 3.12", A100, {"CUDA_VISIBLE_DEVICES": value}, "auto", "^runtime tf1: "
            f"CUDA_VISIBLE_DEVICES={value or repr('')} hides the GPU: on the CPU; found Pyt")
        for value in ("", "-1,0", "NoDevFiles")
    },
    "chosen": ("3.12", A100, {"CUDA_VISIBLE_DEVICES": "GPU-8932f937"}, "auto", WITH_CUDA),
    "only 3.8": ("3.8", A100, {}, "auto", "^runtime nvtf1: "),
    "on the CPU": ("3.8", A100, {"AMP_XLA_DEVICE": "cpu"}, "tf2", "^runtime tf2: a reason"),
    "on the GPU": ("3.8", A100, {"AMP_XLA_DEVICE": "gpu"}, "tf2", f"{WITH_CUDA}a reason"),
    "tf1": ("3.8", A100, {}, "tf1", r"pyenv install 3\.7.*make docker-train.*RUNTIME=tf2"),
    "unknown": ("3.8", "", {}, "tf3", r"Allowed: auto, tf1, tf2, nvtf1, jax\."),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_the_choice_by_machine_and_request(machine, monkeypatch, name):
    versions, answer, variables, request, line = CHOICES[name]
    machine.minors = tuple(versions.split())
    if answer:
        machine.driver(answer, code=9 * (answer == BROKEN))
    machine.program("docker", "#!/bin/sh\n")
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    try:
        found = runtimes.choose(request, why="" if request == "auto" else "a reason").line()
    except SetupError as error:
        found = str(error)
    assert re.search(line, found), found


def test_pythons_of_version_managers_are_found_and_shims_are_not(tmp_path, monkeypatch):
    places = {"3.7": "pyenv/versions/3.7.16", "3.8": "uv/cpython-3.8.18-linux-x86_64-gnu",
              "3.9": "conda/envs/py39", "3.10": "usr"}  # fmt: skip
    for minor, place in {**places, "3.11": "pyenv/shims"}.items():
        program = tmp_path / place / "bin" / f"python{minor}"
        program = program.parents[1] / program.name if place.endswith("shims") else program
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("")
        program.chmod(0o755)
    (tmp_path / ".conda").mkdir()
    (tmp_path / ".conda" / "environments.txt").write_text(f"/gone\n{tmp_path / places['3.9']}\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'pyenv' / 'shims'}:{tmp_path / 'usr' / 'bin'}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "uv"))
    for minor, place in places.items():
        assert installed.find(("3.11", minor)) == str(tmp_path / place / "bin" / f"python{minor}")
    assert installed.find(("3.11", "3.12")) == ""


@pytest.mark.parametrize("version, runtime", [("1.15.5+nv23.3", "tf1"), ("2.17.0+nv25.2", "tf2")])
def test_the_tensorflow_of_a_container_is_used(machine, version, runtime):
    machine.container(tensorflow=version, bert4keras="0.11.3")
    for request in ("auto", runtime):
        choice = runtimes.choose(request)
        assert choice.provided and choice.complete and choice.runtime.name == runtime
        assert f"has TensorFlow {version}, used as it is" in choice.line()
    other = {"tf1": "tf2", "tf2": "tf1"}[runtime]
    with pytest.raises(SetupError, match=f"RUNTIME={other}, but .* has TensorFlow "):
        runtimes.choose(other)
    machine.container(tensorflow=version)
    assert not runtimes.choose("auto").complete


@pytest.mark.parametrize(
    "recipe, request_, runtime",
    [
        ("classification", "nvtf1", "nvtf1"),
        ("classification", "jax", "needs TensorFlow, found RUNTIME=jax."),
        ("jax_classification", "auto", "jax"),
        ("jax_classification", "tf1", "needs RUNTIME=jax, found RUNTIME=tf1."),
    ],
)
def test_a_recipe_decides(recipe, request_, runtime):
    for words in ([recipe, "--"], ["--steps", "2", f"--recipe={recipe}"], ["--recipe", recipe]):
        try:
            chosen = runtime_for("rehearse", words, request_, ROOT)
        except SetupError as error:
            chosen = str(error)
        assert chosen.endswith(runtime)


def test_a_run_decides(tmp_path, monkeypatch):
    monkeypatch.setattr("scripts.environment.__main__.has_tensorflow", lambda: False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNTIME", raising=False)
    os.makedirs("runs/tagging/x")
    commands = ("predict runs/tagging/x a.txt", "predict --checkpoint x --run runs/tagging/x")
    commands += ("train --recipe tagging -- --name x --resume", "train tagging --resume --name=x")
    for version, runtime in (("1.15.5", "tf1"), ("1.15.5+nv23.3", "nvtf1"), ("2.17.1", "tf2")):
        Path("runs/tagging/x/run.json").write_text(json.dumps({"tensorflow": version}))
        for command, *words in map(str.split, commands):
            assert runtime_for(command, words, "auto", ROOT) == runtime
            with monkeypatch.context() as patched:
                chosen = Mock(side_effect=SetupError("no"))
                patched.setattr("scripts.environment.__main__.choose", chosen)
                assert main([command, *words]) == 2
            assert chosen.call_args[0] == (runtime, "", f"the run was trained with {runtime}")
    os.makedirs("runs/classification")
    os.symlink("../tagging/x", "runs/classification/latest")
    Path("run.json").write_text('{"jax": "1"}')
    for words, runtime in (("--file a.txt", "tf2"), ("--script a.py:b --weights w", "auto")):
        assert runtime_for("export", words.split(), "auto", ROOT) == runtime  # of the default run
    assert runtime_for("fill", [], "auto", ROOT) == "auto"
    assert runtime_for("predict", ["runs/tagging/x"], "jax", ROOT) == "jax"
    monkeypatch.setattr("scripts.environment.__main__.has_tensorflow", lambda: True)
    assert runtime_for("predict", ["runs/tagging/x"], "auto", ROOT) == "auto"
    Path("runs/tagging/x/run.json").write_text(json.dumps({"recipe": "script", "jax": "1"}))
    for command in ("predict", "evaluate", "export", "fill"):
        with pytest.raises(SetupError, match="runs/tagging/x: a script trained this run"):
            runtime_for(command, ["runs/tagging/x"], "auto", ROOT)
    assert runtime_for("report", ["--run", "runs/tagging/x"], "auto", ROOT) == "auto"


OLD_SMI = """case "$*" in *compute_cap*) echo 'compute_cap is not a valid field'; exit 2;; esac
echo 'Tesla T4, 440.64.00, 15109'
"""


@pytest.mark.parametrize("smi, level, words", [
    ("echo 'NVIDIA Thing, 470.82.01, 24576, 6.1'", "warning", "no tensor cores"),
    ("echo 'NVIDIA Thing, 470.82.01, 24576, 8.6'", "ok", "bfloat16 and TF32"),
    (f"echo '{BROKEN}'; exit 9", "error", BROKEN),
    (OLD_SMI, "note", "compute capability unknown"),
    ("", "note", "/dev/dxg shows a driver, but nvidia-smi is not on PATH"),
])  # fmt: skip
def test_doctor_says_what_a_gpu_can_compute(machine, smi, level, words):
    (machine.folder / "dev/dxg").mkdir(parents=True)  # WSL
    machine.program("nvidia-smi" if smi else "other", f"#!/bin/sh\n{smi}\n")
    findings = doctor.graphics(nvidia.look())
    assert findings[0].level == level and words in str(findings[0])


def test_the_gpus_that_cuda_shows(machine):
    machine.driver("Tesla K80, 470.82.01, 11441, 3.7\nTesla V100, 470.82.01, 16160, 7.0")
    gpus, bus = nvidia.look().gpus, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    for shown, order, first in (("0", {}, [7]), ("1", {}, [3]), ("1", bus, [7]), ("GPU-b", {}, [])):
        seen = nvidia.visible(gpus, {"CUDA_VISIBLE_DEVICES": shown, **order})
        assert [gpu.capability[0] for gpu in seen] == first


@pytest.mark.parametrize("name, version, level", [
    ("NVIDIA GeForce RTX 3090", "530.30.02", "ok"),
    ("NVIDIA GeForce RTX 3090", "525.60.13", "warning"),  # `make train` works
    ("NVIDIA GeForce RTX 3090", "470.82.01", "error"),
    # The same driver on a data-center GPU goes through the compatibility package.
    ("NVIDIA A100-SXM4-40GB", "470.82.01", "ok"),
    ("Tesla T4", "440.64.00", "error"),
])  # fmt: skip
def test_doctor_compares_the_driver_with_the_container(name, version, level):
    assert doctor.driver(doctor.Gpu(name, version)).level == level


def test_a_tensorflow_that_cannot_be_imported_is_one_line(monkeypatch):
    monkeypatch.setattr(doctor, "look", lambda: look(0.01))
    assert "ERROR   TensorFlow: not imported within 0 s\n" in "".join(map(str, doctor.examine()))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(UnsupportedError, match="^TensorFlow: exit code 1$"):
        look(9)


def test_training_refuses_a_gpu_that_tensorflow_does_not_see(server, tmp_path, machine):
    machine.driver(A100)
    (tmp_path / "a.tsv").write_text("rain\twet\nsun\tdry\n" * 8)
    command, path = Commands(server, tmp_path), f"import os; os.environ['PATH'] = '{machine.path}'"
    words = "train -- --layers 1 --hidden 64 --epochs 1 --train a.tsv --dev a.tsv"
    line = command(CLI, *words.split(), code=path).error
    assert "NVIDIA A100-SXM4-40GB (8.0, driver 535.104.05)" in line
    assert re.search(r"libcud\w+\.so\.\d+", line) and "AMP_XLA_DEVICE" in line
    done = command(CLI, "doctor", code=path)
    assert done.code == 1 and line.split(": ")[1] in done.out, done.out + done.err
