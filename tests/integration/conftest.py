from __future__ import annotations

from typing import Any

import pytest

from tests.integration.killing import Run, Server


@pytest.fixture(scope="session")
def servers() -> Any:
    """Two fork servers, so that two processes can be alive at once."""
    with Server() as first, Server() as second:
        yield [first, second]


@pytest.fixture(scope="session")
def reference(servers: Any, tmp_path_factory: Any) -> Run:
    """The run that nobody interrupted."""
    run = Run(servers[0], tmp_path_factory.mktemp("uninterrupted"))
    assert run() == 0, run.text()
    return run
