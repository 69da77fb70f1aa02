"""The progress bar of a terminal."""

import fcntl
import os
import pty
import re
import struct
import termios

import pytest

from amp_xla.process.progress import Progress, note

pytestmark = pytest.mark.once
VALUES = {"loss": "0.1234", "scale": "1000", "skipped": "0", "accuracy": "0.987", "samples/s": "77"}


@pytest.mark.parametrize("columns, shown", [(40, 1), (60, 2), (80, 4), (120, 5)])
def test_the_bar_shows_whole_values_in_their_order_and_ends_before_the_last_lines(
    columns, shown, monkeypatch
):
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        bar = Progress(104, 100)
        note("the first step is slow")
        for _ in range(4):
            bar.advance(8)
        bar.show(104, VALUES)
        note("epoch 1: dev accuracy 0.5")
        bar.close()
        told = ""
        while "0.5\r\n" not in told:
            told += os.read(reader, 1 << 16).decode()
    assert re.split(r"[\r\n]+", told)[0] == "the first step is slow"  # no bar above it
    *_, last, dev, end = re.split(r"[\r\n]+", told)
    assert (dev, end) == ("epoch 1: dev accuracy 0.5", "") and last.startswith("100% 104/104")
    words = [f"{name} {value}" for name, value in VALUES.items()]
    assert last.split("left, ")[1].split(" |")[0].strip() == "  ".join(words[:shown])
    assert len(last) <= columns
