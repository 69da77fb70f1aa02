from __future__ import annotations

import pytest

from tests.support import small_jax as small


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the small corpus."""
    found = tmp_path_factory.mktemp("runs")
    small.corpus(found)
    return found
