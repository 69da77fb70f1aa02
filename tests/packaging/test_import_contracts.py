"""`make lint` fails on an import that goes up and on a circle, also inside a function."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.packaging.checkout import ROOT, run

pytestmark = pytest.mark.once


# The first call builds the checkers' environment.
def slow_and_network(test):
    return pytest.mark.network(pytest.mark.slow(test))


LIFTED = "\n\ndef planted():\n    from {module} import {name}\n\n    return {name}\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("amp_xla", "recipes", "scripts", "requirements"):
        shutil.copytree(str(ROOT / name), str(tmp_path / name))
    for name in ("Makefile", "amp-xla", "pyproject.toml", "Dockerfile"):
        shutil.copy(str(ROOT / name), str(tmp_path))
    (ROOT / ".venvs").mkdir(exist_ok=True)
    (tmp_path / ".venvs").symlink_to(ROOT / ".venvs")
    return tmp_path


def plant(checkout: Path, file: str, module: str, name: str) -> None:
    path = checkout / file
    path.write_text(path.read_text() + LIFTED.format(module=module, name=name))


def lint(checkout: Path) -> str:
    """Return import-linter's output of a `make lint` that fails."""
    done = run(["make", "lint"], root=checkout)
    assert done.returncode != 0
    # The terminal's width breaks its lines.
    return re.sub(r"\s+", " ", done.stdout + done.stderr)


@slow_and_network
def test_an_arrow_that_runs_back(checkout):
    plant(checkout, "amp_xla/settings/flags.py", "amp_xla.training", "loop")
    said = lint(checkout)
    assert "Rooms import downwards only, as README's architecture draws them BROKEN" in said
    assert "amp_xla.settings.flags -> amp_xla.training.loop" in said


@slow_and_network
def test_a_circle_between_two_files_of_a_room(checkout):
    plant(checkout, "amp_xla/data/text/labels.py", "amp_xla.data.text", "readers")
    plant(checkout, "amp_xla/data/text/readers.py", "amp_xla.data.text", "labels")
    said = lint(checkout)
    assert "No circle between files BROKEN" in said
    assert "amp_xla.data.text.labels, amp_xla.data.text.readers" in said


@slow_and_network
def test_a_circle_with_the_package_itself(checkout):
    """A file that imports its own package, which imports it: siblings alone would not show it."""
    plant(checkout, "amp_xla/settings/wanted.py", "amp_xla.settings", "Settings")
    said = lint(checkout)
    assert re.search(r"in a circle: amp_xla\.settings, [^:]*amp_xla\.settings\.wanted", said)


@slow_and_network
def test_format_mends_what_lint_refuses(checkout):
    ugly = checkout / "scripts" / "ugly.py"
    ugly.write_text("import sys\nimport  os\nprint( os.name,sys.path )\n")
    assert "scripts/ugly.py" in lint(checkout)
    assert run(["make", "format"], root=checkout).returncode == 0
    assert ugly.read_text() == "import os\nimport sys\n\nprint(os.name, sys.path)\n"
