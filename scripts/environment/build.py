"""Build an environment once, and detect interrupted builds.

An environment is complete if its stamp file has the hash of the lock file. A build first removes
the stamp, and writes it at the end.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Iterator

from scripts.environment import SetupError, say
from scripts.environment.runtimes import Choice, Runtime
from scripts.environment.uv import uv

STAMP = "amp_xla-stamp.json"
# The address in NVIDIA's package `nvidia-pyindex`. It was not reachable for a test.
NVIDIA_INDEX = "https://pypi.ngc.nvidia.com"


def ensure(choice: Choice, root: Path) -> Path:
    """Return the Python of `choice`'s environment in `root`/.venvs; build it if needed.

    Raises:
      SetupError: uv failed, or there is too little disk space.
    """
    folder = root / ".venvs" / choice.runtime.name
    lock_file = root / "requirements" / f"{choice.runtime.name}.txt"
    lock_hash = _fingerprint(lock_file)
    if _built_from(folder, choice.runtime) != lock_hash:
        with _only_builder(root, choice.runtime.name) as lock:
            built_from = _built_from(folder, choice.runtime)
            if built_from != lock_hash:  # else another process has built it
                # A complete environment with an older lock is updated; others are rebuilt.
                _build(choice, folder, lock_file, root, lock, rebuild=not built_from)
                partial = folder / f"{STAMP}.partial"
                partial.write_text(json.dumps({"lock": lock_hash}) + "\n")
                os.replace(str(partial), str(folder / STAMP))
    return folder / "bin" / "python"


def _built_from(folder: Path, runtime: Runtime) -> str:
    """Return the lock's hash in the stamp of an environment with an allowed Python; '' = none."""
    runs = os.access(str(folder / "bin" / "python"), os.X_OK)
    if not runs or not any((folder / "lib" / f"python{m}").is_dir() for m in runtime.pythons):
        return ""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads((folder / STAMP).read_text())["lock"])
    return ""


def _fingerprint(lock_file: Path) -> str:
    """Return a hash of the lock without its comments, which may differ between machines."""
    lines = [line.split("#")[0].strip() for line in lock_file.read_text().splitlines()]
    return hashlib.sha256("\n".join(filter(None, lines)).encode()).hexdigest()


@contextmanager
def _only_builder(root: Path, name: str) -> Iterator[IO[str]]:
    """Hold the lock of an environment; the kernel releases it when its last holder ends."""
    (root / ".venvs").mkdir(exist_ok=True)
    with open(str(root / ".venvs" / f".{name}.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another command that is building environment {name} ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def _build(
    choice: Choice, folder: Path, lock_file: Path, root: Path, lock: IO[str], rebuild: bool
) -> None:
    runtime, program = choice.runtime, uv(root)
    free = shutil.disk_usage(str(root)).free / 1e9
    if rebuild and free < runtime.gigabytes:
        raise SetupError(
            f"{root / '.venvs'} has {free:.1f} GB free; environment {runtime.name} needs about"
            f" {runtime.gigabytes}."
        )
    minutes = "a minute or so" if runtime.gigabytes < 1 else "a few minutes"
    action = "building" if rebuild else "updating"
    say(f"{action} environment {runtime.name} (about {runtime.gigabytes} GB, {minutes}) ...")
    started = time.monotonic()
    with suppress(FileNotFoundError):
        (folder / STAMP).unlink()
    python = choice.python or runtime.pythons[0]
    if rebuild:
        shutil.rmtree(str(folder), ignore_errors=True)
        try:
            _uv(program, lock, "venv", "--quiet", "--python", python, str(folder))
        except SetupError as error:
            raise SetupError(
                f"{error}\nuv could not get Python {python}. Install one of"
                f" {', '.join(runtime.pythons)} (Debian, Ubuntu: sudo apt-get install python3),"
                " then repeat the command."
            ) from error
    _install(program, lock, lock_file, "--python", str(folder / "bin" / "python"))
    say(f"environment {runtime.name} is ready ({time.monotonic() - started:.0f} s)")


def _install(program: str, lock: IO[str], lock_file: Path, *target: str) -> None:
    """Install exactly the lock's packages; for nvtf1 also NVIDIA's, which the lock lacks."""
    if lock_file.name != "nvtf1.txt":
        # Compile bytecode here on all cores; the first command would use only one.
        _uv(program, lock, "pip", "sync", "--quiet", "--compile-bytecode", *target, str(lock_file))
        return
    index = os.environ.get("NVIDIA_INDEX") or NVIDIA_INDEX
    requirements = lock_file.with_suffix(".in")
    try:
        overrides = str(lock_file.with_name("container.overrides.txt"))
        words = ["--index", index, "--override", overrides, "--constraint", str(lock_file)]
        words += ["--requirement", str(requirements)]
        _uv(program, lock, "pip", "install", "--quiet", *target, *words)
    except SetupError as error:
        raise SetupError(
            f"{error}\nIf NVIDIA's package index {index} does not have the packages of"
            f" {requirements.name}: NVIDIA_INDEX=<address of a mirror>, or RUNTIME=tf2, or make"
            " docker-train, whose image has them."
        ) from error


def _uv(program: str, lock: IO[str], *arguments: str) -> None:
    # uv inherits the lock, so that it is held until uv ends even if this process is killed.
    started = time.monotonic()
    with subprocess.Popen([program, *arguments], pass_fds=(lock.fileno(),), stdout=2) as process:
        try:
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=8)
                    break
                say(f"... still installing ({time.monotonic() - started:.0f} s)")
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise SetupError(
            f"`uv {' '.join(arguments)}` failed with exit code {process.returncode}; its message is"
            " above. Repeat the command that you typed: it builds this environment anew."
        )
