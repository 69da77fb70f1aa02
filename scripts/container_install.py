"""Add to a Python that has TensorFlow what this project needs, and move nothing that it has.

`python -m scripts.container_install`, in the Dockerfile and behind `make env` inside a container.
A container's TensorFlow was built against its own numpy, h5py and protobuf, so dependencies are not
resolved: what the base lacks is installed at the locked version with `--no-deps`, what it has is
kept. One thing may rise, and is named: a package of the lock, none of which is near TensorFlow,
that `pip check` calls too old for an addition. Versions and `pip check` before and after are
compared; any other difference is an error and fails the image's build.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Container, Dict, Iterable, List, Mapping, Set

from scripts.container_base import SUPPORTED, TF2_LOCKS
from scripts.environment.container import (
    canonical,
    distributions,
    runtime_of,
    tensorflow_version,
)
from scripts.environment.errors import SetupError
from scripts.environment.interpreters import probe

ROOT = Path(__file__).resolve().parents[1]
# What no lock file of additions may name: TensorFlow was built against these.
PROTECTED = re.compile(
    r"(nvidia-)?(tensor(flow|board|rt).*|numpy|h5py|protobuf|keras.*|scipy|grpcio|horovod|jax.*|nvidia-.*)"
)
TOO_OLD = re.compile(r"(\S+) \S+ has requirement .*, but you have (\S+) ")
# With TF_KERAS=1 bert4keras takes Keras from TensorFlow and never imports this distribution.
EXPECTED_COMPLAINT = re.compile(r"bert4keras \S+ (requires keras,|has requirement keras)", re.I)


def main() -> int:
    """Install into the Python that runs this; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument(
        "--runtime", default="auto", choices=["auto", "tf1", "tf2"], help="refuse any other"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be installed")
    parser.add_argument("--check", action="store_true", help="only import what is installed")
    options = parser.parse_args()
    try:
        if options.check:
            return check_import(sys.executable, ROOT)
        return install(sys.executable, options.runtime, ROOT, options.dry_run)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def install(python: str, request: str, root: Path, dry_run: bool = False) -> int:
    """Bring `python` up to requirements/container-<runtime>.txt.

    Raises:
      SetupError: no TensorFlow, not the `request`ed one, or something of the base moved.
    """
    before = distributions(python)
    version = tensorflow_version(python, before)
    if version is None:
        raise SetupError(f"{python} has no TensorFlow. Start from a TensorFlow image.")
    runtime = runtime_of(version)
    if request not in ("auto", runtime):
        raise SetupError(
            f"TensorFlow {version} is {runtime}, not {request}. Give RUNTIME={runtime}, or another"
            " BASE_IMAGE."
        )
    folder = root / "requirements"
    pins = fit_keras(read_lock(folder / lock_for(runtime, python)), version, folder)
    wanted = {name: pin for name, pin in pins.items() if name not in before}
    print(f"TensorFlow {version} ({runtime}) is kept, and all that this Python has")
    print(f"to install: {_names(wanted) or 'nothing'}", flush=True)
    if dry_run or not wanted:
        return 0
    complaints = pip_check(python)
    _pip_install(python, wanted)
    new = pip_check(python) - complaints
    rises = choose_rises(new, pins, wanted)
    if rises:
        print(f"too old for the additions, replaced: {_names(rises)}", flush=True)
        _pip_install(python, rises)
        new = pip_check(python) - complaints
    compare(before, distributions(python), rises)
    if new:
        raise SetupError("the base and the additions don't fit:\n  " + "\n  ".join(sorted(new)))
    print(f"installed {len(wanted)}; {len(before) - len(rises)} of the base are as they were")
    return 0


def check_import(python: str, root: Path) -> int:
    """Import TensorFlow, bert4keras and this project, without a GPU.

    Raises:
      SetupError: one of them fails; its own last line says why.
    """
    code = "import amp_xla.setup as setup; print('imported:', setup.current().describe())"
    environment = {**os.environ, "AMP_XLA_DEVICE": "cpu"}
    done = subprocess.run(
        [python, "-c", code], cwd=str(root), env=environment, stderr=subprocess.PIPE
    )
    if done.returncode:
        trace = done.stderr.decode(errors="replace").strip()
        print(trace, file=sys.stderr)
        why = trace.splitlines()[-1] if trace else f"exit code {done.returncode}"
        raise SetupError(f"this image cannot train: {why}")
    return 0


def lock_for(runtime: str, python: str) -> str:
    """The lock's name that was made for this runtime on this Python.

    Raises:
      SetupError: there is none.
    """
    if runtime == "tf1":
        return "container-tf1.txt"
    interpreter = probe(python)
    minor = interpreter.version[:2] if interpreter else sys.version_info[:2]
    lock = TF2_LOCKS.get((minor[0], minor[1]))
    if lock is None:
        raise SetupError(
            f"{runtime} on Python {minor[0]}.{minor[1]} has no lock. Supported: {SUPPORTED}."
        )
    return lock


def read_lock(path: Path) -> Dict[str, str]:
    """Canonical name -> requirement ('tqdm==4.66.5 --hash=sha256:...') of a lock without markers.

    Raises:
      SetupError: it names a distribution that only the image may bring.
    """
    pins: Dict[str, str] = {}
    for line in _lines(path):
        pins[canonical(re.split(r"[=~<>; \[]", line)[0])] = line
    protected = sorted(name for name in pins if PROTECTED.fullmatch(name))
    if protected:
        raise SetupError(f"{path.name} names {', '.join(protected)}, which belong to the image.")
    return pins


def _lines(path: Path) -> List[str]:
    """A lock's requirements, each with its hashes on one line."""
    text = re.sub(r"\s*#.*", "", path.read_text()).replace("\\\n", " ")
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def fit_keras(
    pins: Mapping[str, str], tensorflow: str, folder: Path = ROOT / "requirements"
) -> Dict[str, str]:
    """tf-keras follows the TensorFlow that is there; before 2.14 Keras 2 is inside TensorFlow."""
    fitted = {name: pin for name, pin in pins.items() if name != "tf-keras"}
    major, minor = map(int, tensorflow.split(".")[:2])
    if (major, minor) >= (2, 14):
        fitting = f"tf-keras=={major}.{minor}."
        known = [pins.get("tf-keras", ""), *_lines(folder / "container-keras.txt")]
        found = (line for line in known if line.startswith(fitting))
        fitted["tf-keras"] = next(found, f"tf-keras~={major}.{minor}.0")
    return fitted


def choose_rises(
    complaints: Iterable[str], pins: Mapping[str, str], added: Container[str]
) -> Dict[str, str]:
    """The pins of what the base has, but too old for one of the `added`."""
    rises = {}
    for complaint in complaints:
        match = TOO_OLD.match(complaint)
        if match and canonical(match.group(1)) in added and canonical(match.group(2)) in pins:
            rises[canonical(match.group(2))] = pins[canonical(match.group(2))]
    return rises


def compare(before: Mapping[str, str], after: Mapping[str, str], rises: Container[str]) -> None:
    """Raises SetupError if a distribution of `before` is gone or has another version."""
    moved = [
        f"{name} {version} -> {after.get(name, 'gone')}"
        for name, version in sorted(before.items())
        if after.get(name) != version and name not in rises
    ]
    if moved:
        raise SetupError("installing moved what the base had: " + ", ".join(moved))


def pip_check(python: str) -> Set[str]:
    """What pip says of distributions that don't fit together."""
    done = subprocess.run(
        [python, "-m", "pip", "check", "--disable-pip-version-check"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_environment(),
    )
    lines = done.stdout.decode().splitlines() if done.returncode else []
    return {line for line in lines if line and not EXPECTED_COMPLAINT.match(line)}


def _names(pins: Mapping[str, str]) -> str:
    return ", ".join(pin.split()[0] for pin in pins.values())


def _pip_install(python: str, pins: Mapping[str, str]) -> None:
    """Exactly these; pip checks the hashes of those that have some."""
    hashed = [pin for pin in pins.values() if "--hash" in pin]
    plain = [pin for pin in pins.values() if "--hash" not in pin]
    if plain:
        _pip(python, "install", "--no-deps", *plain)
    if hashed:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("\n".join(hashed) + "\n")
            file.flush()
            _pip(python, "install", "--no-deps", "--require-hashes", "--requirement", file.name)


def _pip(python: str, *arguments: str) -> None:
    command = [python, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, env=_environment())
    if done.returncode:
        raise SetupError(f"`{' '.join(command)}` failed with exit code {done.returncode}.")


def _environment() -> Dict[str, str]:
    environment = dict(os.environ)
    # NVIDIA's images constrain pip to what they ship; that is checked here more strictly, and
    # would refuse pins of packages that the image names but doesn't have.
    environment.pop("PIP_CONSTRAINT", None)
    # Ubuntu 24.04's Python refuses pip outside a virtual environment; a container is one.
    environment["PIP_BREAK_SYSTEM_PACKAGES"] = "1"
    environment["PIP_ROOT_USER_ACTION"] = "ignore"
    return environment


if __name__ == "__main__":
    sys.exit(main())
