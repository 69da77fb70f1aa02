"""Which tests a runtime collects, and how Hypothesis behaves on a busy machine."""

import contextlib
import gzip
import importlib.util
import io
import os
import re
import signal

import pytest
from hypothesis import settings

HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None
JAX_ONLY = re.compile(r"^pytestmark\s*=.*\bmark\.jax\b", re.MULTILINE)
NAMES_JAX = re.compile(r"\bimport jax\b|\bfrom jax\b|importorskip\(.jax|\bmark\.jax\b")

# No deadline: other work on the machine would fail a test that is right. In CI every run tries the
# same examples, so that a red run is about the change; elsewhere each run tries new ones.
settings.register_profile("amp_xla", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("amp_xla")


# A shell that starts the tests in the background ignores Ctrl-C, and nohup SIGHUP. So would all
# their processes, those too that are to be stopped by it.
for number, usual in (
    (signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL),
):  # fmt: skip
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

IN_GRAPH_MODE = HAS_TENSORFLOW and "AMP_XLA_TEST_EAGER" not in os.environ
if IN_GRAPH_MODE:
    # One process, one setup, before any test module imports TensorFlow. Float32, so that numbers
    # can be compared; what needs other settings runs in processes of its own, which must not
    # inherit this choice.
    os.environ["AMP_XLA_PRECISION"] = "fp32"
    # pytest would show its line below the counts, which are to be the last.
    with contextlib.redirect_stderr(io.StringIO()):
        import amp_xla.setup  # noqa: F401

    del os.environ["AMP_XLA_PRECISION"]


def pytest_ignore_collect(collection_path):
    """A file with `pytestmark = pytest.mark.jax` is for the runtime jax, and only for it.

    That runtime has no TensorFlow: it also collects files that name JAX, and no others.
    """
    if not (collection_path.name.startswith("test_") and collection_path.suffix == ".py"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    wanted = JAX_ONLY.search(text) is None if HAS_TENSORFLOW else NAMES_JAX.search(text) is not None
    return None if wanted else True


def pytest_make_parametrize_id(config, val, argname):
    """Name no test by bytes: compressed ones hold the time, and two workers' names must agree."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Start files with slow tests first, so that no worker is left with one at the end."""
    from xdist.scheduler import LoadFileScheduling

    def is_quick(file):
        return "mark.slow" not in (config.rootpath / file).read_text(encoding="utf-8")

    class SlowFirst(LoadFileScheduling):
        def _assign_work_unit(self, node):
            self.workqueue.move_to_end(min(self.workqueue, key=is_quick), last=False)
            super()._assign_work_unit(node)

    return SlowFirst(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def own_names():
    """bert4keras' names and Keras' custom objects, each with a copy from before any test."""
    if not IN_GRAPH_MODE:
        return []
    from amp_xla import backend

    modules = [vars(backend.bert4keras(name)) for name in ("layers", "models")]
    tables = [*modules, backend.keras.utils.get_custom_objects()]
    return [(table, dict(table)) for table in tables]


@pytest.fixture(autouse=True)
def lasts_one_test(own_names):
    """What a test, or a model that it builds, installs in bert4keras is taken back after it."""
    yield
    for table, before in own_names:
        table.update(before)


@pytest.fixture
def cleared():
    """Keras' session, cleared before and after; initial weights are the same in each run."""
    from amp_xla.backend import K, tf

    K.clear_session()
    tf.set_random_seed(0)
    yield
    K.clear_session()


@pytest.fixture
def graph(cleared):
    """A new default graph, whose random operations draw the same in each run."""
    from amp_xla.backend import tf

    with tf.Graph().as_default() as graph:
        tf.set_random_seed(0)
        yield graph


@pytest.fixture
def session(graph):
    """A session of the new graph."""
    from amp_xla.backend import tf

    with tf.Session() as session:
        yield session


@pytest.fixture(scope="session")
def servers():
    """Two fork servers, so that two processes can be alive at once."""
    from tests.support.killing import Server  # not for the runtime without a recipe's packages

    return [Server(), Server()]


@pytest.fixture(scope="session")
def server(servers):
    return servers[0]


@pytest.fixture(scope="module")
def command(server, tmp_path_factory):
    """Commands in a new folder."""
    from tests.support.commands import Commands

    return Commands(server, tmp_path_factory.mktemp("work"))


@pytest.fixture
def file(tmp_path):
    """Write files of text or bytes into a new folder, packed if the name says so."""

    def write(name, content):
        data = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return str(tmp_path / name)

    return write
