"""The report in a real browser: no error, no request, no overflow, nothing serious for axe-core."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import pytest

from amp_xla.report import record
from amp_xla.report.page import render
from scripts.environment.uv import uv
from tests.packaging.checkout import ROOT
from tests.report import folders
from tests.report.browser import Browser, find

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.once,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not (os.environ.get("CI") or find()), reason="installs Chromium; CI=true runs it"
    ),
]
AXE = "axe-playwright-python==0.1.8"  # has axe.min.js
SERIOUS = """axe.run().then(result => result.violations
    .filter(each => ["serious", "critical"].includes(each.impact))
    .map(each => each.id + ": " + each.nodes.map(node => node.html).join("\\n")))"""
TEXT = "</script><script>alert(1)</script>\x1b[31m 训练"


@pytest.fixture(scope="module")
def browser() -> Any:
    if find() is None:
        apt = ["apt-get"] if os.geteuid() == 0 else ["sudo", "apt-get"]
        subprocess.run([*apt, "update"], check=True)
        subprocess.run([*apt, "install", "-y", "--no-install-recommends", "chromium"], check=True)
    program = find()
    assert program is not None
    with Browser(program) as opened:
        yield opened


@pytest.fixture(scope="module")
def axe(tmp_path_factory: Any) -> str:
    folder = tmp_path_factory.mktemp("axe")
    command = [uv(ROOT), "pip", "install", "--quiet", "--python", sys.executable, "--no-deps"]
    subprocess.run([*command, "--target", str(folder), AXE], check=True)
    return next(folder.rglob("axe.min.js")).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: Any) -> Dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    runs = {
        "good": folders.good(folder / "good", learning_rate=1e-3),
        "diverged": folders.diverged(folder / "diverged"),
        "killed": folders.good(folder / "killed", state="running"),
        "empty": folder / "empty",
        "long": folders.good(folder / "long", lines=200_000),
        "evil": folders.good(folder / "evil", {TEXT: 1.0}, message=TEXT, train=TEXT),
    }
    runs["empty"].mkdir()
    folders.scored(runs["good"], "文件")
    folders.scored(runs["evil"], TEXT)
    several = [record.read(runs[name]) for name in ("good", "diverged", "evil")]
    texts = {name: render([record.read(run)]) for name, run in runs.items()}
    texts["three"] = render(several)
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.mark.parametrize("name", "good diverged killed empty long evil three".split())
def test_a_page_opens_at_any_width_and_in_the_dark(
    name: str, pages: Dict[str, Path], browser: Browser, axe: str
) -> None:
    assert pages[name].stat().st_size < 5_000_000
    for width, dark in ((360, False), (1440, True), (360, True), (1440, False)):
        browser.open(pages[name], width, dark)
        assert browser.run("document.documentElement.scrollWidth <= innerWidth"), width
        background = browser.run("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") != dark
        browser.run(axe + "\n0")
        assert browser.run(SERIOUS) == []
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
    assert browser.run("document.scripts.length") == 2


def test_values_under_the_keys_and_runs_switched_off(
    pages: Dict[str, Path], browser: Browser
) -> None:
    browser.open(pages["three"])
    read = "document.querySelector('.readout').textContent"
    browser.run("document.querySelector('.plot').focus()")
    assert browser.run(read).startswith("step 200: good, training, smoothed 0.")
    for key in ("Home", "ArrowRight"):
        browser.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key)
    assert browser.run(read).startswith("step 10: good")
    browser.run("document.querySelector('.switches input').click()")
    shown = "getComputedStyle(document.querySelector('.plot .of-run-0')).display"
    assert browser.run(shown) == "none"
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="End", code="End")
    assert browser.run(read).startswith("step 200: diverged, dev")  # no finite loss up to there
    assert browser.errors == []


@pytest.mark.long  # a figure of an idle machine
def test_the_first_paint_of_a_long_log_is_quick(pages: Dict[str, Path], browser: Browser) -> None:
    assert min(browser.open(pages["long"]) for _ in range(3)) < 2.0
