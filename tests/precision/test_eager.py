"""Runs tests/precision/eager in another process: this one is in graph mode."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.precision.conftest import EAGER


@pytest.mark.timeout(620)
@pytest.mark.parametrize(
    "file, least",
    [
        ("test_custom_loops.py", 45),
        pytest.param("test_documents.py", 4, marks=pytest.mark.slow),
        pytest.param("test_keras_drop_in.py", 60, marks=pytest.mark.slow),
    ],
)
def test_the_eager_tests_pass(file, least):
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command + [f"tests/precision/eager/{file}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, EAGER: "1"},
        timeout=600,
    )
    output = done.stdout.decode()
    found = re.search(r"(\d+) passed", output)
    assert done.returncode == 0 and found and int(found.group(1)) >= least, output
    assert not re.search(r"\d+ skipped", output), output
