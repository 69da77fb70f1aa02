"""The terminal shows text from foreign files and does not obey it."""

from __future__ import annotations

import pytest

from amp_xla.process.output import lines, printable
from amp_xla.process.progress import note

pytestmark = pytest.mark.once


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
