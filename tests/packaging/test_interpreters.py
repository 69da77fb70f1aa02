"""A Python counts once it has answered, whatever its name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts.environment import interpreters

pytestmark = pytest.mark.once


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """An empty home and an empty PATH; returns a function that puts a fake Python somewhere."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("PYENV_ROOT", "UV_PYTHON_INSTALL_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    interpreters.probe.cache_clear()

    def put(where: str, version: str = "", bits: int = 64, kind: str = "cpython") -> Path:
        path = tmp_path / where
        path.parent.mkdir(parents=True, exist_ok=True)
        if version:
            numbers = version.replace(".", " ")
            answer = f"echo '{numbers}'; echo '{path}'; echo '{kind} {bits == 64}'"
        else:
            answer = "echo 'pyenv: python3.7: command not found' >&2; exit 127"
        path.write_text(f"#!/bin/sh\n{answer}\n")
        path.chmod(0o755)
        return path

    return put


def test_none_on_an_empty_machine(machine):
    assert interpreters.find(["3.7"]) is None


def test_a_pyenv_version_is_found_behind_a_dead_shim(machine):
    machine("bin/python3.7")
    there = machine("home/.pyenv/versions/3.7.9/bin/python", "3.7.9")
    found = interpreters.find(["3.7"])
    assert found == interpreters.Interpreter(str(there), (3, 7, 9))
    assert str(found) == f"Python 3.7.9 ({there})"


def test_the_newest_of_a_minor_version_comes_first(machine):
    for micro in ("9", "16", "2"):
        machine(f"home/.pyenv/versions/3.7.{micro}/bin/python", f"3.7.{micro}")
    found = interpreters.find(["3.7"])
    assert found is not None and found.version == (3, 7, 16)


@pytest.mark.parametrize(
    "where",
    [
        "home/.local/share/uv/python/cpython-3.7.9-linux-x86_64-gnu/bin/python",
        "home/.asdf/installs/python/3.7.9/bin/python",
        "home/.local/share/mise/installs/python/3.7.9/bin/python",
        "bin/python3.7",
        "bin/python3",
        "bin/python",
    ],
)
def test_places(machine, where):
    machine(where, "3.7.9")
    found = interpreters.find(["3.7"])
    assert found is not None and found.path.endswith(where)


def test_a_conda_environment_by_condas_own_list(machine, tmp_path):
    machine("conda/envs/old/bin/python3.7", "3.7.9")
    listed = tmp_path / "home" / ".conda" / "environments.txt"
    listed.parent.mkdir(parents=True)
    listed.write_text(f"{tmp_path}/conda\n{tmp_path}/conda/envs/old\n")
    found = interpreters.find(["3.7"])
    assert found is not None and "envs/old" in found.path


@pytest.mark.parametrize("answer", [{"version": "3.8.1"}, {"version": "3.7.9", "bits": 32}])
def test_a_liar_is_passed_over(machine, answer):
    machine("bin/python3.7", **answer)
    assert interpreters.find(["3.7"]) is None


def test_pypy_is_passed_over(machine):
    machine("bin/python3.7", "3.7.9", kind="pypy")
    assert interpreters.find(["3.7"]) is None


def test_the_order_of_versions_is_the_callers(machine):
    machine("bin/python3.10", "3.10.1")
    machine("bin/python3.12", "3.12.1")
    found = interpreters.find(["3.12", "3.10"])
    assert found is not None and found.minor == "3.12"


def test_a_hanging_python_is_given_up(machine, monkeypatch):
    path = machine("bin/python3.7")
    path.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    monkeypatch.setattr(interpreters, "PROBE_SECONDS", 0.2)
    assert interpreters.find(["3.7"]) is None


def test_the_running_python_describes_itself():
    interpreters.probe.cache_clear()
    found = interpreters.probe(sys.executable)
    assert found is not None and found.version == tuple(sys.version_info[:3])
