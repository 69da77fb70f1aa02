"""Programs that XLA compiled, which TensorFlow 2 keeps in a folder for the next start.

TensorFlow checks that a program fits the graph, but not that its file is whole: a damaged one is an
error, or a crash. So each file has a checksum, which is written after the first step and when the
process ends; at the next start files without the right one are deleted.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import importlib
import os
import shutil
from pathlib import Path
from typing import IO, Any, Dict, List, Mapping

from amp_xla import __version__
from amp_xla.backend import nvidia
from amp_xla.process.progress import note

MOST_BYTES = 2**30  # of all folders; the oldest files are deleted first
_FREE_BYTES = 2**30  # on a disk with less space TensorFlow might fail to write a program
_SUM = ".sha256"
# Besides the graph, these decide what XLA makes of it.
_DECIDING = ("XLA_FLAGS", "TF_XLA_FLAGS", "NVIDIA_TF32_OVERRIDE", "TF_DETERMINISTIC_OPS")
_locks: List[IO[Any]] = []  # held until the process ends


def folder(environ: Mapping[str, str], gpu: bool) -> Path:
    """Return the folder for this TensorFlow, device, version of this package and XLA's flags."""
    caches = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name, device = _device(environ) if gpu else _processor()
    tensorflow = importlib.import_module("importlib.metadata").version("tensorflow")
    parts = [tensorflow, device, __version__, *(environ.get(key, "") for key in _DECIDING)]
    digest = hashlib.sha256("|".join(parts).encode()).hexdigest()[:12]
    return Path(caches, "amp_xla", "xla", f"tensorflow-{tensorflow}-{name}-{digest}")


def _processor() -> Any:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        lines = file.read().splitlines()
        return "cpu", "".join(sorted({x for x in lines if x.startswith(("model name", "flags"))}))
    return "cpu", ""


def _device(environ: Mapping[str, str]) -> Any:
    """Return a short name of the GPU, and all that is known about it and the driver."""
    gpus = nvidia.look().gpus
    name = gpus[0].name.replace(" ", "-").replace("/", "-") if gpus else "gpu"
    visible = environ.get("CUDA_VISIBLE_DEVICES", "") if len({gpu.name for gpu in gpus}) > 1 else ""
    return name, f"{[gpu[:2] for gpu in gpus[:1]]}{visible}"


@functools.lru_cache(maxsize=None)
def prepare(path: Path) -> bool:
    """Make the folder and delete files that are damaged or too many; return False if it fails.

    A process that is alone in the folder also deletes programs without a checksum, which a killed
    process left.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if shutil.disk_usage(str(path)).free < _FREE_BYTES:
            return False
        lock = open(path / "lock", "a")  # noqa: SIM115
        _locks.append(lock)
        alone = _alone(lock)
        for file in path.glob("*.pb*"):
            if file.suffix != _SUM and not _is_whole(file, alone):
                _remove(file)
        if alone:
            _trim(path)
        fcntl.flock(lock, fcntl.LOCK_SH)
    except OSError as error:
        note(f"XLA's programs are not kept for the next start: {error}")
        return False
    atexit.register(seal)
    return True


def programs() -> List[Path]:
    """Return the files of the programs in this process' folder."""
    return [file for lock in _locks for file in Path(lock.name).parent.glob("*.pb")]


def seal() -> None:
    """Write the checksum of each new program of this process' folder."""
    with contextlib.suppress(OSError):
        for file in programs():
            if not _sum(file).exists():
                _sum(file).write_text(_digest(file))


def _alone(lock: IO[Any]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_whole(file: Path, alone: bool) -> bool:
    """Return whether a file has the right checksum, or may be one that a process is writing."""
    with contextlib.suppress(FileNotFoundError):
        return _sum(file).read_text() == _digest(file)
    return not alone


def _trim(own: Path) -> None:
    """Delete the oldest programs, except of folders that other processes use."""
    files: Dict[Path, os.stat_result] = {}
    for path in own.parent.iterdir():
        with open(path / "lock", "a") as lock:
            if path == own or _alone(lock):
                files.update((file, file.stat()) for file in path.glob("*.pb"))
    excess = sum(stat.st_size for stat in files.values()) - MOST_BYTES
    for file in sorted(files, key=lambda each: files[each].st_mtime):
        if excess <= 0:
            break
        excess -= files[file].st_size
        _remove(file)


def _remove(file: Path) -> None:
    for each in (file, _sum(file)):
        with contextlib.suppress(FileNotFoundError):
            each.unlink()


def _sum(file: Path) -> Path:
    return file.with_name(file.name + _SUM)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
