"""Documents on disk: what fits is read, what does not is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amp_xla.training import documents


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"null", "null, not a JSON object"),
        (b"[]", "a list, not"),
        (b"{", "line 1"),
        (b"\xff", "codec can't decode"),
        (b"[" * 100_000, "nested too deep"),
        (b"{}", "recipe is missing"),
        (b'{"recipe": 3}', "recipe is a number, not text"),
        (b'{"recipe": true}', "recipe is true or false, not text"),
        (b'{"recipe": "a", "version": 2}', "made by a newer amp_xla"),
        (b'{"recipe": "a", "version": true}', "version is True"),
        (b'{"recipe": "a", "version": -1}', "version is -1"),
    ],
)
def test_what_does_not_fit_is_named(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        documents.decode("run.json", data)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(documents.encode({"recipe": "名前", "more": [1]}))
    assert json.loads(path.read_text("utf-8"))["version"] == documents.VERSION
    assert documents.read(path) == {"recipe": "名前", "more": [1]}
    assert documents.decode("run.json", b'{"recipe": "old"}') == {"recipe": "old"}
    with pytest.raises(ValueError, match="No such file"):
        documents.read(tmp_path / "no" / "run.json")
