"""An environment is built once, updated if its lock changes, and never left half built; locks.

A program named `uv`, first on PATH, writes down its calls and creates folders.
"""

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from scripts.environment import SetupError, build
from scripts.environment.installed import canonical
from scripts.environment.runtimes import Choice, Runtime
from tests.support.running import ROOT

pytestmark = pytest.mark.once

MINOR = "{}.{}".format(*sys.version_info)
BUILT = ["begin venv", "end venv", "begin pip", "end pip"]
# UV_SLOW: seconds that an installation takes; UV_FAILS: the command that fails.
FAKE_UV = f"""#!{sys.executable} -S
import os, sys, time

def log(line):
    with open(os.environ["FAKE_LOG"], "a") as lines:
        lines.write(line + "\\n")

command, folder = sys.argv[1], sys.argv[-1]
if command == "--version":
    print("uv 0.13.8 (test)")
    sys.exit()
log("begin " + command)
if os.environ.get("UV_FAILS") == command:
    sys.exit(3)
if command == "venv":
    os.makedirs(folder + "/bin")
    os.makedirs(folder + "/lib/python{MINOR}")
    os.symlink({sys.executable!r}, folder + "/bin/python")
else:
    time.sleep(float(os.environ.get("UV_SLOW", "0")))
log("end " + command)
"""


def choice(gigabytes=0.0):
    return Choice(Runtime("small", (MINOR,), gigabytes), sys.executable, False, "a test")


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A checkout with one lock file, and the fake uv on PATH."""
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "small.txt").write_text("a==1  # via b\n")
    fake = tmp_path / "bin" / "uv"
    fake.parent.mkdir()
    fake.write_text(FAKE_UV)
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    (tmp_path / "log").touch()
    return tmp_path


def calls(root):
    """Return the fake uv's log since the last call of this function."""
    lines = (root / "log").read_text().split("\n")[:-1]
    (root / "log").write_text("")
    return lines


def test_an_environment_is_built_once_and_updated_with_its_lock(root, capsys):
    python = build.ensure(choice(), root)
    assert python == root / ".venvs" / "small" / "bin" / "python"
    assert calls(root) == BUILT
    captured = capsys.readouterr()
    assert "building environment small" in captured.err and captured.out == ""
    lock = root / "requirements" / "small.txt"
    for text, expected in (("# other comment\na==1\n", []), ("a==2\n", BUILT[2:]), ("a==2\n", [])):
        lock.write_text(text)
        build.ensure(choice(), root)
        assert calls(root) == expected


def test_a_failed_build_is_an_error_and_starts_from_nothing(root, monkeypatch):
    with pytest.raises(SetupError, match="GB free; environment small needs about 1000000000"):
        build.ensure(choice(gigabytes=1e9), root)
    assert calls(root) == []
    monkeypatch.setenv("UV_FAILS", "venv")
    with pytest.raises(SetupError, match=f"uv could not get Python {MINOR}. Install one of"):
        build.ensure(choice()._replace(python=""), root)
    monkeypatch.setenv("UV_FAILS", "pip")
    with pytest.raises(SetupError, match="`uv pip.*failed with exit code 3"):
        build.ensure(choice(), root)
    monkeypatch.delenv("UV_FAILS")
    calls(root)
    build.ensure(choice(), root)
    assert calls(root) == BUILT


def test_two_builders_wait_for_each_other(root, monkeypatch):
    monkeypatch.setenv("UV_SLOW", "0.5")
    with ThreadPoolExecutor(2) as builders:
        paths = set(builders.map(lambda _: build.ensure(choice(), root), range(2)))
    assert len(paths) == 1 and calls(root) == BUILT


REQUIREMENTS = ROOT / "requirements"
LOCKS = [*(path.stem for path in sorted(REQUIREMENTS.glob("*.in"))), "container-tf2-py310"]


def asked(path):
    """Return canonical name -> line of an .in file."""
    lines = [line.split("#")[0].strip() for line in path.read_text().splitlines()]
    return {canonical(re.split(r"[=<> \[]", line)[0]): line for line in lines if line}


# An image's TensorFlow was built against these packages, so no lock for containers may have them.
OF_THE_IMAGE = re.compile(
    r"(nvidia-)?(tensor(flow|board|rt).*|numpy|h5py|protobuf|keras.*|grpcio|horovod|jax.*|nvidia-.*)"
)


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_all_requirements_and_its_command(name):
    lock, source = REQUIREMENTS / f"{name}.txt", REQUIREMENTS / f"{name.replace('-py310', '')}.in"
    pinned = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", lock.read_text(), re.MULTILINE)
    # The first version counts if markers choose between two.
    pins = {canonical(package): version for package, version in reversed(pinned)}
    for package, line in asked(source).items():
        if package == "tf-keras" and name.endswith("py310"):
            continue  # the one that fits the image's TensorFlow is chosen at the installation
        if package == "nvidia-tensorflow" and lock.read_text().startswith("# NOT WHOLE"):
            continue  # only on NVIDIA's index, which was not reachable
        assert package in pins, f"{line} is not in {lock.name}: run the command in its head"
        exact = re.search(r"==(\S+)", line)
        assert exact is None or pins[package] == exact.group(1), line
    lines = lock.read_text().splitlines()
    assert "uv pip compile" in lines[1] and f"{source.name} -o {lock.name}" in lines[1]
    if name.startswith("container"):
        assert not list(filter(OF_THE_IMAGE.fullmatch, pins))
    if name.startswith(("container", "tf2-cuda", "nvtf1")):  # for servers
        places = [i for i, line in enumerate(lines) if re.match(r"\S+==", line)]
        assert all(lines[i + 1].startswith("    --hash=sha256:") for i in places)
