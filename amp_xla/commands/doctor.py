"""``amp-xla doctor``: is this machine fit for mixed precision and XLA with bert4keras?

    amp-xla doctor [--container 21.09] [--json]

Each finding says what was found, why it matters and, where something is wrong, what mends it. The
exit code is 1 where something will fail, else 0.
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
from typing import Any, List, Mapping, Optional, Sequence, Tuple

from typing_extensions import Literal

from amp_xla import backend
from amp_xla.backend import nvidia, visible
from amp_xla.backend.nvidia import Gpu
from amp_xla.commands import containers
from amp_xla.config import parse
from amp_xla.errors import AmpXlaError, SettingsError
from amp_xla.process.typed import container
from amp_xla.process.typed import environment as environment_command
from amp_xla.settings import Precision, Settings, flags
from amp_xla.speed.machine import DEVICE

Level = Literal["ok", "note", "warning", "error"]
IN_CONTAINER = Path("/.dockerenv")
TF2_IMAGE = "nvcr.io/nvidia/tensorflow:25.02-tf2-py3"
_GIB = 2.0**30
_LITTLE_RAM = 4.0
_NO_TRAINING = "nothing can be trained here"


@dataclasses.dataclass(frozen=True)
class Config:
    """Check GPU, driver, TensorFlow, bert4keras, environment, memory and Docker."""

    container: str = "23.03"
    """release of NVIDIA's TensorFlow 1.15 container that is to run here, 20.03 to 23.03"""
    json: bool = False
    """print JSON instead of a page"""


