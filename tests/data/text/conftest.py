import gzip

import pytest


@pytest.fixture
def file(tmp_path):
    """Write files of text or bytes into a new folder, packed if the name says so."""

    def write(name, content):
        data = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return str(tmp_path / name)

    return write
