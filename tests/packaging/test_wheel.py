"""`pip install .` gives an importable package with its recipes, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.packaging.checkout import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The built wheel, made by the setuptools of this runtime from a copy of what is versioned."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "copy"
    copy.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(str(ROOT / name), str(copy))
    for name in ("amp_xla", "recipes", "scripts", "tests"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(str(ROOT / name), str(copy / name), ignore=ignore)
    code = "import sys; from setuptools import build_meta as b; b.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        cwd=str(copy),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return zipfile.ZipFile(str(next(folder.glob("*.whl"))))


def test_it_holds_every_module_of_the_package_and_every_recipe(wheel):
    expected = {str(path.relative_to(ROOT)) for path in (ROOT / "amp_xla").rglob("*.py")}
    expected |= {f"amp_xla/{path.relative_to(ROOT)}" for path in (ROOT / "recipes").glob("*.py")}
    assert {name for name in wheel.namelist() if name.endswith(".py")} == expected
    assert "amp_xla/recipes/classification.py" in expected


def test_nothing_else_reaches_site_packages(wheel):
    assert {name.split("/")[0].split("-")[0] for name in wheel.namelist()} == {"amp_xla"}


def test_metadata(wheel):
    info = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
    metadata = wheel.read(info).decode()
    for line in ("Name: amp-xla", "Requires-Python: >=3.7", "Provides-Extra: tf1"):
        assert line in metadata
    assert "License :: OSI Approved :: Apache Software License" in metadata
    # A container's TensorFlow must not be replaced by installing this.
    required = [
        line
        for line in metadata.split("\n")
        if line.startswith("Requires-Dist:") and "extra ==" not in line
    ]
    assert required and not any("tensorflow" in line or "keras" in line for line in required)


def test_the_command_and_the_licence(wheel):
    entry = next(name for name in wheel.namelist() if name.endswith("/entry_points.txt"))
    assert "amp-xla = amp_xla.cli:main" in wheel.read(entry).decode()
    licence = next(name for name in wheel.namelist() if name.endswith("LICENSE"))
    assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()