@dataclasses.dataclass(frozen=True)
class Finding:
    """``what`` was found about a subject, ``why`` it matters, ``fix``: a command or an advice."""

    level: Level
    about: str
    what: str
    why: str
    fix: str = ""

    def __str__(self) -> str:
        mark = {"ok": "ok", "note": "note", "warning": "WARNING", "error": "ERROR"}[self.level]
        lines = [f"{mark:<8}{self.about}: {self.what}", f"        {self.why}"]
        return "\n".join(lines + ([f"        fix: {self.fix}"] if self.fix else []))


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Prints the findings; 1 where one is an error."""
    config = parse(Config, argv, "amp-xla doctor")
    try:
        release = containers.version(config.container)
    except ValueError:
        release = ()
    if containers.group(release) is None:
        raise AmpXlaError(
            f"--container {config.container}: allowed are 20.03 to 23.03, the releases with "
            f"TensorFlow 1.15"
        )
    found = examine(os.environ, release)
    failed = any(finding.level == "error" for finding in found)
    if config.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in found], indent=1))
    else:
        print("\n".join(map(str, found)))
        counts = [sum(f.level == level for f in found) for level in ("error", "warning")]
        print(f"\n{counts[0]} errors, {counts[1]} warnings")
    return int(failed)


def examine(environ: Mapping[str, str], release: containers.Version) -> List[Finding]:
    """All findings, in the order of the page.

    Args:
      environ: the user's environment.
      release: of the container that is to run here, e.g. (21, 9).
    """
    gpus, found = graphics(environ)
    for gpu in gpus[:1]:
        found += driver(gpu, release)
    machine, problem = framework()
    if problem is not None:
        found.append(problem)
    else:
        usable = environ.get(DEVICE) != "cpu" and not nvidia.hidden(environ)
        found += tensorflow(machine, gpus if usable else [], environ)
    found += environment(environ, machine)
    found += memory(gpus)
    return found + docker()


def graphics(environ: Mapping[str, str]) -> Tuple[List[Gpu], List[Finding]]:
    """GPUs, and what they can do."""
    seen = nvidia.look(environ)
    if not seen.gpus:
        return [], [_no_gpu(seen)]
    found = [_abilities(gpu) for gpu in seen.gpus]
    if any(gpu.mig for gpu in seen.gpus):
        found.append(_mig(nvidia.instances(environ)))
    if seen.hidden:
        what = f"{seen.hidden} hides every GPU"
        why = "TensorFlow will train on the CPU"
        found.append(Finding("warning", "GPU", what, why, "unset CUDA_VISIBLE_DEVICES"))
    return list(seen.gpus), found


def _no_gpu(seen: nvidia.Driver) -> Finding:
    if not seen.trace and not seen.problem:
        what = "no NVIDIA GPU: nvidia-smi is not on PATH"
        why = "training here runs on the CPU; what float16 would do can still be rehearsed"
        return Finding("note", "GPU", what, why, "amp-xla rehearse classification")
    if not seen.problem:
        what = f"{seen.trace} is there, nvidia-smi is not on PATH"
        why = "a driver is loaded, but which GPU and how much memory it has cannot be told"
        return Finding("warning", "GPU", what, why, "install nvidia-utils of the driver's version")
    fix = "sudo modprobe nvidia; if that fails, install the driver again and restart"
    what = f"nvidia-smi is there but shows no GPU: {seen.problem}"
    return Finding("error", "GPU", what, "the driver is not running", fix)


def _abilities(gpu: Gpu) -> Finding:
    capability = gpu.likely_capability
    if capability is None:
        what = f"{gpu.name}; driver {gpu.driver or 'unknown'} does not tell its compute capability"
        why = "mixed precision needs 7.0 or newer (Volta); NVIDIA's CUDA GPU list has yours"
        return Finding("note", "GPU", what, why)
    what = f"{gpu.name}, compute capability {capability[0]}.{capability[1]}"
    if gpu.capability is None:
        what += (
            f" by its name (driver {gpu.driver or 'unknown'} does not tell its compute capability)"
        )
    if capability < (7, 0):
        why = "no tensor cores: TensorFlow skips the mixed-precision rewrite below 7.0"
        return Finding("warning", "GPU", what, why, "AMP_XLA_PRECISION=fp32")
    if capability < (8, 0):
        why = "tensor cores for float16: mixed precision works; no bfloat16, no TF32"
        return Finding("ok", "GPU", what, why)
    if capability >= nvidia.BLACKWELL:
        why = "newer than TensorFlow 2.17's kernels, which the driver compiles anew at the first "
        why += "start (half an hour) or refuses; NVIDIA's container has them"
        return Finding("warning", "GPU", what, why, container(TF2_IMAGE))
    why = "tensor cores for float16, bfloat16 and TF32: float32 here means TF32, unless "
    why += "AMP_XLA_PRECISION=fp32; compare amp with tf32"
    return Finding("ok", "GPU", what, why)


def _mig(instances: Sequence[str]) -> Finding:
    why = "TensorFlow uses one instance, with its share of memory and of the cores"
    if instances:
        what = f"MIG mode, {len(instances)} instance{'s'[: len(instances) > 1]}"
        fix = f"CUDA_VISIBLE_DEVICES={instances[0]} chooses one"
        return Finding("note", "GPU", what, why, fix)
    what = "MIG mode, and no instance that this user may use"
    return Finding("error", "GPU", what, why, "sudo nvidia-smi mig -cgi 0 -C, or ask who runs it")


def driver(gpu: Gpu, release: containers.Version) -> List[Finding]:
    """Driver and GPU against the container."""
    entry = containers.group(release)
    assert entry is not None  # main has seen to it
    have = containers.version(gpu.driver)
    if not have:
        what = "its version is not told"
        return [Finding("note", "driver", what, "which containers it runs cannot be said")]
    capability = gpu.likely_capability or (7, 0)
    newest = containers.newest(have, gpu.name, capability)
    image = f"container {containers.name(release)} (CUDA {entry.cuda})"
    image_name = f"nvcr.io/nvidia/tensorflow:{containers.name(newest or containers.LAST)}-tf1-py3"
    if release < containers.FIRST_SUPPORTED:
        what = f"{image} has Python 3.6"
        why = (
            f"this project needs 3.8, which came with {containers.name(containers.FIRST_SUPPORTED)}"
        )
        fix = container(image_name) if newest else "install a newer driver"
        return [Finding("error", "driver", what, why, fix)]
    if not containers.knows(entry, capability):
        what = f"{image} was built before compute capability {capability[0]}.{capability[1]}"
        why = "its libraries hold no code for this GPU: it starts after minutes, or not at all"
        fix = container(image_name)
        if capability >= nvidia.BLACKWELL:
            fix = container(TF2_IMAGE)
        return [Finding("error", "driver", what, why, fix)]
    if containers.runs(entry, have, gpu.name):
        why = f"{image} needs driver {'.'.join(map(str, entry.driver))} or newer"
        if have[:2] < entry.driver[:2]:
            why += "; older branches run it on data-center GPUs"
        return [Finding("ok", "driver", gpu.driver, why)]
    what = f"{gpu.driver} is too old for {image}"
    why = f"it needs {'.'.join(map(str, entry.driver))}; the container would not see the GPU"
    fix = f"install driver {entry.driver[0]} or newer"
    if newest is not None:
        fix += f", or take an older container: {container(image_name)}"
    return [Finding("error", "driver", what, why, fix)]


def framework() -> Tuple[Optional[Any], Optional[Finding]]:
    """What a fresh process finds of TensorFlow and bert4keras, or why it finds nothing."""
    if importlib.util.find_spec("tensorflow") is None:
        what = f"not installed for {sys.executable}"
        if importlib.util.find_spec("jax") is not None:
            why = "JAX is: amp_xla.precision.jax works; recipes and commands need TensorFlow"
            return None, Finding("note", "TensorFlow", what, why, environment_command())
        return None, Finding("error", "TensorFlow", what, _NO_TRAINING, environment_command())
    from amp_xla.speed import machine

    try:
        return machine.look(), None
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        said = getattr(error, "stderr", None) or str(error).encode()
        what = f"cannot be looked at: {said.decode(errors='replace').strip().splitlines()[-1]}"
        return None, Finding("error", "TensorFlow", what, _NO_TRAINING, environment_command())


def tensorflow(machine: Any, gpus: Sequence[Gpu], environ: Mapping[str, str]) -> List[Finding]:
    """The build of TensorFlow, whether it sees one of ``gpus``, and the version of bert4keras."""
    found = []
    if machine.fork:
        why = "reads TF_ENABLE_AUTO_MIXED_PRECISION*, has XLA-lite (AMP_XLA_XLA=lite), runs "
        why += "attention's softmax in float16"
        found.append(Finding("ok", "TensorFlow", f"{machine.tensorflow}, NVIDIA's build", why))
    else:
        lite = ", has no XLA-lite" if "lite" in machine.absent else ""
        why = f"ignores TF_ENABLE_AUTO_MIXED_PRECISION*{lite}; `import amp_xla.setup` "
        why += "turns mixed precision on for its sessions"
        found.append(Finding("ok", "TensorFlow", f"{machine.tensorflow}, stock build", why))
    if gpus and not machine.gpu:
        shown = nvidia.Driver(tuple(gpus))
        blind = visible.look_again(environ)
        said, fix = visible.reason(shown, blind, machine.tensorflow, machine.fork)
        what = f"nvidia-smi shows a GPU, TensorFlow sees none: {said}"
        why = "training would run on the CPU, and refuses to, without --device cpu"
        found.append(Finding("error", "TensorFlow", what, why, fix))
    if not machine.half_dtype:
        what = "no half precision on this device"
        why = "AMP_XLA_PRECISION=amp trains in float32 here"
        fix = "amp-xla rehearse classification shows float16"
        found.append(Finding("note", "TensorFlow", what, why, fix))
    if containers.version(machine.bert4keras) < backend.SAFE_MASKS:
        why = "masks with 1e12, NaN in float16 for LM, UniLM and RealFormer: `import "
        why += "amp_xla.setup` sets 1e4; its CRF and MEMM work with neither and are refused"
        fix = "for CRF or MEMM: pip install --no-deps bert4keras==0.11.5, or AMP_XLA_PRECISION=tf32"
        found.append(Finding("note", "bert4keras", machine.bert4keras, why, fix))
    else:
        why = "masks with `where`: RealFormer, CRF and MEMM are safe in float16"
        found.append(Finding("ok", "bert4keras", machine.bert4keras, why))
    return found


def environment(environ: Mapping[str, str], machine: Optional[Any]) -> List[Finding]:
    """Variables that are misspelt, without effect, or against each other."""
    major = None if machine is None else int(machine.tensorflow.split(".")[0])
    problems = flags.check(environ, major)
    try:
        settings = Settings.from_environment(environ)
        flags.environment(settings, environ)
        chosen = Precision(settings, machine.half_dtype if machine else None).describe()
    except SettingsError as error:
        problems.append(str(error))
        chosen = ""
    why = "training would stop at its first line with this"
    found = [Finding("error", "environment", text, why, _unset(text)) for text in problems]
    if not found:
        found = [Finding("ok", "environment", chosen, "no variable is misspelt or contradicts")]
    return found


def _unset(text: str) -> str:
    """``unset NAME`` for the variable that a sentence begins with, or speaks of."""
    words = [word.split("=")[0].strip(",;:") for word in text.split()]
    names = [w for w in words if w.isupper() and "_" in w]
    return f"unset {names[0]}" if names else ""


def available() -> Optional[float]:
    """Return the bytes of RAM that are free on the machine or in its container."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(float(x.split()[1]) for x in lines if x.startswith("MemAvailable:")) * 1024
    except (OSError, StopIteration, ValueError):
        return None
    root = Path("/sys/fs/cgroup")
    try:
        limit = float((root / "memory.max").read_text())
        return min(free, limit - float((root / "memory.current").read_text()))
    except (OSError, ValueError):  # no limit ("max"), or an older kernel
        return free


