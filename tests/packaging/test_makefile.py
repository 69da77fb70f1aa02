"""`make` alone lists every command; each says what is wrong before it builds anything."""

from __future__ import annotations

import re
import shutil
import sys

import pytest

from tests.packaging.checkout import ROOT, run

pytestmark = pytest.mark.once

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
    assert "error: RUNTIME=tf3 is unknown. Allowed: auto, tf1, tf2, nvtf1, jax." in done.stderr


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


def test_a_recipe_may_be_a_file(tmp_path):
    (tmp_path / "mine.py").write_text("def main(words):\n    print(words)\n    return 7\n")
    words = ["--python", sys.executable, "--recipe", str(tmp_path / "mine.py"), "--", "--a", "b c"]
    done = run([str(ROOT / "scripts" / "environment.sh"), "run", *words])
    assert done.stdout == "['--a', 'b c']\n" and done.returncode == 7
    done = run(["make", "train", "RECIPE=nowhere.py"])
    assert done.returncode == 2 and "error: RECIPE=nowhere.py is no file." in done.stderr


@pytest.mark.parametrize("recipe", ["", "../tests/conftest", "__init__", "a b"])
def test_what_is_no_recipe_at_all(recipe):
    done = run(["make", "train", f"RECIPE={recipe}"])
    assert done.returncode != 0 and "is unknown" in done.stderr


FAKE_LAUNCHER = """#!/bin/sh
for word in "$0" "$@"; do printf '%s\\n' "$word"; done
echo "DATA=$DATA IMAGE=$IMAGE"
"""


@pytest.fixture
def launched(tmp_path):
    """`make` whose launchers print the words they were given, instead of doing anything."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "Makefile").write_text(MAKEFILE)
    shutil.copy(str(ROOT / "scripts" / "nearest.awk"), str(tmp_path / "scripts"))
    for name in ("environment.sh", "docker.sh"):
        (tmp_path / "scripts" / name).write_text(FAKE_LAUNCHER)
        (tmp_path / "scripts" / name).chmod(0o755)

    def make(*words, **environment):
        done = run(["make", *words], root=tmp_path, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.split("\n")[:-1]

    return make


@pytest.mark.parametrize(
    "command, expected",
    [
        ("train", "environment.sh run --runtime tf2 --recipe classification -- --name|a b"),
        ("predict", "environment.sh run --runtime tf2 -- -m amp_xla predict --name|a b"),
        ("header", "environment.sh run --runtime tf2 -- -m amp_xla header --name|a b"),
        ("test", "environment.sh run --runtime tf2 -- -m pytest --name|a b"),
        ("docker-train", "docker.sh train --recipe classification -- --name|a b"),
    ],
)
def test_arguments_are_passed_on_as_the_user_quoted_them(launched, command, expected):
    words = launched(command, "RUNTIME=tf2", "ARGS=--name 'a b'")[:-1]
    head, _, last = expected.partition("|")
    assert words == [*("scripts/" + head).split(" "), last]


HOSTILE = ["it's", "x'; touch pwned;'", '"; touch pwned; "', "`touch pwned`", "a b", "--help", "*"]


@pytest.mark.parametrize("value", HOSTILE)
def test_values_are_data_to_every_shell(launched, tmp_path, value):
    before = sorted(path.name for path in tmp_path.iterdir())
    assert launched("predict", f"RUN={value}")[-3:-1] == ["--run", value]
    assert launched("train", f"RECIPE={value}")[5:-2] == [value]
    assert launched("soak", f"KILLS={value}")[-3:-1] == ["--kills", value]
    assert launched("rehearse", f"STEPS={value}")[-4:-2] == ["--steps", value]
    assert launched("prepare", f"CORPUS={value}", f"OUT={value}")[-5:-1] == [
        *("--corpus", value, "--out", value)
    ]
    assert launched("env", f"PYTHON={value}", f"RUNTIME={value}")[2:-1] == [
        *("--runtime", value, "--python", value)
    ]
    assert launched("docker-shell", f"DATA={value}", f"IMAGE={value}")[-1] == (
        f"DATA={value} IMAGE={value}"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "given, nearest",
    [
        ("RECIP=pretraining", "Did you mean RECIPE?"),
        ("recipe=pretraining", "Did you mean RECIPE?"),
        ("ARG=--help", "Did you mean ARGS?"),
        ("BASEIMAGE=x", "Did you mean BASE_IMAGE?"),
        ("GPU=0", "Did you mean GPUS?"),
        ("WHAT=2", "Known are: ARGS"),
        ("X';pwd;'=1", "Known are: ARGS"),
    ],
)
@pytest.mark.parametrize("command", ["train", "docker-train", "help"])
def test_a_variable_that_nobody_knows_is_an_error_that_names_the_nearest(given, nearest, command):
    done = run(["make", command, given])
    assert done.returncode == 2 and done.stdout == ""
    assert f"error: {given.partition('=')[0]} is not a variable" in done.stderr
    assert nearest in done.stderr and len(done.stderr.strip().split("\n")) == 1


def test_every_variable_that_the_makefile_reads_is_known():
    known = set(re.search(r"^VARIABLES := ((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE)[1].split())
    targets = MAKEFILE[MAKEFILE.index("##@ Train\n") :]
    own = set(re.findall(r"^([A-Z_]+) :?=", MAKEFILE, re.MULTILINE))
    read = set(re.findall(r"\$\(([A-Z_]+)\)", targets)) | set(
        re.findall(r'"\$\$([A-Z]+)"', MAKEFILE)
    )
    assert read - own - {"VARIABLES"} <= known
    # A quote in a value would end quotes around it: those go by the environment.
    assert not re.findall(r"'\$\([A-Z_]+\)'", MAKEFILE)


def test_python_counts_on_the_command_line_only():
    """PYTHON is set in many shells, for others than us."""
    assert "--python" not in run(["make", "-n", "train"], PYTHON="/usr/bin/python3").stdout
    assert '--python "$PYTHON"' in run(["make", "-n", "train", "PYTHON=/x"]).stdout


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


def test_a_python_that_does_not_look_where_it_is_started():
    launcher = [str(ROOT / "scripts" / "environment.sh"), "run", "--python", sys.executable, "--"]
    done = run([*launcher, "-c", "import amp_xla, recipes"], PYTHONSAFEPATH="1")
    assert done.returncode == 0, done.stderr


STRANGER = """
import os, pwd
from pathlib import Path
def unlisted(number):
    raise KeyError(number)
