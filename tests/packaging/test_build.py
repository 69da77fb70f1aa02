"""An environment is built once, rebuilt when it must be, and never half.

Most tests put a small program named `uv` first on PATH, which writes down how it was called and
makes folders; the last ones use the real uv with a lock file that names no package, so that they
need no network.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.environment import build, uv
from scripts.environment.errors import SetupError
from scripts.environment.interpreters import Interpreter, find
from scripts.environment.runtimes import Choice, Runtime

pytestmark = pytest.mark.once

REPOSITORY = Path(__file__).resolve().parents[2]
MINOR = "{}.{}".format(*sys.version_info)
# Behaves like uv as far as `build` can tell. UV_SLOW: seconds that an installation takes; UV_FAILS:
# the command that fails. One process, as uv is: a shell's `sleep` can miss the SIGINT that ends the
# shell, if it comes between its fork and its exec.
FAKE_UV = f"""#!{sys.executable} -S
import os, sys, time

def log(line):
    with open(os.environ["FAKE_LOG"], "a") as lines:
        lines.write(line + "\\n")

command, folder = sys.argv[1], sys.argv[-1]
if command == "--version":
    print("uv", os.environ.get("FAKE_VERSION", "0.13.8"), "(test)")
    sys.exit()
log("begin " + command)
if os.environ.get("UV_FAILS") == command:
    sys.exit(3)
if command == "venv":
    if os.path.exists(folder):
        log("not removed")
    os.makedirs(folder + "/bin")
    os.makedirs(folder + "/lib/python{MINOR}")
    os.symlink({sys.executable!r}, folder + "/bin/python")
else:
    time.sleep(float(os.environ.get("UV_SLOW", "0")))
log("end " + command)
"""
BUILD = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from scripts.environment.build import ensure
from tests.packaging.test_build import choice
print(ensure(choice(), Path(sys.argv[2])))
"""


def choice(python: str = sys.executable) -> Choice:
    interpreter = Interpreter(python, sys.version_info[:3])
    return Choice(Runtime("small", (MINOR,), 0.0, False), interpreter, False, "a test")


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A repository with one lock file, and the fake uv on PATH."""
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "small.txt").write_text("a==1  # via b\n")
    fake = tmp_path / "bin" / "uv"
    fake.parent.mkdir()
    fake.write_text(FAKE_UV)
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    return tmp_path


def calls(root: Path) -> list:
    """The fake uv's log since the last look."""
    log = root / "log"
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    log.write_text("")
    return lines


BUILT = ["begin venv", "end venv", "begin pip", "end pip"]
SYNCED = BUILT[2:]


def test_twice_builds_once(root, capsys):
    python = build.ensure(choice(), root)
    assert python == root / ".venvs" / "small" / "bin" / "python"
    assert calls(root) == BUILT
    said = capsys.readouterr()
    assert "building environment small" in said.err and said.out == ""
    build.ensure(choice(), root)
    assert calls(root) == []
    assert capsys.readouterr().err == ""


def test_a_new_lock_updates_in_place(root, capsys):
    build.ensure(choice(), root)
    calls(root)
    (root / "requirements" / "small.txt").write_text("a==2\n")
    build.ensure(choice(), root)
    assert calls(root) == SYNCED
    assert "updating environment small" in capsys.readouterr().err
    build.ensure(choice(), root)
    assert calls(root) == []


def test_a_comment_in_the_lock_changes_nothing(root):
    build.ensure(choice(), root)
    calls(root)
    (root / "requirements" / "small.txt").write_text("# made elsewhere\na==1\n    # via c\n")
    build.ensure(choice(), root)
    assert calls(root) == []


def test_an_environment_whose_python_was_removed_is_made_anew(root):
    python = build.ensure(choice(), root)
    calls(root)
    python.unlink()
    python.symlink_to("/nowhere/python")
    build.ensure(choice(), root)
    assert calls(root) == BUILT


def test_an_environment_of_another_python_is_made_anew(root):
    build.ensure(choice(), root)
    calls(root)
    library = root / ".venvs" / "small" / "lib"
    (library / f"python{MINOR}").rename(library / "python3.5")
    build.ensure(choice(), root)
    assert calls(root) == BUILT


def test_a_folder_that_someone_else_made_is_not_trusted(root):
    (root / ".venvs" / "small" / "bin").mkdir(parents=True)
    build.ensure(choice(), root)
    assert calls(root) == BUILT


@pytest.mark.parametrize("stamp", ["", "[]", "{", '{"lock": 1}'])
def test_a_damaged_stamp_is_no_stamp(root, stamp):
    build.ensure(choice(), root)
    calls(root)
    (root / ".venvs" / "small" / build.STAMP).write_text(stamp)
    build.ensure(choice(), root)
    assert calls(root) in (BUILT, SYNCED)
    assert json.loads((root / ".venvs" / "small" / build.STAMP).read_text())["python"]


def test_a_python_that_uv_cannot_download_names_those_that_will_do(root, monkeypatch):
    monkeypatch.setenv("UV_FAILS", "venv")
    with pytest.raises(SetupError, match=f"uv could not get Python {MINOR}. Install one of"):
        build.ensure(choice()._replace(python=None), root)


