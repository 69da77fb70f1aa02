"""The terminal: what the progress bar shows at 80 columns, and text from foreign files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import termios
from typing import Any

import pytest

from amp_xla.process.output import lines, printable
from amp_xla.process.progress import Progress, note

pytestmark = pytest.mark.once

VALUES = {
    "loss": "2.4849",
    "accuracy": "0.512",
    "samples/s": "310",
    "scale": "1000",
    "skipped": "3",
}


def _all_of(terminal: Any) -> str:
    """Read until the other side is closed: one read may return less than was written."""
    parts = []
    with contextlib.suppress(OSError):  # EIO is a terminal's end of file
        for part in iter(lambda: terminal.read(4096), b""):
            parts.append(part)
    return b"".join(parts).decode()


def test_the_bar_shows_loss_scale_and_skipped_steps_at_80_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal, program = pty.openpty()
    fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with os.fdopen(program, "w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        progress = Progress(20_000, 19_000)
        progress.show(19_000, VALUES)
        progress.close()
    with os.fdopen(terminal, "rb", buffering=0) as reader:
        shown = [text for text in _all_of(reader).split("\r") if "%" in text][-1]
    assert len(shown) <= 80
    for words in ("95%", "19000/20000", "loss 2.4849", "scale 1000", "skipped 3"):
        assert words in shown


@pytest.mark.parametrize("text, shown", [
    ("\x1b[31mred\x07", "\\x1b[31mred\\x07"), ("a\nb\tc\r", "a\\nb\\tc\\r"),
    ("\u202eabc", "\\u202eabc"), ("中文　Ünïcode", "中文　Ünïcode"), ("\udc80", "\\udc80"),
])  # fmt: skip
def test_foreign_text_cannot_control_the_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_notes_and_answers_are_printable(capsys: pytest.CaptureFixture[str]) -> None:
    note("one\n\x1b[2Jtwo")
    lines(["label\x1b[2J\nwith a break\t0.9", "\u0645\u06cc\u200c\u062e 👩\u200d👧\u2028"])
    said = capsys.readouterr()
    assert said.err == "one\n\\x1b[2Jtwo\n"
    # Joiners of Persian and of emoji stay.
    assert said.out.startswith(
        "label\\x1b[2J\\nwith a break\t0.9\n\u0645\u06cc\u200c\u062e 👩\u200d👧"
    )
