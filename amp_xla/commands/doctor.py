"""``amp-xla doctor``: can this machine train bert4keras with mixed precision and XLA?

Each finding says what was found, why it matters and, if something is wrong, how to fix it. The exit
code is 1 if something will fail, else 0.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import List, Mapping, Optional, Sequence

from typing_extensions import Literal

from amp_xla import backend
from amp_xla.backend import nvidia, visible
from amp_xla.backend.nvidia import Gpu
from amp_xla.commands import containers
from amp_xla.config import parse
from amp_xla.errors import AmpXlaError, SettingsError
from amp_xla.process.output import printable
from amp_xla.process.typed import container
from amp_xla.process.typed import environment as environment_command
from amp_xla.settings import Precision, Settings, flags
from amp_xla.speed.machine import DEVICE, Machine, look

Level = Literal["ok", "note", "warning", "error"]
IN_CONTAINER = Path("/.dockerenv")
TF1_IMAGE = "nvcr.io/nvidia/tensorflow:{}-tf1-py3"
TF2_IMAGE = "nvcr.io/nvidia/tensorflow:25.02-tf2-py3"


@dataclasses.dataclass(frozen=True)
class Config:
    """Check GPU, driver, TensorFlow, bert4keras, environment and Docker."""

    container: str = "23.03"
    """release of NVIDIA's TensorFlow 1.15 container to compare with, 20.12 to 23.03"""
    json: bool = False
    """print JSON"""


