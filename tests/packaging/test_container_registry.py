"""The real lock of additions goes into a Python like the image's, and moves nothing.

No image can be pulled where these tests run. The base is the image's Python version with the
packages next to TensorFlow at versions believed, not seen, to be the image's; TensorFlow itself is
only its metadata. So this proves that wheels exist for that Python, that they fit such a base, and
that numpy, h5py and protobuf stay; not that they fit the image.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from scripts import container_install
from scripts.environment.container import distributions
from scripts.environment.interpreters import find
from scripts.environment.uv import uv
from tests.packaging.checkout import ROOT

pytestmark = [
    pytest.mark.once,
    pytest.mark.network,
    pytest.mark.skipif(
        not os.environ.get("CI"), reason="takes 50 MB from a package registry; CI=true runs it"
    ),
]
# Runtime -> (the image's Python, its TensorFlow, what lies beside it).
IMAGES = {
    "tf1": (
        "3.8",
        "1.15.5+nv23.3",
        """numpy==1.22.4 h5py==2.10.0 protobuf==3.20.3 scipy==1.8.1 pip==21.2.4 setuptools==65.5.1
        wheel attrs==22.2.0 pygments==2.14.0 typing_extensions==4.5.0""",
    ),
    "tf2": (
        "3.12",
        "2.17.0+nv25.2",
        """numpy==1.26.4 h5py==3.11.0 protobuf==4.24.4 pip==24.3.1 setuptools==70.3.0 wheel
        pygments==2.18.0 typing_extensions==4.12.2""",
    ),
}


def test_the_real_additions_fit_a_base_like_the_image(tmp_path):
    runtime = "tf1" if sys.version_info < (3, 10) else "tf2"
    minor, tensorflow, beside = IMAGES[runtime]
    found = find([minor])
    if found is None:
        pytest.skip(f"no Python {minor}, the image's, on this machine")
    program = uv(ROOT)
    base = tmp_path / "base"
    python = str(base / "bin" / "python")
    subprocess.check_call([program, "venv", "--quiet", "--python", found.path, str(base)])
    install = [program, "pip", "install", "--quiet", "--python", python]
    subprocess.check_call([*install, *beside.split()])
    site = base / "lib" / f"python{minor}" / "site-packages"
    info = site / f"tensorflow-{tensorflow}.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: tensorflow\nVersion: {tensorflow}\n"
    (info / "METADATA").write_text(metadata)
    (info / "RECORD").write_text("")
    before = distributions(python)

    assert container_install.install(python, runtime, ROOT) == 0

    after = distributions(python)
    # The base's typing_extensions is too old for tyro on purpose; nothing else may differ.
    changed = {name for name in before if after[name] != before[name]}
    assert changed <= {"typing-extensions"}
    lock = container_install.read_lock(ROOT / "requirements" / f"container-{runtime}.txt")
    assert set(lock) <= set(after)
    # In a process of its own, because the compiled ones must load next to this numpy.
    modules = "numpy h5py google.protobuf tokenizers tyro tqdm filelock psutil matplotlib.pyplot"
    code = "import " + ", ".join([*modules.split(), "pytest, hypothesis"])
    subprocess.check_call([python, "-W", "ignore", "-c", code])
