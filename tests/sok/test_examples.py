"""The tutorial's files run as its reader types them: horovodrun -np 2."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from amp_xla import backend
from tests.horovod import ROOT, need_horovod

pytestmark = [pytest.mark.horovod, pytest.mark.slow, pytest.mark.timeout(1500)]


def test_the_tutorial_learns_on_two_ranks():
    """Its label is in the parity of one id, which a table learns by heart."""
    need_horovod()
    file = ROOT / "examples" / "sok" / f"amp_{backend.kind()}.py"
    runner = Path(sys.executable).parent / "horovodrun"
    done = subprocess.run(
        [str(runner), "--gloo", "-np", "2", "-H", "localhost:2"]
        + [sys.executable, str(file), "--steps", "150", "--batch", "2048"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=str(ROOT),
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        timeout=280,
    )
    text = done.stdout.decode()
    assert done.returncode == 0, text[-6000:]
    losses = [float(found) for found in re.findall(r"step \d+ loss ([\d.]+)", text)]
    assert len(losses) == 150
    assert losses[0] == pytest.approx(0.693, abs=0.01)
    assert losses[-1] < 0.6
