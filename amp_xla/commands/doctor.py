"""``amp-xla doctor``: check whether this machine can train with mixed precision and XLA.

Each check prints what was found, why it matters and, if something is wrong, how to fix it. The exit
code is 1 if a check found an error, else 0.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import List, Optional, Sequence

from typing_extensions import Literal

from amp_xla import backend
from amp_xla.backend import nvidia
from amp_xla.backend.nvidia import Gpu
from amp_xla.config import parse
from amp_xla.errors import SettingsError, UnsupportedError
from amp_xla.process.checkout import TF2_IMAGE, as_typed, container
from amp_xla.process.checkout import environment as environment_command
from amp_xla.process.output import printable
from amp_xla.settings import Precision, Settings, flags
from amp_xla.speed.machine import Machine, look

Level = Literal["ok", "note", "warning", "error"]
IN_CONTAINER = Path("/.dockerenv")

# NVIDIA's container 23.03 needs at least DRIVER. Data-center GPUs also work with some older driver
# branches, through a compatibility package in the container. docs/doctor.md lists other containers.
DRIVER = (530, 30)
DATACENTER_DRIVERS = ((450, 51), (470, 57), (510, 47), (515, 65), (525, 85))
# Names in nvidia-smi. GeForce, TITAN and workstation cards have no compatibility package.
DATACENTER = frozenset(
    "Tesla P4 P40 P100 V100 T4 A2 A10 A16 A30 A40 A100 A800 L4 L40 H100 H200 H800".split()
)


@dataclasses.dataclass(frozen=True)
class Config:
    """Check GPU, driver, TensorFlow, bert4keras, environment and Docker."""

    json: bool = False
    """print JSON"""


@dataclasses.dataclass(frozen=True)
class Check:
    """A result of a check: ``what`` was found, ``why`` it matters, and how to ``fix`` it."""

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
    """Print the result of each check; return 1 if one is an error."""
    config = parse(Config, argv, "amp-xla doctor")
    checks = examine()
    if config.json:
        print(json.dumps([dataclasses.asdict(check) for check in checks], indent=1))
    else:
        print(as_typed("\n".join(map(str, checks))))
        counts = [sum(f.level == level for f in checks) for level in ("error", "warning")]
        print(f"\n{counts[0]} errors, {counts[1]} warnings")
    return int(any(check.level == "error" for check in checks))


def examine() -> List[Check]:
    """Check this machine and this environment; return all results."""
    seen = nvidia.look()
    checks = [*graphics(seen), *map(driver, seen.gpus[:1])]
    machine: Optional[Machine] = None
    try:
        machine = look()
        checks += tensorflow(machine)
    except UnsupportedError as error:
        what, why = str(error).partition(": ")[2], "recipes and most commands need TensorFlow"
        # An environment for JAX is complete without it.
        has_tensorflow, has_jax = map(importlib.util.find_spec, ("tensorflow", "jax"))
        level: Level = "note" if has_jax and not has_tensorflow else "error"
        checks.append(Check(level, "TensorFlow", what, why, environment_command()))
    return [*checks, *environment(machine), docker()]


def graphics(seen: nvidia.Driver) -> List[Check]:
    """Check the GPUs and what they can compute."""
    checks = [_abilities(gpu) for gpu in seen.gpus]
    if seen.problem:
        what = f"nvidia-smi shows no GPU: {seen.problem}"
        fix = "sudo modprobe nvidia; if that fails, install the driver again and restart"
        checks.append(Check("error", "GPU", what, "the driver is not running", fix))
    elif not seen.gpus and seen.trace:  # WSL has it in /usr/lib/wsl/lib
        what = f"{seen.trace} shows a driver, but nvidia-smi is not on PATH"
        why = "GPU and driver version are unknown here"
        checks.append(Check("note", "GPU", what, why, "add the folder of nvidia-smi to PATH"))
    elif not seen.gpus:
        what = "no NVIDIA GPU: nvidia-smi is not on PATH"
        why = "training runs on the CPU; float16 can be rehearsed there"
        checks.append(Check("note", "GPU", what, why, "amp-xla rehearse"))
    elif seen.hidden:
        what, fix = f"{seen.hidden} hides every GPU", "unset CUDA_VISIBLE_DEVICES"
        checks.append(Check("warning", "GPU", what, "training runs on the CPU", fix))
    return checks


def _abilities(gpu: Gpu) -> Check:
    capability = gpu.capability
    if capability is None:
        what = f"{gpu.name}; driver {gpu.driver or 'unknown'}, compute capability unknown"
        return Check("note", "GPU", what, "mixed precision needs 7.0 or newer (Volta)")
    what = f"{gpu.name}, compute capability {'.'.join(map(str, capability))}"
    if capability < (7, 0):
        why = "no tensor cores: TensorFlow skips the mixed-precision rewrite below 7.0"
        return Check("warning", "GPU", what, why, "AMP_XLA_PRECISION=fp32")
    if capability < (8, 0):
        why = "tensor cores for float16: mixed precision works; no bfloat16, no TF32"
        return Check("ok", "GPU", what, why)
    if capability >= nvidia.BLACKWELL:
        why = "TensorFlow 2.17 has no kernels for it: the driver compiles them at the first start "
        why += "(half an hour) or fails; NVIDIA's container has them"
        return Check("warning", "GPU", what, why, container(TF2_IMAGE))
    why = "tensor cores for float16, bfloat16 and TF32: float32 means TF32 unless "
    why += "AMP_XLA_PRECISION=fp32; AMP may gain nothing over it without XLA"
    return Check("ok", "GPU", what, why)


def driver(gpu: Gpu) -> Check:
    """Compare the driver with the oldest ones for TensorFlow 1.15's container and for CUDA 12."""
    version = nvidia.version(gpu.driver)[:2]
    if not version:
        return Check(
            "note", "driver", "driver version unknown", "the container may need a newer driver"
        )
    needed = f"NVIDIA's container 23.03 needs {DRIVER[0]}.{DRIVER[1]} or newer"
    branch = any(b[0] == version[0] and b <= version for b in DATACENTER_DRIVERS)
    if version >= DRIVER or (branch and DATACENTER & {*gpu.name.replace("-", " ").split()}):
        why = "" if version >= DRIVER else "; data-center GPUs also work with this branch"
        return Check("ok", "driver", gpu.driver, needed + why)
    fix = f"install driver {DRIVER[0]} or newer, or use an older container; see docs/doctor.md"
    level: Level = "warning" if version >= nvidia.CUDA_12_DRIVER else "error"
    rest = " for this container, not for TensorFlow 2.17" * (level == "warning")
    return Check(level, "driver", f"{gpu.driver} is too old{rest}", needed, fix)