pwd.getpwuid = unlisted
del os.environ["HOME"]
from scripts.environment import interpreters, uv
print(len(list(interpreters.candidates("3.7"))), len(list(uv._candidates(Path("tools")))))
"""


def test_a_user_id_that_nobody_listed():
    """As in `docker run --user 12345`: no HOME, and no entry to look it up in."""
    done = run([sys.executable, "-c", STRANGER], HOME="/")
    assert done.returncode == 0, done.stderr


def test_a_checkout_that_cannot_be_written(tmp_path):
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "dev.txt").write_text("a==1\n")
    (tmp_path / ".venvs").symlink_to("/sys/kernel")  # not even root can make a file there
    words = ["-m", "scripts.environment", "--root", str(tmp_path), "python", "--runtime", "dev"]
    done = run([sys.executable, *words])
    assert done.returncode == 2
    (line,) = done.stderr.strip().split("\n")
    assert line.startswith("error: ") and "must be writable" in line and ".venvs" in line


def test_the_exit_status_is_the_commands(tmp_path):
    launcher = [str(ROOT / "scripts" / "environment.sh"), "run", "--python", sys.executable, "--"]
    assert run([*launcher, "-c", "raise SystemExit(7)"]).returncode == 7


def test_without_any_python_the_launcher_names_the_package(tmp_path):
    for name in ("dirname", "sh"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    done = run(["/bin/sh", str(ROOT / "scripts" / "environment.sh"), "env"], PATH=str(tmp_path))
    assert done.returncode == 2
    assert "no Python 3.8 or newer found" in done.stderr and "apt-get install" in done.stderr
