"""Headless Chromium, driven through its debugging pipe: no driver and no open port."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find() -> Optional[str]:
    """Return the path of Chromium; None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page in a browser without a window.

    Attributes:
      errors: messages and exceptions of the page's console.
      requests: addresses that the page asked for.
    """

    def __init__(self, program: str) -> None:
        self.errors: List[str] = []
        self.requests: List[str] = []
        self._profile = tempfile.TemporaryDirectory()
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # Chromium reads its descriptor 3 and writes to 4.
        words = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        flags += [f"--user-data-dir={self._profile.name}", "--no-first-run", "--hide-scrollbars"]
        self._process = subprocess.Popen(
            ["bash", "-c", words, "chromium", program, *flags],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session = b"", 0, ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: Any) -> None:
        self._session = ""
        self.call("Browser.close")
        self._process.wait(30)
        os.close(self._read)
        os.close(self._write)
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> Any:
        """Return the result of a command of Chrome's DevTools protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "result" in answer, answer
                return answer["result"]

    def _next(self, seconds: float = 120.0) -> Dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._read], [], [], seconds)[0], "the browser does not answer"
            data = os.read(self._read, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: Dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, parameters: Dict[str, Any]) -> None:
        if method == "Log.entryAdded":
            self.errors.append(parameters["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.errors.append(str(parameters["args"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Page.loadEventFired":
            self._loaded = True

    def open(self, path: Path, width: int = 1440, dark: bool = False) -> float:
        """Open a file at a width in pixels; return the seconds until its first paint."""
        self.errors.clear()
        self.requests.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self._loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self._loaded:
            self._next()
        end = time.monotonic() + 60
        paint = "performance.getEntriesByType('paint').map(p => p.startTime)"
        while not self.run(paint) and time.monotonic() < end:
            time.sleep(0.05)
        return min(self.run(paint)) / 1000

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page, of a promise what it resolves to."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def picture(self, path: Path, most: int = 6000) -> None:
        """Write a PNG of the whole page, at most ``most`` pixels high."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], most)}
        answer = self.call(
            "Page.captureScreenshot", clip={**clip, "scale": 1}, captureBeyondViewport=True
        )
        path.write_bytes(base64.b64decode(answer["data"]))
