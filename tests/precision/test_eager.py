"""Runs tests/precision/eager in a process of its own: this one is in graph mode."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.precision.conftest import EAGER


@pytest.mark.timeout(620)
def test_the_eager_tests_pass():
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command + ["tests/precision/eager"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, EAGER: "1"},
        timeout=600,
    )
    output = done.stdout.decode()
    found = re.search(r"(\d+) passed", output)
    assert done.returncode == 0 and found and int(found.group(1)) >= 30, output
    assert not re.search(r"\d+ skipped", output), output
