"""The lock files fit the requirements."""

import re

import pytest

from scripts.environment.installed import canonical
from tests.support.running import ROOT

pytestmark = pytest.mark.once

REQUIREMENTS = ROOT / "requirements"
LOCKS = sorted(REQUIREMENTS.glob("*.in"))


def asked(path):
    """Return canonical name -> line of an .in file."""
    lines = [line.split("#")[0].strip() for line in path.read_text().splitlines()]
    return {canonical(re.split(r"[=<> \[]", line)[0]): line for line in lines if line}


def locked(path):
    """Return canonical name -> version; the first one if markers choose between two."""
    versions = {}
    for line in path.read_text().splitlines():
        match = re.match(r"^([A-Za-z0-9._-]+)==(\S+)", line)
        if match:
            versions.setdefault(canonical(match.group(1)), match.group(2))
    return versions


# An image's TensorFlow was built against these packages, so no lock for containers may have them.
OF_THE_IMAGE = re.compile(
    r"(nvidia-)?(tensor(flow|board|rt).*|numpy|h5py|protobuf|keras.*|grpcio|horovod|jax.*|nvidia-.*)"
)


@pytest.mark.parametrize("lock", ["container-tf1", "container-tf2", "container-tf2-py310"])
def test_containers_keep_the_packages_of_their_image(lock):
    assert [
        name for name in locked(REQUIREMENTS / f"{lock}.txt") if OF_THE_IMAGE.fullmatch(name)
    ] == []


@pytest.mark.parametrize("source", LOCKS, ids=lambda path: path.stem)
def test_a_lock_has_all_requirements_and_its_command(source):
    lock = source.with_suffix(".txt")
    pins = locked(lock)
    for name, line in asked(source).items():
        if name == "nvidia-tensorflow" and lock.read_text().startswith("# NOT WHOLE"):
            continue  # only on NVIDIA's index, which was not reachable
        assert name in pins, f"{line} is not in {lock.name}: run the command in its head"
        exact = re.search(r"==(\S+)", line)
        assert exact is None or pins[name] == exact.group(1), line
    head = lock.read_text().split("\n")[1]
    assert "uv pip compile" in head and f"{source.name} -o {lock.name}" in head


@pytest.mark.parametrize(
    "lock", ["tf2-cuda", "nvtf1", "container-tf1", "container-tf2", "container-tf2-py310"]
)
def test_packages_for_servers_are_locked_with_hashes(lock):
    lines = (REQUIREMENTS / f"{lock}.txt").read_text().splitlines()
    pins = [index for index, line in enumerate(lines) if re.match(r"\S+==", line)]
    assert pins and all(lines[index + 1].startswith("    --hash=sha256:") for index in pins)
