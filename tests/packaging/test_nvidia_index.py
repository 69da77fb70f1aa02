"""Runtime nvtf1: NVIDIA's packages come from NVIDIA's index and are locked at the first build.

That index is stood in for by one on loopback with small wheels, the rest of what is installed lies
in the same place: no network, but the real uv.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Iterator

import pytest

from scripts.environment import SetupError, build, uv
from scripts.environment.pythons import find
from scripts.environment.runtimes import Choice, Runtime
from tests.packaging.checkout import ROOT
from tests.packaging.test_container_install import wheel

pytestmark = pytest.mark.once

MINOR = "{}.{}".format(*sys.version_info)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        pass


def publish(folder: Path, name: str, version: str, requires: str = "") -> None:
    """A wheel and its page, as package indexes have them."""
    place = folder / name.replace("_", "-")
    place.mkdir(parents=True, exist_ok=True)
    wheel(place, name, version, requires)
    (place / "index.html").write_text(
        "".join(
            f'<a href="{file.name}#sha256={hashlib.sha256(file.read_bytes()).hexdigest()}">'
            f"{file.name}</a>\n"
            for file in sorted(place.glob("*.whl"))
        )
    )


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """Its address; /nvidia is NVIDIA's, /pypi the other."""
    folder = tmp_path / "index"
    publish(folder / "nvidia", "nvidia_tensorflow", "1.15.5+nv23.3", "nvidia_cublas==12")
    publish(folder / "nvidia", "nvidia_cublas", "12")
    publish(folder / "pypi", "nvidia_tensorflow", "0.0.1")  # the stub of the public index
    publish(folder / "pypi", "bert4keras", "0.11.3")
    publish(folder / "pypi", "bert4keras", "0.11.4")
    handler = partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def root(tmp_path: Path, index: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs = [p for p in uv.candidates(ROOT / ".venvs" / "tools") if uv._version(p)]
    if not programs:
        pytest.skip("no uv here: this Python was not made by it (a container's own)")
    checkout = tmp_path / "root"
    (checkout / "requirements").mkdir(parents=True)
    requirements = checkout / "requirements"
    (requirements / "nvtf1.in").write_text("nvidia-tensorflow==1.15.5+nv23.3\nbert4keras\n")
    (requirements / "nvtf1.txt").write_text("# NOT WHOLE\nbert4keras==0.11.3\n")
    (requirements / "container.overrides.txt").write_text("")
    (checkout / ".venvs" / "tools" / "bin").mkdir(parents=True)
    (checkout / ".venvs" / "tools" / "bin" / "uv").symlink_to(programs[0])
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{index}/pypi")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("NVIDIA_INDEX", f"{index}/nvidia")
    for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS", "UV_EXTRA_INDEX_URL", "UV_INDEX"):
        monkeypatch.delenv(name, raising=False)
    return checkout


def choice() -> Choice:
    python = find([MINOR])
    return Choice(Runtime("nvtf1", (MINOR,), 0.0, True), python, False, "a test")


def installed(python: Path) -> set:
    site = python.parents[1] / "lib" / f"python{MINOR}" / "site-packages"
    return {p.name.replace(".dist-info", "") for p in site.glob("*.dist-info")}


def test_nvidias_packages_are_locked_with_hashes_and_installed(root: Path, capsys: Any) -> None:
    python = build.ensure(choice(), root)
    assert installed(python) == {
        *("nvidia_tensorflow-1.15.5+nv23.3", "nvidia_cublas-12", "bert4keras-0.11.3")
    }
    lock = (root / ".venvs" / "nvtf1.lock.txt").read_text()
    assert "nvidia-tensorflow==1.15.5+nv23.3 \\\n    --hash=sha256:" in lock
    assert "bert4keras==0.11.3 \\\n" in lock  # what nvtf1.txt pins stays
    assert "locking NVIDIA's packages from http://127.0.0.1" in capsys.readouterr().err
    build.ensure(choice(), root)
    assert capsys.readouterr().err == ""
    # Copied over nvtf1.txt it is the whole lock, and nothing is locked here again.
    (root / "requirements" / "nvtf1.txt").write_text(lock)
    (root / ".venvs" / "nvtf1.lock.txt").unlink()
    build.ensure(choice(), root)
    assert not (root / ".venvs" / "nvtf1.lock.txt").exists()


def test_a_wheel_that_is_not_the_locked_one_is_refused(root: Path, tmp_path: Path) -> None:
    build.ensure(choice(), root)
    place = tmp_path / "index" / "nvidia"
    publish(place, "nvidia_cublas", "12", "bert4keras")
    stamp = root / ".venvs" / "nvtf1" / build.STAMP
    stamp.unlink()

    shutil.rmtree(str(tmp_path / "cache"))
    with pytest.raises(SetupError, match="uv pip sync"):
        build.ensure(choice(), root)
    assert not stamp.exists()


@pytest.mark.slow  # uv tries again a few times
def test_an_index_that_does_not_answer_names_the_ways_out(
    root: Path, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVIDIA_INDEX", f"{index}/nowhere")
    with pytest.raises(SetupError, match="NVIDIA_INDEX=<address> names a mirror; RUNTIME=tf2"):
        build.ensure(choice(), root)


def test_the_real_lock_says_what_has_not_been_seen() -> None:
    requirements_in = (ROOT / "requirements" / "nvtf1.in").read_text()
    lock = (ROOT / "requirements" / "nvtf1.txt").read_text()
    assert (
        "nvidia-tensorflow[horovod]==1.15.5+nv" in requirements_in and "not seen" in requirements_in
    )
    whole = "\nnvidia-tensorflow==" in lock
    assert whole or lock.startswith("# NOT WHOLE: NVIDIA's package index was out of reach")
    assert "bert4keras==0.11.3 \\\n    --hash=sha256:" in lock
