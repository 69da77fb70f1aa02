"""RUNTIME= and PYTHON=: what a command gets, and what it is told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts.environment import container, runtimes
from scripts.environment.__main__ import runtime_of
from scripts.environment.errors import SetupError
from scripts.environment.gpu import Device
from scripts.environment.interpreters import Interpreter

pytestmark = pytest.mark.once

PYTHON_37 = Interpreter("/opt/python3.7", (3, 7, 16))
PYTHON_312 = Interpreter("/opt/python3.12", (3, 12, 1))


@pytest.fixture
def machine(monkeypatch):
    """A Linux host without any Python; tests add to `there` and to `installed`."""
    there = {}
    monkeypatch.setattr(
        runtimes, "find", lambda minors: next((there[m] for m in minors if m in there), None)
    )
    monkeypatch.setattr(runtimes, "inside_container", lambda: False)
    # A GPU's driver would change the choice: test_machines.py has machines with one.
    monkeypatch.setattr(runtimes, "find_device", lambda *given: Device(False))
    monkeypatch.setattr(runtimes.platform, "system", lambda: "Linux")
    monkeypatch.setattr(runtimes.platform, "machine", lambda: "x86_64")
    return there


@pytest.fixture
def in_container(machine, monkeypatch):
    """Say what the container's Python has installed."""

    def having(**installed):
        monkeypatch.setattr(runtimes, "inside_container", lambda: True)
        monkeypatch.setattr(runtimes, "distributions", lambda python: installed)

    return having


def test_auto_is_tf1_where_python_37_is(machine):
    machine.update({"3.7": PYTHON_37, "3.12": PYTHON_312})
    choice = runtimes.choose("auto")
    assert (choice.runtime.name, choice.python) == ("tf1", PYTHON_37)
    line = "runtime tf1: found Python 3.7.16 (/opt/python3.7); RUNTIME=tf2 for the other"
    assert choice.line() == line


def test_auto_is_tf2_without_python_37(machine):
    machine["3.12"] = PYTHON_312
    choice = runtimes.choose("auto")
    assert (choice.runtime.name, choice.python) == ("tf2", PYTHON_312)
    assert "no Python 3.7 found" in choice.line() and "/opt/python3.12" in choice.line()


def test_uv_downloads_a_python_where_there_is_none_and_the_line_says_so(machine):
    choice = runtimes.choose("auto")
    assert (choice.runtime.name, choice.python) == ("tf2", None)
    assert "uv will download Python 3.12" in choice.line()


def test_tf1_without_python_37_names_the_ways_out(machine):
    with pytest.raises(SetupError, match=r"pyenv install 3\.7.*make docker-train.*RUNTIME=tf2"):
        runtimes.choose("tf1")


def test_tf1_on_a_machine_that_pypi_has_no_wheel_for(machine, monkeypatch):
    monkeypatch.setattr(runtimes.platform, "machine", lambda: "aarch64")
    machine["3.7"] = PYTHON_37
    assert runtimes.choose("auto").runtime.name == "tf2"
    with pytest.raises(SetupError, match="no TensorFlow 1.15 for Linux aarch64"):
        runtimes.choose("tf1")


def test_a_recipe_chooses_its_runtime_by_its_name():
    for asked in ("auto", "jax"):
        assert runtime_of("jax_classification", asked) == "jax"
    assert runtime_of("mine/jax_thing.py", "auto") == "jax"
    for asked in ("auto", "tf1", "tf2", "nvtf1"):
        assert runtime_of("classification", asked) == asked
    with pytest.raises(SetupError, match="does not run on RUNTIME=tf2, but in JAX: leave RUNTIME"):
        runtime_of("jax_classification", "tf2")
    for asked in ("auto", "tf2"):
        assert runtime_of("keras_classification", asked) == "tf2"
    for asked in ("tf1", "nvtf1", "jax"):
        with pytest.raises(SetupError, match=f"RUNTIME={asked}, but in TensorFlow 2: leave RUNT"):
            runtime_of("keras_classification", asked)
    with pytest.raises(SetupError, match="RUNTIME=jax, but in TensorFlow"):
        runtime_of("classification", "jax")


