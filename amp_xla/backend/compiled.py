"""Programs that XLA compiled, which TensorFlow 2 keeps in a folder for the next start.

TensorFlow checks that a program fits the graph, but a damaged file causes an error or a crash. So
each file gets a checksum after the first step and at the end. At the start, files with a missing or
wrong checksum are deleted.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib.util
import os
import shutil
from pathlib import Path
from typing import Dict, Iterator, Mapping, Optional

from amp_xla import __version__, backend
from amp_xla.backend import nvidia
from amp_xla.process import durable
from amp_xla.process.progress import note

MOST_BYTES = 2**30  # in all folders; the oldest files are deleted first
_FREE_BYTES = 2**30  # on a full disk, an error of TensorFlow's would end the run
# Besides the graph, these decide what XLA makes of it.
_DECIDING = (
    *("XLA_FLAGS", "TF_XLA_FLAGS", "NVIDIA_TF32_OVERRIDE", "TF_DETERMINISTIC_OPS"),
    "CUDA_VISIBLE_DEVICES",
)
_PROCESSOR = ("model name", "flags")  # fields of /proc/cpuinfo
_folder: Optional[Path] = None


def folder(environ: Mapping[str, str], gpu: bool) -> str:
    """Return the folder of programs for this device and the flags in ``environ``; '' = unusable."""
    root = Path(environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "amp_xla", "xla")
    tensorflow = importlib.util.find_spec("tensorflow")  # its package may be tensorflow-cpu
    if tensorflow is None or tensorflow.origin is None:
        return ""
    device = nvidia.look().describe() if gpu else str([*map(backend.cpu().get, _PROCESSOR)])
    build = f"{tensorflow.origin} {os.path.getmtime(tensorflow.origin)}"
    parts = [build, device, __version__, *(environ.get(name, "") for name in _DECIDING)]
    digest = hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]
    return _prepared(root / digest)


@functools.lru_cache(maxsize=None)
def _prepared(path: Path) -> str:
    """Make the folder and return its path; return '' if it is unusable.

    Damaged programs are deleted, and the oldest ones if all programs exceed ``MOST_BYTES``.
    """
    global _folder
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if shutil.disk_usage(str(path)).free < _FREE_BYTES:
            return ""
        for program in path.glob("*.pb"):
            checksum = _sum(program).read_bytes() if _sum(program).exists() else b""
            if checksum != durable.sha256(program).encode():
                _delete(program)
        stats: Dict[Path, os.stat_result] = {p: p.stat() for p in path.parent.glob("*/*.pb*")}
        excess = sum(stat.st_size for stat in stats.values()) - MOST_BYTES
        for file in sorted(stats, key=lambda each: stats[each].st_mtime):
            if excess > 0:
                excess -= stats[file].st_size
                _delete(file)
    except OSError as error:  # another process may be deleting the same files
        note(f"the programs that XLA compiles cannot be stored for the next start: {error}")
        return ""
    _folder = path
    atexit.register(seal)
    return str(path)


def programs() -> Iterator[Path]:
    """Yield the files of the programs that this process can load, or has compiled."""
    return iter(()) if _folder is None else _folder.glob("*.pb")


def seal() -> None:
    """Write the checksum of each new program."""
    with contextlib.suppress(OSError):
        for program in programs():
            if not _sum(program).exists():
                _sum(program).write_text(durable.sha256(program))


def _delete(program: Path) -> None:
    for file in (program, _sum(program)):
        with contextlib.suppress(FileNotFoundError):
            file.unlink()


def _sum(program: Path) -> Path:
    return program.with_name(f"{program.name}.sha256")