def tensorflow(machine: Machine) -> List[Check]:
    """Check TensorFlow, whether it sees the GPUs, and bert4keras."""
    if machine.fork:
        what, why = f"{machine.tensorflow}, NVIDIA's build", "has XLA Lite (AMP_XLA_XLA=lite)"
    else:
        what, why = f"{machine.tensorflow}, stock build", "mixed precision is set in its sessions"
        why += ", no XLA Lite" if "lite" in machine.absent else ""
    checks = [Check("ok", "TensorFlow", what, why)]
    if machine.unseen:
        what, _, fix = machine.unseen.partition("; next: ")
        why = "training stops with this error, unless AMP_XLA_DEVICE=cpu is set"
        checks.append(Check("error", "TensorFlow", what, why, fix))
    if not machine.half_dtype:
        what, fix = "no half precision on this device", "amp-xla rehearse shows float16"
        why = "AMP_XLA_PRECISION=amp trains in float32 here"
        checks.append(Check("note", "TensorFlow", what, why, fix))
    if nvidia.version(machine.bert4keras) < backend.SAFE_MASKS:
        why = "masks with 1e12, which overflows in float16; `import amp_xla.setup` sets 1e4. CRF "
        why += "and MEMM need larger values, so they are refused in float16"
        fix = "for CRF or MEMM: pip install --no-deps bert4keras==0.11.5, or AMP_XLA_PRECISION=tf32"
        checks.append(Check("note", "bert4keras", machine.bert4keras, why, fix))
    else:
        why = "masks with tf.where: RealFormer, CRF and MEMM are safe in float16"
        checks.append(Check("ok", "bert4keras", machine.bert4keras, why))
    return checks


def environment(machine: Optional[Machine]) -> List[Check]:
    """Check for environment variables that are misspelt or ignored, or contradict each other."""
    problems = flags.check(os.environ, backend.installed() == "tf2")
    try:
        settings = Settings.from_environment(os.environ)
        flags.environment(settings, os.environ)
    except SettingsError as error:
        problems.append(str(error))
    if not problems:
        half = machine.half_dtype or None if machine else None
        what = Precision.of(settings, half).describe()
        if "AMP_XLA_XLA" not in os.environ:
            gpu = machine is not None and machine.gpu
            rule = "on in runs that are long enough" if gpu else "off without a GPU"
            what = what.replace("XLA off", f"XLA off in scripts, auto in recipes ({rule})")
        return [Check("ok", "environment", what, "no variable is misspelt or contradicts another")]
    why, fix = "training stops with this error", "unset the variable, or correct its value"
    return [Check("error", "environment", text, why, fix) for text in problems]


def docker() -> Check:
    """Check Docker and NVIDIA's runtime."""
    if IN_CONTAINER.exists():
        return Check("ok", "Docker", "inside a container", "Docker is checked on the host only")
    if shutil.which("docker") is None:
        fix = "https://docs.docker.com/engine/install/"
        return Check("note", "Docker", "not installed", "containers need it", fix)
    code, out = nvidia.run(["docker", "info", "--format", "{{json .Runtimes}}"])
    if code != 0:
        what = f"does not respond: {out.strip().splitlines()[-1] if out.strip() else code}"
        fix = "sudo systemctl start docker; sudo usermod -aG docker $USER, then log in again"
        return Check("error", "Docker", what, "no container can be started", fix)
    if "nvidia" not in out:
        level: Level = "error" if shutil.which("nvidia-smi") else "note"
        fix = "sudo apt-get install nvidia-container-toolkit && sudo nvidia-ctk runtime configure "
        fix += "--runtime=docker && sudo systemctl restart docker"
        what = "running without NVIDIA's runtime"
        return Check(level, "Docker", what, "containers would not see a GPU", fix)
    return Check("ok", "Docker", "running with NVIDIA's runtime", "containers see the GPUs")
