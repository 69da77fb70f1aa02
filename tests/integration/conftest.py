import pytest


@pytest.fixture(scope="session")
def reference(server, tmp_path_factory):
    """The run that nobody interrupted."""
    from tests.support.killing import Run

    run = Run(server, tmp_path_factory.mktemp("uninterrupted"))
    assert run() == 0, run.text()
    return run
