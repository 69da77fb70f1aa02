from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def servers() -> Any:
    """Two fork servers, so that two processes can be alive at once."""
    from tests.integration.killing import Server  # not for the runtime without a recipe's packages

    return [Server(), Server()]


@pytest.fixture(scope="session")
def server(servers: Any) -> Any:
    return servers[0]


@pytest.fixture(scope="session")
def reference(server: Any, tmp_path_factory: Any) -> Any:
    """The run that nobody interrupted."""
    from tests.integration.killing import Run

    run = Run(server, tmp_path_factory.mktemp("uninterrupted"))
    assert run() == 0, run.text()
    return run
