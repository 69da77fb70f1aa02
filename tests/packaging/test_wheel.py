"""`pip install .` installs the package with its recipes, and nothing else."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.running import ROOT

BUILD = "import sys; from setuptools import build_meta as b; b.build_wheel(sys.argv[1])"


def source(folder):
    """Copy the project into `folder`, without environments and files of earlier builds."""
    ignore = shutil.ignore_patterns(".*", "runs", "build", "*.egg-info", "__pycache__")
    return Path(shutil.copytree(str(ROOT), str(folder / "copy"), ignore=ignore))


@pytest.mark.once
def test_the_wheel_holds_the_package_its_recipes_and_its_command(tmp_path):
    command = [sys.executable, "-c", BUILD, str(tmp_path)]
    subprocess.run(command, cwd=str(source(tmp_path)), check=True, stdout=subprocess.DEVNULL)
    wheel = zipfile.ZipFile(str(next(tmp_path.glob("*.whl"))))
    names = wheel.namelist()
    files = [path for path in (ROOT / "amp_xla").rglob("*.*") if path.suffix != ".pyc"]
    expected = {str(path.relative_to(ROOT)) for path in files}
    expected |= {f"amp_xla/{path.relative_to(ROOT)}" for path in (ROOT / "recipes").glob("*.py")}
    assert {name for name in names if name.startswith("amp_xla/")} == expected
    assert {"amp_xla/recipes/classification.py", "amp_xla/export/card.txt"} <= expected
    assert {name.split("/")[0].split("-")[0] for name in names} == {"amp_xla"}

    def text(end):
        return wheel.read(next(name for name in names if name.endswith(end))).decode()

    assert "amp-xla = amp_xla.commands.cli:main" in text("/entry_points.txt")
    assert text("LICENSE") == (ROOT / "LICENSE").read_text()
    lines = text("/METADATA").splitlines()
    assert {"Name: amp-xla", "Requires-Python: >=3.7", "Provides-Extra: tf1"} <= set(lines)
    # A container's TensorFlow must not be replaced by installing this.
    required = [x for x in lines if x.startswith("Requires-Dist:") and "extra ==" not in x]
    assert required and not any("tensorflow" in line or "keras" in line for line in required)