def memory(gpus: Sequence[Gpu]) -> List[Finding]:
    """Free memory of GPUs and machine."""
    found = []
    for gpu in gpus:
        if gpu.total is None or gpu.free is None:
            what = f"nvidia-smi does not tell how much of {gpu.name} is free"
            why = "in MIG mode, and where GPU and CPU share memory, it cannot"
            found.append(Finding("note", "memory", what, why))
            continue
        what = f"{gpu.free:.1f} of {gpu.total:.1f} GiB free on {gpu.name}"
        if gpu.busy:
            why = "BERT-base needs about 8 GiB (batch 32, length 128), and XLA more"
            fix = "nvidia-smi shows who holds it; else a smaller --batch-size"
            found.append(Finding("warning", "memory", what, why, fix))
        else:
            found.append(Finding("ok", "memory", what, "nobody else holds much of it"))
    free = available()
    if free is not None:
        what = f"{free / _GIB:.1f} GiB of RAM free"
        if free < _LITTLE_RAM * _GIB:
            why = "BERT-base with Adam takes about 4 GiB on a CPU, a rehearsal of it twice that"
            found.append(Finding("warning", "memory", what, why, "close other programs"))
        else:
            found.append(Finding("ok", "memory", what, "enough for BERT-base with Adam"))
    return found


