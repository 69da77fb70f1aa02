"""The launchers: quoted arguments stay whole; wrong ones are refused before a build."""

import re
import sys

import pytest

from amp_xla.commands import COMMANDS
from amp_xla.commands.cli import with_flags
from amp_xla.errors import AmpXlaError
from scripts.environment.__main__ import HERE
from tests.support.running import ROOT, run

pytestmark = pytest.mark.once

PROGRAM = str(ROOT / "amp-xla")
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE)


def test_the_program_and_make_list_their_commands():
    done = run([PROGRAM])
    assert done.returncode == 0
    listed = re.findall(r"^  (([a-z]+)(?: [A-Z -]+)? {2,})\S", done.stdout, re.MULTILINE)
    assert {*HERE, *COMMANDS} == {name for _, name in listed}
    assert len({len(column) for column, _ in listed}) == 1
    listed = re.findall(r"^  ([a-z-]+) +\S.*$", run(["make"]).stdout, re.MULTILINE)
    assert sorted(listed) == sorted(TARGETS) and len(TARGETS) <= 14


@pytest.mark.parametrize(
    "words, message",
    [
        (["predct"], "error: unknown command 'predct'; did you mean predict?"),
        (["nonsense"], "tune, doctor, header, env, python, pip"),
        (["pithon"], "error: unknown command 'pithon'; did you mean python?"),
        (["--runtime", "tf3", "python", "-c", "0"], "error: RUNTIME=tf3 is unknown. Allowed: auto"),
        (["--python=/none", "doctor"], "error: PYTHON=/none does not run"),
        (["train", "clasification"], "unknown. Did you mean classification? Recipes: cl"),
        (["train", "nowhere.py"], "error: recipe nowhere.py: there is no such file."),
        (["doctor", "--runtime", "tf3"], "error: RUNTIME=tf3 is unknown. Allowed: auto, tf1, tf2"),
        (["predict", "--python", sys.executable, *"abc"], "unexpected 'c'; allowed: RUN FILE"),
        (["verify", "--python", sys.executable, "--ru", "a"], "did you mean"),
        (["ranks", "jax_classification", "--np", "2", "--runtime", "jax"], "docs/jax.md"),
    ],
)
def test_a_mistake_is_one_line(words, message):
    done = run([PROGRAM, *words])
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert len([line for line in done.stderr.splitlines() if not line.startswith("runtime ")]) == 1


def test_several_runs_are_one_value():
    read = with_flags(["a", "b", "--top", "1"], ("run",), several=True)
    assert read == ["--run", "a,b", "--top", "1"]
    with pytest.raises(AmpXlaError, match="unexpected 'b'; allowed: RUN"):
        with_flags(["a", "b"], ("run",))
    read = with_flags(["a", "-", "--json"], ("run", "file"))  # standard input
    assert read == ["--run", "a", "--file", "-", "--json"]


def test_a_command_runs_where_the_user_is_with_the_python_given(tmp_path):
    (tmp_path / "mine.py").write_text("import sys\nprint(sys.argv[2:])\nsys.exit(7)\n")
    words = ["train", "--python", sys.executable, "mine.py", "--", "--a", "b c", "--", "$HOME"]
    for variables in ({}, {"PYTHONSAFEPATH": "1"}):
        done = run([PROGRAM, *words], root=tmp_path, **variables)
        assert done.stdout == f"{words[3:]}\n" and done.returncode == 7, done.stderr
        assert re.fullmatch(r"runtime tf\d: .*used as it is\n", done.stderr)
    shown = run([PROGRAM, *words], root=tmp_path, RUNTIME_SHOWN=done.stderr[8:11])
    assert (shown.stdout, shown.stderr) == (done.stdout, "")  # as in ``evaluate``
    make = ["make", f"PYTHON={sys.executable}"]
    done = run([*make, "train", f"RECIPE={tmp_path / 'mine.py'}", "ARGS=--a 'b c'"])
    assert done.stdout == f"{[f'--recipe={tmp_path}/mine.py', *words[4:7]]}\n", done.stderr
    words = ["python", "--python", sys.executable, "-c", "import sys; print(sys.argv)", "--python"]
    done = run([PROGRAM, *words], root=tmp_path)
    assert done.stdout == "['-c', '--python']\n", done.stderr
    (tmp_path / "own.py").write_text("import amp_xla; print(amp_xla.__name__)\n")
    done = run([PROGRAM, "python", "--python", sys.executable, "own.py"], root=tmp_path)
    assert done.stdout == "amp_xla\n", done.stderr
    done = run([*make, "train", "NP=x"])
    assert "error: --np 'x'; allowed: auto, or a whole number" in done.stderr
    done = run([*make, "env"])
    assert done.stdout == f"{sys.executable}\n"
    done = run(["sh", "-c", f"{PROGRAM} env --python {sys.executable} > /dev/full"])
    assert done.stderr.endswith(
        "\nerror: cannot write to standard output: No space left on device\n"
    )
    assert done.returncode == 2


@pytest.mark.parametrize(
    "name", ["numpy.py", "runpy.py", "typing_extensions.py", "amp_xla/__main__.py"]
)
def test_files_of_the_current_folder_replace_no_module(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("raise SystemExit('replaced')\n")
    (tmp_path / name).with_name("__init__.py").write_text("")
    done = run([PROGRAM, "export", "--python", sys.executable, "gone"], root=tmp_path)
    assert "error: gone is not a folder" in done.stderr, done.stderr


def test_a_rank_finds_the_checkout_without_pythonpath():
    words = ["-m", "amp_xla", "ranks", "--np", "1", "--recipe", "classification", "--", "--help"]
    done = run(["env", "-u", "PYTHONPATH", sys.executable, *words], root=ROOT)  # as train.sbatch
    assert done.returncode == 0 and "--learning-rate" in done.stdout, done.stderr


def test_an_unknown_variable_is_an_error_that_names_the_known_ones():
    for target in ("train", "help"):
        done = run(["make", target, "RECIP=pretraining"])
        assert done.returncode == 2 and done.stdout == ""
        assert "error: RECIP is not a variable of this Makefile. Known are: ARGS" in done.stderr
        assert len(done.stderr.strip().split("\n")) == 1


def test_a_machine_without_python(tmp_path):
    for name in ("dirname", "sh"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    done = run(["/bin/sh", PROGRAM, "doctor"], PATH=str(tmp_path))
    assert done.returncode == 2 and "no Python 3.8 or newer found" in done.stderr