@pytest.mark.parametrize("command", ["venv", "pip"])
def test_a_failed_build_says_so_and_is_begun_anew(root, monkeypatch, command):
    monkeypatch.setenv("UV_FAILS", command)
    with pytest.raises(SetupError, match=f"`uv {command}.*failed with exit code 3"):
        build.ensure(choice(), root)
    assert not (root / ".venvs" / "small" / build.STAMP).exists()
    monkeypatch.delenv("UV_FAILS")
    calls(root)
    build.ensure(choice(), root)
    assert calls(root) == BUILT


def test_a_failed_update_is_begun_anew(root, monkeypatch):
    build.ensure(choice(), root)
    (root / "requirements" / "small.txt").write_text("a==2\n")
    monkeypatch.setenv("UV_FAILS", "pip")
    with pytest.raises(SetupError):
        build.ensure(choice(), root)
    monkeypatch.delenv("UV_FAILS")
    calls(root)
    build.ensure(choice(), root)
    assert calls(root) == BUILT


def start(root: Path, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, str(REPOSITORY), str(root)],
        env=dict(os.environ, **environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=str(REPOSITORY),
        start_new_session=True,
    )


def wait_for(root: Path, line: str) -> None:
    deadline = time.monotonic() + 30
    while line not in ((root / "log").read_text() if (root / "log").exists() else ""):
        assert time.monotonic() < deadline, f"never saw {line!r}"
        time.sleep(0.02)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_build_is_not_taken_for_good(root, how):
    process = start(root, UV_SLOW="60")
    wait_for(root, "begin pip")
    os.killpg(process.pid, how)  # the whole group, as Ctrl-C and a closed terminal do
    process.communicate(timeout=30)
    assert not (root / ".venvs" / "small" / build.STAMP).exists()
    calls(root)
    build.ensure(choice(), root)
    assert calls(root) == BUILT


def test_two_at_once_build_once(root):
    first = start(root, UV_SLOW="1")
    wait_for(root, "begin pip")
    second = start(root)
    paths = {process.communicate(timeout=60)[0] for process in (first, second)}
    assert first.returncode == second.returncode == 0 and len(paths) == 1
    assert calls(root) == BUILT


def test_the_lock_outlives_a_killed_builder_as_long_as_its_uv_works(root):
    first = start(root, UV_SLOW="1.5")
    wait_for(root, "begin pip")
    os.kill(first.pid, signal.SIGKILL)  # only the builder: its uv goes on installing
    second = start(root)
    _, said = second.communicate(timeout=60)
    first.communicate(timeout=60)
    assert b"waiting for the other command" in said
    # The first uv ended before the second began.
    assert calls(root) == [*BUILT, *BUILT]


def test_a_full_disk_is_named_before_anything_begins(root):
    huge = choice()
    huge = huge._replace(runtime=huge.runtime._replace(gigabytes=1e9))
    with pytest.raises(SetupError, match=r"GB free, this environment takes about"):
        build.ensure(huge, root)
    assert calls(root) == []


def test_an_old_uv_is_not_used(root, monkeypatch):
    monkeypatch.setenv("FAKE_VERSION", "0.4.30")
    monkeypatch.setenv("HOME", str(root))
    monkeypatch.setattr(uv, "_install", lambda tools: "a new one")
    assert uv.uv(root) == "a new one"
    monkeypatch.setenv("FAKE_VERSION", "0.5.0")
    assert uv.uv(root) == str(root / "bin" / "uv")


def test_no_venv_and_no_pip_names_the_package_to_install(tmp_path, monkeypatch):
    crippled = tmp_path / "python"
    crippled.write_text("#!/bin/sh\necho 'No module named ensurepip' >&2\nexit 1\n")
    crippled.chmod(0o755)
    monkeypatch.setattr(uv.sys, "executable", str(crippled))
    with pytest.raises(SetupError) as caught:
        uv._install(tmp_path / "tools")
    text = str(caught.value)
    assert "No module named ensurepip" in text and "apt-get install python3-venv" in text
    assert not (tmp_path / "tools").exists()


@pytest.fixture
def real_root(tmp_path, monkeypatch):
    """A repository whose lock names no package, and the uv that built this environment."""
    try:
        program = next(p for p in uv._candidates(REPOSITORY / ".venvs" / "tools") if uv._version(p))
    except StopIteration:
        pytest.skip("no uv here: this Python was not made by it (a container's own)")
    monkeypatch.setenv("PATH", f"{Path(program).parent}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "small.txt").write_text("# nothing\n")
    return tmp_path


def test_the_real_uv_makes_a_python_that_runs(real_root):
    base = find([MINOR]) or Interpreter(sys.executable, sys.version_info[:3])
    python = build.ensure(choice(base.path), real_root)
    answer = subprocess.check_output([str(python), "-c", "import sys; print(sys.prefix)"])
    assert Path(answer.decode().strip()) == real_root / ".venvs" / "small"
    stamp = real_root / ".venvs" / "small" / build.STAMP
    made = stamp.stat().st_mtime_ns
    build.ensure(choice(base.path), real_root)
    assert stamp.stat().st_mtime_ns == made


def test_what_the_real_uv_refuses_is_not_taken_for_built(real_root):
    (real_root / "requirements" / "small.txt").write_text("a==1 --hash=sha256:00\n")
    with pytest.raises(SetupError, match="The same command again starts this environment anew"):
        build.ensure(choice(), real_root)
    assert not (real_root / ".venvs" / "small" / build.STAMP).exists()
