"""The ways to install of docs/own-script.md, in empty environments outside the checkout.

The tests of each runtime install its packages with pip, and run the page's script and the commands.
"""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.environment.uv import uv
from tests.packaging.test_container_install import source
from tests.support.running import ROOT, shell_environment
from tests.support.snippets import blocks

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get("CI"), reason="takes packages from a registry; CI=true runs it"
    ),
]
PAGE, README = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("docs/own-script.md", "README.md")
)
# This file is also collected in the runtime jax, because it contains `import jax`.
RUNTIME = (
    "jax"
    if importlib.util.find_spec("tensorflow") is None
    else ("tf1" if sys.version_info < (3, 8) else "tf2")
)
with_tensorflow = pytest.mark.skipif(RUNTIME == "jax", reason="this runtime has no TensorFlow")
BERT4KERAS = "0.11.3" if RUNTIME == "tf1" else "0.11.5"
# Packages of NVIDIA's images that the page's script needs.
IMAGE = {
    "tf1": "tensorflow-gpu==1.15.5 'h5py<3' 'numpy<1.19' 'protobuf<3.21'",
    "tf2": "tensorflow==2.17.1 'setuptools<81'",
}
DATA = """
import numpy as np
token_ids = np.random.RandomState(1).randint(5, 60, (8, 16))
segment_ids, labels = np.zeros_like(token_ids), np.random.RandomState(2).rand(8, 2)
"""


class Environment:
    """A new environment with this runtime's Python, and a working folder outside the checkout."""

    def __init__(self, folder, checkout):
        self.folder, self.checkout = folder, checkout
        self.python, self.uv = folder / "venv" / "bin" / "python", uv(ROOT)
        base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info[1]}"
        self.run([self.uv, "venv", "--quiet", "--python", str(base), str(folder / "venv")])

    def run(self, words, code=0, stdin=""):
        """Run a command that must end with ``code``; return stdout and stderr."""
        done = subprocess.run(
            words, cwd=str(self.folder), env=shell_environment(PYTHONPATH=""), timeout=600,
            input=stdin.encode(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        said = done.stdout.decode()
        assert done.returncode == code, f"{words}\n{said}"
        return said

    def install(self, line):
        """Run an install command of the page, with the checkout in place of ``.``."""
        for part in line.split("&&"):
            words = shlex.split(part)
            assert words[:2] == ["pip", "install"], line
            words = [re.sub(r"^\.(?=\[|$)", str(self.checkout), word) for word in words[2:]]
            self.run([self.uv, "pip", "install", "--quiet", "--python", str(self.python), *words])

    def amp_xla(self, line, code=0, stdin=""):
        """Run the installed program; return its output."""
        return self.run([str(self.python.parent / "amp-xla"), *shlex.split(line)], code, stdin)


def install_line(*having):
    lines, first = (
        re.findall(r"^    (pip install .*?)(?:\s+# .*)?$", text, re.MULTILINE)
        for text in (PAGE, README)
    )
    assert len(first) == 1 and first[0] in lines
    matching = [line for line in lines if all(word in line for word in having)]
    assert len(matching) == 1, (having, lines)
    return matching[0]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return source(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def own(tmp_path_factory, checkout):
    """Install into a user's environment."""
    environment = Environment(tmp_path_factory.mktemp("own"), checkout)
    environment.install(install_line(f"'.[{RUNTIME}]'"))
    return environment


@pytest.fixture(scope="module")
def bert(own):
    """Return a BERT folder, pretrained for two steps by the installed program."""
    text = "".join(f"{word} is a word, and so is {word}s.\n\n" for word in dir(str) * 5)
    (own.folder / "text.txt").write_text(text)
    own.amp_xla("prepare text.txt data --length 32 --vocab-size 128 --workers 1")
    said = own.amp_xla(
        "train pretraining -- --data data --steps 2 --global-batch 4 --micro-batch 4"
        " --heldout 8 --name mine"
    )
    run = "runs/pretraining/mine"
    # The last line of the output names a command for this run.
    assert f"amp-xla train classification --bert {run}" in said
    return own.folder / run


def run_script(environment, bert):
    """Run the whole script of the page in an environment."""
    script = re.search(r"<!-- run: script -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    (environment.folder / "my_data.py").write_text(DATA)
    (environment.folder / "script.py").write_text(script.group(1))
    if not (environment.folder / "bert").exists():
        (environment.folder / "bert").symlink_to(bert)
    said = environment.run([str(environment.python), "script.py"])
    assert "loss: " in said and "loss: nan" not in said


@with_tensorflow
def test_the_script_in_ones_own_environment(own, bert):
    run_script(own, bert)


@pytest.mark.once
@with_tensorflow
def test_the_script_in_a_container_that_keeps_its_own_packages(tmp_path, checkout, bert):
    container = Environment(tmp_path, checkout)
    container.install(f"pip install {IMAGE[RUNTIME]}")
    freeze = [container.uv, "pip", "freeze", "--python", str(container.python)]
    frozen = set(container.run(freeze).splitlines())
    container.install(install_line("install . &&", BERT4KERAS))
    assert frozen <= set(container.run(freeze).splitlines())
    run_script(container, bert)


@pytest.mark.skipif(RUNTIME != "jax", reason="for the runtime jax")
def test_jax_alone(own):
    for code in blocks("jax"):
        own.run([str(own.python), "-c", code])


@pytest.mark.skipif(RUNTIME != "jax", reason="the other runtimes have TensorFlow")
def test_a_missing_tensorflow_is_one_line(own):
    said = own.amp_xla("doctor")
    assert "TensorFlow: TensorFlow cannot be imp" in said and "pip install 'amp-xla[tf2]'" in said
    assert "Traceback" not in said and "make " not in said
    said = own.amp_xla("train", code=2)
    assert re.fullmatch(
        r".*loading libraries \.\.\.\nerror: TensorFlow cannot be imported .*\n", said
    )
