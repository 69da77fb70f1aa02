"""`make` alone lists every command; each says what is wrong before it builds anything."""

from __future__ import annotations

import re
import sys

import pytest

from tests.packaging.checkout import ROOT, run

MAKEFILE = (ROOT / "Makefile").read_text()
DEFINED = re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE)
RECIPES = sorted(p.stem for p in (ROOT / "recipes").glob("[!_]*.py"))


def listed() -> dict:
    """Command -> its line, as `make` prints them."""
    done = run(["make"])
    assert done.returncode == 0, done.stderr
    return dict(re.findall(r"^  ([a-z-]+) +(\S.*)$", done.stdout, re.MULTILINE))


def test_make_alone_lists_every_command_with_one_line_each():
    assert sorted(listed()) == sorted(DEFINED)
    for name in [
        "train",
        "predict",
        "header",
        "test",
        "lint",
        "type",
        "env",
        "bench-loop",
        "clean",
    ]:
        assert name in DEFINED
    for name in ["docker-build", "docker-train", "docker-shell"]:
        assert name in DEFINED


def test_the_list_fits_a_terminal():
    assert max(map(len, run(["make"]).stdout.split("\n"))) <= 100


def test_every_command_is_phony():
    """A file named `test` or `train` must not stand in a command's way."""
    phony = re.search(r"^\.PHONY: (.*)$", run(["make", "-pn", "help"]).stdout, re.MULTILINE)
    assert phony is not None and sorted(phony.group(1).split()) == sorted(DEFINED)


@pytest.mark.parametrize("command", ["train", "test", "env", "header", "predict"])
def test_a_wrong_runtime_lists_those_allowed(command):
    done = run(["make", command, "RUNTIME=tf3"])
    assert done.returncode != 0
    assert "error: RUNTIME=tf3 is unknown. Allowed: auto, tf1, tf2, jax." in done.stderr


@pytest.mark.parametrize("command", ["train", "docker-train"])
def test_a_wrong_recipe_lists_the_recipes(command):
    done = run(["make", command, "RECIPE=clasification"])
    assert done.returncode != 0 and "error: RECIPE=clasification is unknown." in done.stderr
    for name in RECIPES:
        assert name in done.stderr
    assert "classification" in RECIPES
    assert "__init__" not in done.stderr


def test_a_near_miss_is_guessed():
    done = run(["make", "train", "RECIPE=clasification"])
    assert "Did you mean classification?" in done.stderr


@pytest.mark.parametrize("recipe", ["", "../tests/conftest", "__init__", "a b"])
def test_what_is_no_recipe_at_all(recipe):
    done = run(["make", "train", f"RECIPE={recipe}"])
    assert done.returncode != 0 and "is unknown" in done.stderr


@pytest.mark.parametrize(
    "command, expected",
    [
        ("train", "run --runtime 'tf2' --recipe 'classification' -- --name 'a b'"),
        ("predict", "run --runtime 'tf2' -- -m amp_xla predict --name 'a b'"),
        ("header", "run --runtime 'tf2' -- -m amp_xla header --name 'a b'"),
        ("test", "run --runtime 'tf2' -- -m pytest --name 'a b'"),
        ("docker-train", "scripts/docker.sh train --recipe 'classification' -- --name 'a b'"),
    ],
)
def test_arguments_are_passed_on_as_the_user_quoted_them(command, expected):
    done = run(["make", "-n", command, "RUNTIME=tf2", "ARGS=--name 'a b'"])
    assert expected in re.sub(" +", " ", done.stdout)


def test_python_counts_on_the_command_line_only():
    """PYTHON is set in many shells, for others than us."""
    assert "--python" not in run(["make", "-n", "train"], PYTHON="/usr/bin/python3").stdout
    assert "--python '/x'" in run(["make", "-n", "train", "PYTHON=/x"]).stdout


def test_the_python_of_a_given_runtime_runs_with_its_arguments():
    """From make to the interpreter, on the Python that runs this test: nothing is built."""
    launcher = [str(ROOT / "scripts" / "environment.sh"), "run", "--python", sys.executable]
    code = "import sys; print(sys.executable, sys.argv[1:])"
    done = run([*launcher, "--", "-c", code, "a b", "--", "$HOME"])
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{sys.executable} {['a b', '--', '$HOME']}\n"
    # One line, on stderr, says which Python and why.
    assert len(done.stderr.strip().split("\n")) == 1
    assert done.stderr.startswith("runtime tf") and "used as it is" in done.stderr


def test_the_exit_status_is_the_commands(tmp_path):
    launcher = [str(ROOT / "scripts" / "environment.sh"), "run", "--python", sys.executable, "--"]
    assert run([*launcher, "-c", "raise SystemExit(7)"]).returncode == 7


def test_without_any_python_the_launcher_names_the_package(tmp_path):
    for name in ("dirname", "sh"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    done = run(["/bin/sh", str(ROOT / "scripts" / "environment.sh"), "env"], PATH=str(tmp_path))
    assert done.returncode == 2
    assert "no Python 3.8 or newer found" in done.stderr and "apt-get install" in done.stderr
