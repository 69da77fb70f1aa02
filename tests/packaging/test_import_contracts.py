"""`make lint` fails on an import that goes up, on circles and on style that `make format` fixes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.packaging.checkout import ROOT, run

# The first call builds the checkers' environment.
pytestmark = [pytest.mark.once, pytest.mark.slow, pytest.mark.network]

PLANTED = "\n\ndef planted():\n    from {} import {}\n\n    return {}\n"
IMPORTS = (
    ("amp_xla/settings/flags.py", "amp_xla.training", "loop"),  # goes up
    ("amp_xla/data/text/labels.py", "amp_xla.data.text", "readers"),  # a circle of two files
    ("amp_xla/data/text/readers.py", "amp_xla.data.text", "labels"),
    ("amp_xla/settings/values.py", "amp_xla.settings", "Settings"),  # a file and its own package
)


def test_lint_names_each_mistake(tmp_path: Path) -> None:
    for name in ("amp_xla", "recipes", "scripts", "requirements"):
        shutil.copytree(str(ROOT / name), str(tmp_path / name))
    for name in ("Makefile", "amp-xla", "pyproject.toml", "Dockerfile"):
        shutil.copy(str(ROOT / name), str(tmp_path))
    (ROOT / ".venvs").mkdir(exist_ok=True)
    (tmp_path / ".venvs").symlink_to(ROOT / ".venvs")
    for file, module, name in IMPORTS:
        path = tmp_path / file
        path.write_text(path.read_text() + PLANTED.format(module, name, name))
    ugly = tmp_path / "scripts" / "ugly.py"
    ugly.write_text("import sys\nimport  os\nprint( os.name,sys.path )\n")

    done = run(["make", "lint"], root=tmp_path)
    output = re.sub(r"\s+", " ", done.stdout + done.stderr)  # the terminal's width breaks lines
    assert done.returncode != 0
    assert "Rooms import downwards only, as README's architecture draws them BROKEN" in output
    assert "amp_xla.settings.flags -> amp_xla.training.loop" in output
    assert "No circle between files BROKEN" in output
    assert "amp_xla.data.text.labels, amp_xla.data.text.readers" in output
    assert re.search(r"in a circle: amp_xla\.settings, [^:]*amp_xla\.settings\.values", output)
    assert "scripts/ugly.py" in output

    assert run(["make", "format"], root=tmp_path).returncode == 0
    assert ugly.read_text() == "import os\nimport sys\n\nprint(os.name, sys.path)\n"
