"""`pip install .` installs the package alone; the packages of a TensorFlow image are not changed.

The image is a virtual environment with small wheels, into which pip installs offline.
"""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts import container_install
from scripts.environment import SetupError
from scripts.environment.installed import distributions
from tests.support.running import ROOT, run

pytestmark = pytest.mark.once

BUILD = "import sys; from setuptools import build_meta as b; b.build_wheel(sys.argv[1])"


def source(folder):
    """Copy the project into `folder`, without environments and files of earlier builds."""
    ignore = shutil.ignore_patterns(".*", "runs", "build", "*.egg-info", "__pycache__")
    return Path(shutil.copytree(str(ROOT), str(folder / "copy"), ignore=ignore))


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


TAGS = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def wheel(folder, name, version, requires=""):
    """Write a wheel with one empty module."""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(str(folder / f"{name}-{version}-py3-none-any.whl"), "w") as archive:
        archive.writestr(f"{name}.py", f"version = {version!r}\n")
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", TAGS)
        archive.writestr(f"{info}/RECORD", "")


WHEELS = (
    ("tensorflow", "1.15.5", "numpy<1.23"), ("numpy", "1.22.4", ""), ("numpy", "1.23.5", ""),
    ("old_pure", "1.0", ""), ("old_pure", "2.0", ""), ("kept", "1.0", ""), ("kept", "9.0", ""),
    ("bert4keras", "0.11.3", "keras<=2.3.1"), ("addition", "1.0", "old_pure>=2"),
    ("wants_numpy", "1.0", "numpy>=1.23"),
)  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Return the Python of an environment with TensorFlow 1.15, its numpy and two old packages."""
    pytest.importorskip("ensurepip", reason="Debian's Pythons lack it")
    folder = tmp_path_factory.mktemp("image")
    (folder / "wheels").mkdir()
    for each in WHEELS:
        wheel(folder / "wheels", *each)
    (folder / "requirements").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(folder / "wheels"))
        patch.setenv("PIP_CONFIG_FILE", "/dev/null")
        subprocess.check_call([sys.executable, "-m", "venv", str(folder / "base")])
        python = str(folder / "base" / "bin" / "python")
        packages = ["tensorflow", "numpy==1.22.4", "old_pure==1.0", "kept==1.0"]
        subprocess.check_call([python, "-m", "pip", "install", "--quiet", *packages])
        yield python


def install(python, *pins, request="auto"):
    """Run the installer with a lock of these pins; return the versions afterwards."""
    root = Path(python).parents[2]
    (root / "requirements" / "container-tf1.txt").write_text("\n".join(pins))
    container_install.install(python, request, root)
    return distributions(python)


def test_the_dockerfile_copies_all_that_its_install_step_needs(base, tmp_path):
    """Run this step in a folder with only the files that were copied before it."""
    layer = tmp_path / "layer"
    text = (ROOT / "Dockerfile").read_text()
    step = re.search(r"^RUN .*python3 -m (scripts\.container_install.*)$", text, re.MULTILINE)
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


def test_missing_packages_are_added_and_others_unchanged_or_it_is_refused(base, capfd):
    versions = distributions(base)
    assert versions["kept"] == "1.0" and versions["numpy"] == "1.22.4"
    versions["bert4keras"] = "0.11.3"
    for missing in ("bert4keras==0.11.3", "nothing"):
        assert install(base, "bert4keras==0.11.3", "kept==9.0") == versions
        assert f"to install: {missing}\n" in capfd.readouterr().out
    versions.update({"addition": "1.0", "old-pure": "2.0"})
    assert install(base, "addition==1.0", "old-pure==2.0", "kept==9.0") == versions
    assert "to upgrade, because the new packages need it: old-pure==2.0" in capfd.readouterr().out
    with pytest.raises(SetupError, match=r"wants[-_]numpy 1.0 has requirement numpy>=1.23"):
        install(base, "wants_numpy==1.0")
    assert distributions(base)["numpy"] == "1.22.4"
    with pytest.raises(SetupError, match="TensorFlow 1.15.5, which is tf1, not tf2"):
        install(base, "bert4keras==0.11.3", request="tf2")
    shutil.rmtree(next(Path(base).parents[1].glob("lib/*/site-packages/tensorflow-1.15.5.*")))
    with pytest.raises(SetupError, match="has no TensorFlow. Start from a TensorFlow image"):
        install(base, "bert4keras==0.11.3")


def test_tf_keras_fits_the_images_tensorflow():
    pins, folder = {"tf-keras": "tf-keras==2.17.0 --hash=a"}, ROOT / "requirements"
    for version, pin in (
        ("1.15.5", ""),
        ("2.14.0", "tf-keras==2.14.1 --hash="),
        ("2.17.0", *pins.values()),
    ):
        fitted = container_install.fit_keras(pins, version, folder)
        assert fitted.get("tf-keras", "").startswith(pin) and ("tf-keras" in fitted) == bool(pin)
    with pytest.raises(SetupError, match="the image has TensorFlow 2.13.0. Supported: "):
        container_install.fit_keras(pins, "2.13.0", folder)