def docker() -> List[Finding]:
    """Docker and the NVIDIA runtime."""
    if IN_CONTAINER.exists():
        return [Finding("ok", "Docker", "inside a container", "nothing to check from in here")]
    if shutil.which("docker") is None:
        why = "containers need it; everything else does not"
        fix = "https://docs.docker.com/engine/install/"
        return [Finding("note", "Docker", "not installed", why, fix)]
    code, out = nvidia.run(["docker", "info", "--format", "{{json .Runtimes}}"])
    if code != 0:
        what = f"does not answer: {out.strip().splitlines()[-1] if out.strip() else code}"
        why = "no container can be started"
        fix = "sudo systemctl start docker; sudo usermod -aG docker $USER, then log in again"
        return [Finding("error", "Docker", what, why, fix)]
    if "nvidia" not in out and shutil.which("nvidia-container-cli") is None:
        what = "runs, without NVIDIA's runtime"
        why = "containers would not see a GPU"
        fix = "sudo apt-get install nvidia-container-toolkit && sudo nvidia-ctk runtime configure "
        fix += "--runtime=docker && sudo systemctl restart docker"
        level: Level = "error" if shutil.which("nvidia-smi") else "note"
        return [Finding(level, "Docker", what, why, fix)]
    return [Finding("ok", "Docker", "runs, with NVIDIA's runtime", "containers see the GPUs")]
