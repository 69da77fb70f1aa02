"""The report in a real browser: no error, no request, no overflow, nothing serious for axe-core."""

import importlib
import os
import shutil
import subprocess
import sys

import pytest

from amp_xla.report import record
from amp_xla.report.page import render
from scripts.environment.uv import uv
from tests.support import run_folders as folders
from tests.support.running import ROOT

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.once,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get("CI"), reason="installs a browser; CI=true runs it"),
]
TEXT = "</script><script>alert(1)</script>\x1b[31m 训练"


class Browser:
    """Chromium without a window; it collects console messages and requests of its pages."""

    def __init__(self, chromium, axe):
        self._chromium, self._axe = chromium, axe
        self.errors = []
        self.requests = []

    def open(self, path, width=1440, dark=False):
        page = self._chromium.new_page(
            viewport={"width": width, "height": 900}, is_mobile=width < 600,
            color_scheme="dark" if dark else "light",
        )  # fmt: skip
        page.on("console", lambda message: self.errors.append(message.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(path.resolve().as_uri())
        return page

    def violations(self, page):
        """Return the serious accessibility violations that axe-core finds."""
        found = self._axe.run(page).response["violations"]
        return [(x["id"], x["nodes"]) for x in found if x["impact"] in ("serious", "critical")]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if shutil.which("chromium") is None:
        apt = ["apt-get"] if os.geteuid() == 0 else ["sudo", "apt-get"]
        subprocess.run([*apt, "update"], check=True)
        subprocess.run([*apt, "install", "-y", "--no-install-recommends", "chromium"], check=True)
    target = str(tmp_path_factory.mktemp("playwright"))
    command = [uv(ROOT), "pip", "install", "--quiet", "--python", sys.executable]
    subprocess.run([*command, "--target", target, "axe-playwright-python==0.1.8"], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(target)
        axe = importlib.import_module("axe_playwright_python.sync_playwright").Axe()
        with importlib.import_module("playwright.sync_api").sync_playwright() as playwright:
            program = shutil.which("chromium")
            chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            yield Browser(chromium, axe)
            chromium.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    runs = {
        "good": folders.good(folder / "good", learning_rate=1e-3),
        "diverged": folders.diverged(folder / "diverged"),
        "empty": folder / "empty",
        "long": folders.good(folder / "long", lines=50_000),
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


@pytest.mark.parametrize("name", "empty long evil three".split())
def test_a_page_opens_at_any_width_and_in_the_dark(name, pages, browser):
    assert pages[name].stat().st_size < 5_000_000
    for width, dark in ((360, True), (1440, False)):
        page = browser.open(pages[name], width, dark)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") != dark
        assert page.evaluate("document.scripts.length") == 2
        assert browser.violations(page) == []
        page.close()
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []


def test_values_under_the_keys_and_runs_switched_off(pages, browser):
    page = browser.open(pages["three"])
    page.focus(".plot")
    assert page.text_content(".readout").startswith("step 200: good, training, smoothed 0.")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert page.text_content(".readout").startswith("step 10: good")
    page.click(".switches input")
    shown = "getComputedStyle(document.querySelector('.plot .of-run-0')).display"
    assert page.evaluate(shown) == "none"
    page.focus(".plot")
    page.keyboard.press("End")
    # The diverged run has no finite training loss at this step.
    assert page.text_content(".readout").startswith("step 200: diverged, dev")
    assert browser.errors == []
