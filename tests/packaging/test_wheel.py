"""`pip install .` gives an importable package with its recipes, and nothing else."""

from __future__ import annotations

import zipfile

import pytest

from tests.packaging.checkout import ROOT
from tests.packaging.wheel import build


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return zipfile.ZipFile(str(build(tmp_path_factory.mktemp("wheel"))))


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
    assert "amp-xla = amp_xla.commands.cli:main" in wheel.read(entry).decode()
    licence = next(name for name in wheel.namelist() if name.endswith("LICENSE"))
    assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()
