"""Runs tests/precision/eager, and pages' scripts, in processes: this one is in graph mode."""

import re

import pytest

from amp_xla import backend
from tests.precision.conftest import EAGER
from tests.support.running import run_python
from tests.support.snippets import blocks

TF1 = backend.kind() == "tf1"


def test_our_documentations_blocks_run_as_a_script():
    code = blocks("eager")[0] if TF1 else "\n".join(blocks("eager"))
    if TF1:
        code = code.replace("optimizers.legacy", "optimizers").replace(
            "import tensorflow as tf", "import tensorflow as tf; tf.enable_eager_execution()"
        )
    run_python("-c", code)


@pytest.mark.slow
@pytest.mark.timeout(620)
@pytest.mark.parametrize("which, least", [
    ("not long", 11 if TF1 else 23), pytest.param("long", 1, marks=pytest.mark.long),
])  # fmt: skip
def test_the_eager_tests_pass(which, least):
    words = ("-m", "pytest", "-v", "-p", "no:cacheprovider", "-m", which, "tests/precision/eager")
    output = run_python(*words, env={EAGER: "1"}, timeout=600).out
    found = re.search(r"(\d+) passed", output)
    assert found and int(found.group(1)) >= least, output
    assert not re.search(r"\d+ skipped", output), output


@pytest.mark.long
@pytest.mark.network
@pytest.mark.skipif(TF1, reason="the suite is tf-keras 2.17's")
def test_keras_own_suite_differs_as_explained():
    module = "tests.support.keras_own_suite"
    run_python("-m", module, env={"TF_USE_LEGACY_KERAS": "1"}, timeout=600)
