"""Add the packages that this project needs to a Python with TensorFlow; leave the others unchanged.

The Dockerfile runs `python -m scripts.container_install`, and so does `make env` in a container. A
container's TensorFlow was built against its numpy, h5py and protobuf. Therefore dependencies are
not resolved: missing packages are installed at their locked version with `--no-deps`. An installed
package is replaced only if it is in the lock and `pip check` reports that a new package needs a
later version. Any other change of an installed version fails the image's build.
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
from scripts.environment import SetupError
from scripts.environment.installed import canonical, distributions, runtime_of, tensorflow_version

ROOT = Path(__file__).resolve().parents[1]
TOO_OLD = re.compile(r"(\S+) \S+ has requirement .*, but you have (\S+) ")
# With TF_KERAS=1 bert4keras takes Keras from TensorFlow and never imports this distribution.
EXPECTED_COMPLAINT = re.compile(r"bert4keras \S+ (requires keras,|has requirement keras)", re.I)


def main() -> int:
    """Install into the Python that runs this; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--runtime",
        default="auto",
        choices=["auto", "tf1", "tf2"],
        help="refuse a TensorFlow of another runtime",
    )
    parser.add_argument("--dry-run", action="store_true", help="only list what would be installed")
    options = parser.parse_args()
    try:
        install(sys.executable, options.runtime, ROOT, options.dry_run)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def install(python: str, request: str, root: Path, dry_run: bool = False) -> None:
    """Install the packages of the runtime's lock in requirements/ that `python` lacks.

    Raises:
      SetupError: TensorFlow is not supported or not the `request`ed one, or pip or a check fails.
    """
    base = distributions(python)
    version = tensorflow_version(python, base)
    if version is None:
        raise SetupError(f"{python} has no TensorFlow. Start from a TensorFlow image.")
    runtime = runtime_of(version)
    if request not in ("auto", runtime):
        raise SetupError(
            f"the image has TensorFlow {version}, which is {runtime}, not {request}. Give"
            f" RUNTIME={runtime}, or another BASE_IMAGE."
        )
    folder = root / "requirements"
    pins = fit_keras(read_lock(folder / lock_for(runtime)), version, folder)
    missing = {name: pin for name, pin in pins.items() if name not in base}
    print(f"TensorFlow {version} ({runtime}) and other installed packages are not changed")
    print(f"to install: {_names(missing) or 'nothing'}", flush=True)
    if dry_run or not missing:
        return
    complaints = pip_check(python)
    _pip_install(python, missing)
    new = pip_check(python) - complaints
    replaced = too_old(new, pins, missing)
    if replaced:
        print(f"to upgrade, because the new packages need it: {_names(replaced)}", flush=True)
        _pip_install(python, replaced)
        new = pip_check(python) - complaints
    compare(base, distributions(python), replaced)
    if new:
        raise SetupError(
            "installed and new packages do not fit together:\n  " + "\n  ".join(sorted(new))
        )
    unchanged = len(base) - len(replaced)
    print(f"installed {len(missing)} packages; {unchanged} existing ones are unchanged")


def lock_for(runtime: str) -> str:
    """Return the name of the lock for this runtime on the Python that runs this.

    Raises:
      SetupError: there is none.
    """
    if runtime == "tf1":
        return "container-tf1.txt"
    major, minor = sys.version_info[:2]
    lock = TF2_LOCKS.get((major, minor))
    if lock is None:
        raise SetupError(
            f"{runtime} on Python {major}.{minor} has no lock. Supported: {SUPPORTED}."
        )
    return lock


def read_lock(path: Path) -> Dict[str, str]:
    """Return canonical name -> requirement ('tqdm==4.66.5 --hash=sha256:...') of a lock."""
    return {canonical(re.split(r"[=~<>; \[]", line)[0]): line for line in _lines(path)}


def _lines(path: Path) -> List[str]:
    """Return a lock's requirements, each with its hashes on one line."""
    text = re.sub(r"\s*#.*", "", path.read_text()).replace("\\\n", " ")
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def fit_keras(pins: Mapping[str, str], tensorflow: str, folder: Path) -> Dict[str, str]:
    """Pin the tf-keras that fits TensorFlow 2.

    Raises:
      SetupError: there is none: TensorFlow is older than 2.14.
    """
    fitted = {name: pin for name, pin in pins.items() if name != "tf-keras"}
    major, minor = map(int, tensorflow.split(".")[:2])
    if major == 2:
        if minor < 14:
            raise SetupError(f"the image has TensorFlow {tensorflow}. Supported: {SUPPORTED}.")
        prefix = f"tf-keras=={major}.{minor}."
        known = [pins.get("tf-keras", ""), *_lines(folder / "container-keras.txt")]
        matching = (line for line in known if line.startswith(prefix))
        fitted["tf-keras"] = next(matching, f"tf-keras~={major}.{minor}.0")
    return fitted


def too_old(
    complaints: Iterable[str], pins: Mapping[str, str], added: Container[str]
) -> Dict[str, str]:
    """Return the pins of installed packages that are too old for one of the `added` packages."""
    replaced = {}
    for complaint in complaints:
        match = TOO_OLD.match(complaint)
        if match and canonical(match.group(1)) in added and canonical(match.group(2)) in pins:
            replaced[canonical(match.group(2))] = pins[canonical(match.group(2))]
    return replaced


def compare(before: Mapping[str, str], after: Mapping[str, str], replaced: Container[str]) -> None:
    """Raise SetupError if a distribution of `before` is gone or has another version."""
    changed = [
        f"{name} {version} -> {after.get(name, 'gone')}"
        for name, version in sorted(before.items())
        if after.get(name) != version and name not in replaced
    ]
    if changed:
        raise SetupError(
            "the installation changed packages of the base image: " + ", ".join(changed)
        )


def pip_check(python: str) -> Set[str]:
    """Return the lines of `pip check` about packages that do not fit together."""
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
    """Install exactly `pins`; pip checks the hashes of those with hashes."""
    for hashed in (False, True):
        chosen = [pin for pin in pins.values() if ("--hash" in pin) == hashed]
        if not chosen:
            continue
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("\n".join(chosen) + "\n")
            file.flush()
            command = [python, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps"]
            command += ["--require-hashes"] * hashed + ["--requirement", file.name]
            done = subprocess.run(command, env=_environment())
        if done.returncode:
            raise SetupError(f"`{' '.join(command)}` failed with exit code {done.returncode}.")


def _environment() -> Dict[str, str]:
    environment = dict(os.environ)
    # NVIDIA's images constrain pip to the installed versions; `compare` checks this more strictly.
    environment.pop("PIP_CONSTRAINT", None)
    # Ubuntu 24.04's Python refuses pip outside a virtual environment, which a container replaces.
    environment["PIP_BREAK_SYSTEM_PACKAGES"] = "1"
    environment["PIP_ROOT_USER_ACTION"] = "ignore"
    return environment


if __name__ == "__main__":
    sys.exit(main())
