from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def reference(server: Any, tmp_path_factory: Any) -> Any:
    """The run that nobody interrupted."""
    from tests.support.killing import Run

    run = Run(server, tmp_path_factory.mktemp("uninterrupted"))
    assert run() == 0, run.text()
    return run
