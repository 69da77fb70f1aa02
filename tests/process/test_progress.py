"""The terminal shows text from foreign files and does not obey it."""

from __future__ import annotations

import pytest

from amp_xla.process.output import lines
from amp_xla.process.progress import note

pytestmark = pytest.mark.once


def test_foreign_text_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    note("one\n\x1b[2Jtwo\x07 a\tb\r \u202ec\udc80 中文　Ünïcode")
    lines(["label\x1b[2J\nwith a break\t0.9", "\u0645\u06cc\u200c\u062e 👩\u200d👧\u2028"])
    said = capsys.readouterr()
    assert said.err == "one\n\\x1b[2Jtwo\\x07 a\\tb\\r \\u202ec\\udc80 中文　Ünïcode\n"
    # Joiners of Persian and of emoji stay.
    assert said.out.startswith(
        "label\\x1b[2J\\nwith a break\t0.9\n\u0645\u06cc\u200c\u062e 👩\u200d👧"
    )
