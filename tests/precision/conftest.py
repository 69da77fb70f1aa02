"""Choose the tests that this runtime can run; graphs and sessions for one test."""

import importlib.util
import os

import pytest

EAGER = "AMP_XLA_TEST_EAGER"

# Graph mode is switched on for a whole process, so eager tests run in another, which test_eager.py
# starts.
collect_ignore = [] if EAGER in os.environ else ["eager"]
if importlib.util.find_spec("tensorflow") is None:
    collect_ignore += ["test_eager.py"]


@pytest.fixture
def graph(cleared):
    """A new default graph."""
    from amp_xla.backend import tf

    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def session(graph):
    """A session of the new graph."""
    from amp_xla.backend import tf

    with tf.Session() as session:
        yield session
