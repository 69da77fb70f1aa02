"""Choose the tests that this runtime can run, and name the others in pytest's header."""

from __future__ import annotations

import importlib.util
import os
from typing import Any, Iterator, List

import pytest

EAGER = "AMP_XLA_TEST_EAGER"

HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None
# tf_keras is what TensorFlow 2's runtime has and 1.15's has not; asking it imports nothing.
HAS_TENSORFLOW_2 = HAS_TENSORFLOW and importlib.util.find_spec("tf_keras") is not None
HAS_JAX = importlib.util.find_spec("jax") is not None

# Graph mode is switched on for a whole process, so eager tests run in another,
# which test_eager.py starts.
collect_ignore: List[str] = [] if EAGER in os.environ else ["eager"]
if not HAS_TENSORFLOW_2:
    collect_ignore += ["test_eager.py"]


def pytest_report_header() -> str:
    missing = []
    if not HAS_JAX:
        missing.append("JAX (test_jax_*.py: make test RUNTIME=jax)")
    if not HAS_TENSORFLOW:
        missing.append("TensorFlow (all others: make test RUNTIME=tf1, RUNTIME=tf2)")
    elif not HAS_TENSORFLOW_2:
        missing.append("eager TensorFlow 2 (test_eager.py: make test RUNTIME=tf2)")
    return "precision: not collected for want of " + "; ".join(missing or ["nothing"])


@pytest.fixture
def cleared() -> Iterator[None]:
    """Keras' session, cleared before and after."""
    from amp_xla.backend import K

    K.clear_session()
    yield
    K.clear_session()


@pytest.fixture
def graph(cleared: None) -> Iterator[Any]:
    """A new default graph."""
    from amp_xla.backend import tf

    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def session(graph: Any) -> Iterator[Any]:
    """A session of the new graph."""
    from amp_xla.backend import tf

    with tf.Session() as session:
        yield session
