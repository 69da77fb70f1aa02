"""Build an environment once, and know whether it is whole.

A folder counts as built when it holds a stamp that fits: the lock file's hash and the Python. The
stamp goes first and comes last, so what an interrupted build left behind is never taken for good.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Iterator, Optional

from scripts.environment.errors import SetupError
from scripts.environment.runtimes import Choice
from scripts.environment.uv import say, uv

STAMP = "amp_xla-stamp.json"
# As NVIDIA's own `nvidia-pyindex` sets it. Not reached from where this was written.
NVIDIA_INDEX = "https://pypi.ngc.nvidia.com"


def ensure(choice: Choice, root: Path) -> Path:
    """The Python of `choice`'s environment under `root`/.venvs, built if it is not whole.

    Raises:
      SetupError: uv failed, or the disk is too full.
    """
    folder = root / ".venvs" / choice.runtime.name
    python = folder / "bin" / "python"
    lock_file = root / "requirements" / choice.runtime.lock
    if _lacks_nvidia(lock_file):
        lock_file = _lock_here(choice, lock_file, root)
    if _is_whole(folder, lock_file, choice):
        return python
    with _only_builder(root, choice.runtime.name) as held:
        # Whoever was waited for may have built it.
        if not _is_whole(folder, lock_file, choice):
            _build(choice, folder, lock_file, root, held)
    return python


def _lacks_nvidia(lock_file: Path) -> bool:
    """The lock was made where NVIDIA's index could not be reached, and leaves its packages open."""
    asked = lock_file.with_suffix(".in")
    wanted = asked.exists() and re.search(r"^nvidia-tensorflow", asked.read_text(), re.MULTILINE)
    locked = re.search(r"^nvidia-tensorflow==", lock_file.read_text(), re.MULTILINE)
    return bool(wanted) and not locked


def _lock_here(choice: Choice, lock_file: Path, root: Path) -> Path:
    """The lock with NVIDIA's packages and their hashes, made once on this machine.

    Raises:
      SetupError: NVIDIA's index does not answer, or has no such package.
    """
    whole = root / ".venvs" / f"{choice.runtime.name}.lock.txt"
    mark = f"# of {lock_file.name} {_fingerprint(lock_file)}\n"
    if whole.exists() and whole.read_text().startswith(mark):
        return whole
    with _only_builder(root, f"{choice.runtime.name}-lock") as held:
        say(f"locking NVIDIA's packages from {nvidia_index()} (once) ...")
        partial = whole.with_suffix(".partial")
        try:
            _uv(
                *(uv(root), held, "pip", "compile", "--quiet", "--no-header", "--generate-hashes"),
                *("--index", nvidia_index(), "--python-version", choice.runtime.pythons[0]),
                *("--override", str(lock_file.with_name("container.overrides.txt"))),
                *("--constraint", str(lock_file), str(lock_file.with_suffix(".in"))),
                *("--output-file", str(partial)),
            )
        except SetupError as error:
            raise SetupError(
                f"{error}\nNVIDIA's package index {nvidia_index()} did not give what"
                f" {lock_file.with_suffix('.in').name} asks for. NVIDIA_INDEX=<address> names a"
                " mirror; RUNTIME=tf2 needs none; make docker-train has it all in an image."
            ) from error
        whole.write_text(mark + partial.read_text())
        partial.unlink()
    return whole


def nvidia_index() -> str:
    """The address of the package index that has NVIDIA's TensorFlow 1.15."""
    return os.environ.get("NVIDIA_INDEX") or NVIDIA_INDEX


def _is_whole(folder: Path, lock_file: Path, choice: Choice) -> bool:
    stamp = _read_stamp(folder)
    return (
        stamp is not None
        and stamp.get("lock") == _fingerprint(lock_file)
        and _python_fits(folder, choice)
    )


def _python_fits(folder: Path, choice: Choice) -> bool:
    """The environment's Python is there (its base was not removed) and of a version we want."""
    wanted = [choice.python.minor] if choice.python else choice.runtime.pythons
    return os.access(str(folder / "bin" / "python"), os.X_OK) and any(
        (folder / "lib" / f"python{minor}").is_dir() for minor in wanted
    )


def _read_stamp(folder: Path) -> Optional[dict]:
    try:
        stamp = json.loads((folder / STAMP).read_text())
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) else None


def _fingerprint(lock_file: Path) -> str:
    """Of what will be installed: comments, which name a path or a command, don't count."""
    lines = [line.split("#")[0].strip() for line in lock_file.read_text().splitlines()]
    return hashlib.sha256("\n".join(line for line in lines if line).encode()).hexdigest()


@contextmanager
def _only_builder(root: Path, name: str) -> Iterator[IO[str]]:
    """Hold the lock of one environment. The kernel frees it when the last holder dies."""
    (root / ".venvs").mkdir(exist_ok=True)
    with open(str(root / ".venvs" / f".{name}.lock"), "w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for the other command that is building environment {name} ...")
            fcntl.flock(held, fcntl.LOCK_EX)
        yield held


def _build(choice: Choice, folder: Path, lock_file: Path, root: Path, held: IO[str]) -> None:
    runtime = choice.runtime
    program = uv(root)
    # A whole environment of an older lock is brought up to date; anything else is made anew.
    renew = _read_stamp(folder) is None or not _python_fits(folder, choice)
    _check_space(root, runtime.gigabytes if renew else 0.0)
    minutes = "a minute or so" if runtime.gigabytes < 1 else "a few minutes"
    doing = "building" if renew else "updating"
    say(f"{doing} environment {runtime.name} (about {runtime.gigabytes} GB, {minutes}) ...")
    started = time.monotonic()
    (folder / STAMP).unlink() if (folder / STAMP).exists() else None
    python = choice.python.path if choice.python else runtime.pythons[0]
    if renew:
        shutil.rmtree(str(folder), ignore_errors=True)
        try:
            _uv(program, held, "venv", "--quiet", "--python", python, str(folder))
        except SetupError as error:
            if choice.python:
                raise
            wanted = ", ".join(runtime.pythons)
            raise SetupError(
                f"{error}\nuv could not get Python {python}. Install one of {wanted} yourself"
                " (Debian, Ubuntu: sudo apt-get install python3), then the same command again."
            ) from error
    sync = ["pip", "sync", "--quiet", "--python", str(folder / "bin" / "python")]
    if "\nnvidia-tensorflow==" in lock_file.read_text():
        sync += ["--index", nvidia_index()]
    _uv(program, held, *sync, str(lock_file))
    stamp = {"lock": _fingerprint(lock_file), "python": python, "built": time.strftime("%F %T")}
    partial = folder / (STAMP + ".partial")
    partial.write_text(json.dumps(stamp, indent=1) + "\n")
    os.replace(str(partial), str(folder / STAMP))
    say(f"environment {runtime.name} is ready ({time.monotonic() - started:.0f} s)")


def _uv(program: str, held: IO[str], *arguments: str) -> None:
    # uv inherits the lock: should this process be killed, the lock lives as long as uv does.
    done = subprocess.run([program, *arguments], pass_fds=(held.fileno(),), stdout=2)
    if done.returncode:
        raise SetupError(
            f"`uv {' '.join(arguments)}` failed with exit code {done.returncode}; its message is"
            " above. The same command again starts this environment anew."
        )


def _check_space(root: Path, gigabytes: float) -> None:
    free = shutil.disk_usage(str(root)).free / 1e9
    if free < gigabytes:
        raise SetupError(
            f"{root / '.venvs'} has {free:.1f} GB free, this environment takes about {gigabytes}."
        )