@dataclasses.dataclass(frozen=True)
class Finding:
    """``what`` was found about a subject, ``why`` it matters, and how to ``fix`` it."""

    level: Level
    about: str
    what: str
    why: str
    fix: str = ""

    def __str__(self) -> str:
        mark = self.level.upper() if self.level in ("warning", "error") else self.level
        lines = [f"{mark:<8}{self.about}: {self.what}", f"        {self.why}"]
        lines += [f"        fix: {self.fix}"] if self.fix else []
        return "\n".join(map(printable, lines))


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Print the findings; return 1 if one is an error."""
    config = parse(Config, argv, "amp-xla doctor")
    release = nvidia.version(config.container)
    if containers.group(release) is None:
        raise AmpXlaError(
            f"--container {config.container}: allowed are 20.12 to 23.03, the releases with "
            f"TensorFlow 1.15 and Python 3.8"
        )
    findings = examine(os.environ, release)
    if config.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=1))
    else:
        print("\n".join(map(str, findings)))
        counts = [sum(f.level == level for f in findings) for level in ("error", "warning")]
        print(f"\n{counts[0]} errors, {counts[1]} warnings")
    return int(any(finding.level == "error" for finding in findings))


def examine(environ: Mapping[str, str], release: nvidia.Version) -> List[Finding]:
    """Return all findings.

    Args:
      environ: the user's environment.
      release: container to compare with, e.g. (21, 9).
    """
    seen = nvidia.look(environ)
    findings = graphics(seen)
    if seen.gpus:
        findings.append(driver(seen.gpus[0], release))
    machine: Optional[Machine] = None
    if importlib.util.find_spec("tensorflow") is None:
        what = f"not installed for {sys.executable}"
        # An environment for JAX is complete without it.
        level: Level = "note" if importlib.util.find_spec("jax") is not None else "error"
        why = "recipes and most commands need it; amp_xla.precision.jax works without"
        findings.append(Finding(level, "TensorFlow", what, why, environment_command()))
    else:
        try:
            machine = look()
        except subprocess.CalledProcessError as error:
            text = error.stderr.decode(errors="replace")
            what = f"cannot be imported: {text.strip().splitlines()[-1]}"
            why = "nothing can be trained here"
            findings.append(Finding("error", "TensorFlow", what, why, environment_command()))
    if machine is not None:
        usable = environ.get(DEVICE) != "cpu" and not seen.hidden
        findings += tensorflow(machine, seen.gpus if usable else (), environ)
    return [*findings, *environment(environ, machine), docker()]


def graphics(seen: nvidia.Driver) -> List[Finding]:
    """Return findings about the GPUs and what they can compute."""
    findings = [_abilities(gpu) for gpu in seen.gpus]
    if seen.problem:
        what = f"nvidia-smi shows no GPU: {seen.problem}"
        fix = "sudo modprobe nvidia; if that fails, install the driver again and restart"
        findings.append(Finding("error", "GPU", what, "the driver is not running", fix))
    elif not seen.gpus:
        what = "no NVIDIA GPU: nvidia-smi is not on PATH"
        why = "training runs on the CPU; float16 can be rehearsed there"
        findings.append(Finding("note", "GPU", what, why, "amp-xla rehearse"))
    elif seen.hidden:
        what, fix = f"{seen.hidden} hides every GPU", "unset CUDA_VISIBLE_DEVICES"
        findings.append(Finding("warning", "GPU", what, "training runs on the CPU", fix))
    return findings


def _abilities(gpu: Gpu) -> Finding:
    capability = gpu.capability
    if capability is None:
        what = f"{gpu.name}; driver {gpu.driver or 'unknown'}, compute capability unknown"
        return Finding("note", "GPU", what, "mixed precision needs 7.0 or newer (Volta)")
    what = f"{gpu.name}, compute capability {'.'.join(map(str, capability))}"
    if capability < (7, 0):
        why = "no tensor cores: TensorFlow skips the mixed-precision rewrite below 7.0"
        return Finding("warning", "GPU", what, why, "AMP_XLA_PRECISION=fp32")
    if capability < (8, 0):
        why = "tensor cores for float16: mixed precision works; no bfloat16, no TF32"
        return Finding("ok", "GPU", what, why)
    if capability >= nvidia.BLACKWELL:
        why = "TensorFlow 2.17 has no kernels for it: the driver compiles them at the first start "
        why += "(half an hour) or fails; NVIDIA's container has them"
        return Finding("warning", "GPU", what, why, container(TF2_IMAGE))
    why = "tensor cores for float16, bfloat16 and TF32: float32 means TF32 unless "
    why += "AMP_XLA_PRECISION=fp32; compare amp with tf32"
    return Finding("ok", "GPU", what, why)


def driver(gpu: Gpu, release: nvidia.Version) -> Finding:
    """Compare driver and GPU with a container."""
    entry = containers.group(release)
    assert entry is not None  # main has checked the release
    have = nvidia.version(gpu.driver)
    if not have:
        why = "cannot be compared with containers"
        return Finding("note", "driver", "driver version unknown", why)
    capability = gpu.capability or (7, 0)
    newest = containers.newest(have, gpu.name, capability)
    image = f"container {containers.name(release)} (CUDA {entry.cuda})"
    fix = f"install driver {entry.driver[0]} or newer"
    if newest is not None:
        fix += f", or use: {container(TF1_IMAGE.format(containers.name(newest)))}"
    if not containers.knows(entry, capability):
        what = f"{image} was built before compute capability {capability[0]}.{capability[1]}"
        why = "its libraries hold no code for this GPU: it starts after minutes, or not at all"
        image = TF1_IMAGE.format(containers.name(newest or containers.LAST))
        fix = container(TF2_IMAGE if capability >= nvidia.BLACKWELL else image)
        return Finding("error", "driver", what, why, fix)
    needed = ".".join(map(str, entry.driver))
    if containers.runs(entry, have, gpu.name):
        why = f"{image} needs driver {needed} or newer"
        if have[:2] < entry.driver[:2]:
            why += "; older branches run it on data-center GPUs"
        return Finding("ok", "driver", gpu.driver, why)
    what = f"{gpu.driver} is too old for {image}"
    return Finding("error", "driver", what, f"needs {needed}; it would not see the GPU", fix)


def tensorflow(machine: Machine, gpus: Sequence[Gpu], environ: Mapping[str, str]) -> List[Finding]:
    """Return findings about TensorFlow, whether it sees ``gpus``, and bert4keras."""
    if machine.fork:
        what, why = f"{machine.tensorflow}, NVIDIA's build", "has XLA Lite (AMP_XLA_XLA=lite)"
    else:
        what, why = f"{machine.tensorflow}, stock build", "mixed precision through its sessions"
        why += ", no XLA Lite" if "lite" in machine.absent else ""
    findings = [Finding("ok", "TensorFlow", what, why)]
    if gpus and not machine.gpu:
        missing = visible.missing_libraries(environ)
        shown = nvidia.Driver(tuple(gpus))
        reason, fix = visible.reason(shown, missing, machine.tensorflow, machine.fork)
        what = f"nvidia-smi shows a GPU, TensorFlow sees none: {reason}"
        why = "training stops with an error, unless AMP_XLA_DEVICE=cpu is set"
        findings.append(Finding("error", "TensorFlow", what, why, fix))
    if not machine.half_dtype:
        what, fix = "no half precision on this device", "amp-xla rehearse shows float16"
        why = "AMP_XLA_PRECISION=amp trains in float32 here"
        findings.append(Finding("note", "TensorFlow", what, why, fix))
    if nvidia.version(machine.bert4keras) < backend.SAFE_MASKS:
        why = "masks with 1e12, which is NaN in float16: `import amp_xla.setup` sets 1e4; CRF and "
        why += "MEMM work with neither and are refused in float16"
        fix = "for CRF or MEMM: pip install --no-deps bert4keras==0.11.5, or AMP_XLA_PRECISION=tf32"
        findings.append(Finding("note", "bert4keras", machine.bert4keras, why, fix))
    else:
        why = "masks with tf.where: RealFormer, CRF and MEMM are safe in float16"
        findings.append(Finding("ok", "bert4keras", machine.bert4keras, why))
    return findings


def environment(environ: Mapping[str, str], machine: Optional[Machine]) -> List[Finding]:
    """Return findings about variables that are misspelt, ignored, or contradict each other."""
    major = None if machine is None else int(machine.tensorflow.split(".")[0])
    problems = flags.check(environ, major)
    try:
        settings = Settings.from_environment(environ)
        flags.environment(settings, environ)
    except SettingsError as error:
        problems.append(str(error))
    if not problems:
        half = machine.half_dtype or None if machine else None
        what = Precision.of(settings, half).describe()
        return [Finding("ok", "environment", what, "no variable is misspelt or contradicts")]
    why = "training stops at once with this"
    return [Finding("error", "environment", text, why, _unset(text)) for text in problems]


def _unset(problem: str) -> str:
    """Return ``unset NAME`` for the first variable that a sentence names."""
    words = [word.split("=")[0].strip(",;:") for word in problem.split()]
    names = [word for word in words if word.isupper() and "_" in word]
    return f"unset {names[0]}" if names else ""


def docker() -> Finding:
    """Return a finding about Docker and NVIDIA's runtime."""
    if IN_CONTAINER.exists():
        return Finding("ok", "Docker", "inside a container", "nothing to check from in here")
    if shutil.which("docker") is None:
        fix = "https://docs.docker.com/engine/install/"
        return Finding("note", "Docker", "not installed", "containers need it", fix)
    code, out = nvidia.run(["docker", "info", "--format", "{{json .Runtimes}}"])
    if code != 0:
        what = f"does not answer: {out.strip().splitlines()[-1] if out.strip() else code}"
        fix = "sudo systemctl start docker; sudo usermod -aG docker $USER, then log in again"
        return Finding("error", "Docker", what, "no container can be started", fix)
    if "nvidia" not in out:
        level: Level = "error" if shutil.which("nvidia-smi") else "note"
        fix = "sudo apt-get install nvidia-container-toolkit && sudo nvidia-ctk runtime configure "
        fix += "--runtime=docker && sudo systemctl restart docker"
        what = "runs, without NVIDIA's runtime"
        return Finding(level, "Docker", what, "containers would not see a GPU", fix)
    return Finding("ok", "Docker", "runs, with NVIDIA's runtime", "containers see the GPUs")
