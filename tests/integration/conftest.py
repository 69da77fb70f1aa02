from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def servers() -> Any:
    """Two fork servers, so that two processes can be alive at once."""
    from tests.integration.killing import Server  # not for the runtime without a recipe's packages

    with Server() as first, Server() as second:
        yield [first, second]


@pytest.fixture(scope="session")
def server() -> Any:
    """A fork server that has imported what commands need."""
    from tests.integration.commands import LOADED
    from tests.integration.killing import Server

    with Server(LOADED) as made:
        yield made


@pytest.fixture(scope="session")
def reference(servers: Any, tmp_path_factory: Any) -> Any:
    """The run that nobody interrupted."""
    from tests.integration.killing import Run

    run = Run(servers[0], tmp_path_factory.mktemp("uninterrupted"))
    assert run() == 0, run.text()
    return run