@pytest.mark.parametrize("request_", ["tf3", "TF1", "", "torch"])
def test_an_unknown_runtime_lists_those_allowed(machine, request_):
    with pytest.raises(SetupError, match=r"Allowed: auto, tf1, tf2, nvtf1, jax\."):
        runtimes.choose(request_)


@pytest.mark.parametrize(
    "name, version, runtime",
    [
        ("tensorflow", "1.15.5+nv23.3", "tf1"),
        ("tensorflow", "2.17.0+nv25.2", "tf2"),
        ("nvidia-tensorflow", "1.15.5+nv22.12", "tf1"),
    ],
)
@pytest.mark.parametrize("request_", ["auto", "same"])
def test_a_containers_tensorflow_is_used_as_it_is(
    machine, in_container, name, version, runtime, request_
):
    machine["3.7"] = PYTHON_37  # even where an environment could be built
    in_container(**{name: version, "bert4keras": "0.11.3"})
    choice = runtimes.choose(runtime if request_ == "same" else "auto")
    assert choice.provided and choice.complete and choice.runtime.name == runtime
    assert choice.python is not None and choice.python.path == sys.executable
    assert f"has TensorFlow {version}, used as it is" in choice.line()


def test_a_bare_container_is_known_to_lack_bert4keras(in_container):
    in_container(tensorflow="1.15.5+nv23.3")
    assert not runtimes.choose("auto").complete


@pytest.mark.parametrize("version, wrong", [("1.15.5", "tf2"), ("2.17.0", "tf1")])
def test_the_other_runtime_is_refused_in_a_container(in_container, version, wrong):
    in_container(tensorflow=version)
    with pytest.raises(SetupError, match=f"RUNTIME={wrong}, but .* TensorFlow {version}"):
        runtimes.choose(wrong)


def test_an_older_tensorflow_is_refused(in_container):
    in_container(tensorflow="1.14.0")
    with pytest.raises(SetupError, match="TensorFlow 1.14.0 can't be used"):
        runtimes.choose("auto")


def test_a_container_without_tensorflow_is_a_machine_like_any(machine, in_container, monkeypatch):
    monkeypatch.delenv("NVIDIA_TENSORFLOW_VERSION", raising=False)  # NVIDIA's images set it
    in_container(numpy="1.26.4")
    machine["3.7"] = PYTHON_37
    choice = runtimes.choose("auto")
    assert choice.runtime.name == "tf1" and not choice.provided


def test_a_given_python_is_this_one():
    """PYTHON= the Python that runs this test: it has the TensorFlow of this very runtime."""
    choice = runtimes.choose("auto", sys.executable)
    expected = "tf1" if sys.version_info[:2] <= (3, 8) else "tf2"
    assert choice.provided and choice.complete and choice.runtime.name == expected


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/true"])
def test_a_given_python_that_is_none(python):
    with pytest.raises(SetupError, match=f"PYTHON={python} does not run"):
        runtimes.choose("auto", python)


def test_distributions_are_read_without_importing():
    installed = container.distributions(sys.executable)
    assert installed["bert4keras"] in ("0.11.3", "0.11.5")
    assert "typing-extensions" in installed  # whose folder has an underscore
    version = container.tensorflow_version(sys.executable, installed)
    assert version is not None and version.startswith(("1.15", "2."))


def test_egg_info_and_the_order_of_the_path(tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    (first / "PyYAML-5.3.1.egg-info").mkdir(parents=True)
    (second / "PyYAML-6.0.dist-info").mkdir(parents=True)
    (second / "old_style-1.2-py3.8.egg-info").mkdir()
    monkeypatch.setattr(container, "_ask", lambda python, code: _json([first, second]))
    assert container.distributions("x") == {"pyyaml": "5.3.1", "old-style": "1.2"}


def _json(paths: list) -> str:
    return "[" + ", ".join(f'"{Path(p)}"' for p in paths) + "]"


@pytest.mark.parametrize("variable", container.MARKER_VARIABLES)
def test_marks_of_a_container(monkeypatch, variable):
    monkeypatch.setattr(container, "MARKER_FILES", ())
    for name in container.MARKER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert not container.inside_container()
    monkeypatch.setenv(variable, "1")
    assert container.inside_container()
