"""The packages of a TensorFlow image are not changed.

The image is a virtual environment with small wheels, into which pip installs offline.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Dict

import pytest

from scripts import container_install
from scripts.environment import SetupError
from scripts.environment.installed import distributions
from tests.running import ROOT, run

pytestmark = pytest.mark.once

TAGS = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def wheel(folder: Path, name: str, version: str, requires: str = "") -> None:
    """Write a wheel with one empty module."""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(str(folder / f"{name}-{version}-py3-none-any.whl"), "w") as archive:
        archive.writestr(f"{name}.py", f"version = {version!r}\n")
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", TAGS)
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """Make an environment with pip, TensorFlow 1.15, its numpy and two old packages."""
    pytest.importorskip("ensurepip", reason="Debian's Pythons lack it")
    folder = tmp_path_factory.mktemp("image")
    wheels = folder / "wheels"
    wheels.mkdir()
    for name, version, requires in (
        ("tensorflow", "1.15.5", "numpy<1.23"),
        ("numpy", "1.22.4", ""),
        ("numpy", "1.23.5", ""),
        ("old_pure", "1.0", ""),
        ("old_pure", "2.0", ""),
        ("kept", "1.0", ""),
        ("kept", "9.0", ""),
        ("bert4keras", "0.11.3", "keras<=2.3.1"),
        ("addition", "1.0", "old_pure>=2"),
        ("wants_numpy", "1.0", "numpy>=1.23"),
    ):
        wheel(wheels, name, version, requires)
    subprocess.check_call([sys.executable, "-m", "venv", str(folder / "base")])
    python = str(folder / "base" / "bin" / "python")
    base = ["tensorflow", "numpy==1.22.4", "old_pure==1.0", "kept==1.0"]
    options = ["--quiet", "--no-index", "--find-links", str(wheels), "--disable-pip-version-check"]
    subprocess.check_call([python, "-m", "pip", "install", *options, *base])
    return folder


@pytest.fixture
def base(image, tmp_path, monkeypatch):
    """Return the Python of a new copy of the image."""
    shutil.copytree(str(image / "base"), str(tmp_path / "base"), symlinks=True)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(image / "wheels"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    (tmp_path / "requirements").mkdir()
    return str(tmp_path / "base" / "bin" / "python")


def install(python: str, *pins: str, request: str = "auto") -> Dict[str, str]:
    """Run the installer with a lock of these pins; return the versions afterwards."""
    root = Path(python).parents[2]
    (root / "requirements" / "container-tf1.txt").write_text("\n".join(pins))
    container_install.install(python, request, root)
    return distributions(python)


def test_missing_packages_are_added_and_others_unchanged(base, capfd):
    base_versions = distributions(base)
    assert base_versions["kept"] == "1.0" and base_versions["numpy"] == "1.22.4"
    versions = install(base, "bert4keras==0.11.3", "kept==9.0")
    assert versions == {**base_versions, "bert4keras": "0.11.3"}
    assert "to install: bert4keras==0.11.3\n" in capfd.readouterr().out
    assert install(base, "bert4keras==0.11.3", "kept==9.0") == versions
    assert "to install: nothing\n" in capfd.readouterr().out


def test_a_package_too_old_for_an_addition_is_replaced_and_named(base, capfd):
    base_versions = distributions(base)
    versions = install(base, "addition==1.0", "old-pure==2.0", "kept==9.0")
    assert versions == {**base_versions, "addition": "1.0", "old-pure": "2.0"}
    assert "replaced, too old for the new packages: old-pure==2.0" in capfd.readouterr().out


def test_an_addition_that_needs_another_numpy_is_refused_and_numpy_stays(base):
    with pytest.raises(SetupError, match=r"wants[-_]numpy 1.0 has requirement numpy>=1.23"):
        install(base, "wants_numpy==1.0")
    assert distributions(base)["numpy"] == "1.22.4"


def test_another_tensorflow_or_none_is_refused(base):
    with pytest.raises(SetupError, match="TensorFlow 1.15.5, which is tf1, not tf2"):
        install(base, "bert4keras==0.11.3", request="tf2")
    shutil.rmtree(next(Path(base).parents[1].glob("lib/*/site-packages/tensorflow-1.15.5.*")))
    with pytest.raises(SetupError, match="has no TensorFlow. Start from a TensorFlow image"):
        install(base, "bert4keras==0.11.3")


def test_the_dockerfile_copies_all_that_its_install_step_needs(base, tmp_path):
    """Run this step in a folder with only the files that were copied before it."""
    layer = tmp_path / "layer"
    text = (ROOT / "Dockerfile").read_text()
    step = re.search(r"^RUN .*python3 -m (scripts\.container_install.*)$", text, re.MULTILINE)
    assert step is not None
    for sources, target in re.findall(r"^COPY (.+) (\S+)$", text[: step.start()], re.MULTILINE):
        paths = [path.relative_to(ROOT) for s in sources.split() for path in sorted(ROOT.glob(s))]
        for source in paths:
            place = layer / target
            if (ROOT / source).is_dir():
                shutil.copytree(str(ROOT / source), str(place))
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(ROOT / source), str(place))
    command = step.group(1).replace('"${RUNTIME}"', "tf1").split()
    done = run([base, "-m", *command, "--dry-run"], root=layer)
    assert done.returncode == 0, done.stderr
    assert "to install: " in done.stdout and "bert4keras==0.11.3" in done.stdout
