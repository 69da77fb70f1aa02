"""The built-in corpus: its size and labels, without copies and without names of packages."""

from __future__ import annotations

import collections
from pathlib import Path

import pytest

from amp_xla.data.text import corpora
from amp_xla.errors import DataError


def test_texts_are_distinct_and_without_the_name_of_their_package() -> None:
    train, dev = corpora.pydoc()
    assert train.labels is not None and dev.labels is not None
    counts = collections.Counter(train.labels)
    assert len(counts) == 12 == len(set(dev.labels)) and set(dev.labels) == set(counts)
    assert 2000 < len(train) < 6000
    assert 0.10 < len(dev) / (len(train) + len(dev)) < 0.20
    assert min(counts.values()) >= 40
    assert len({*train.texts, *dev.texts}) == len(train) + len(dev)  # no copies, none across
    for side in (train, dev):
        for text, label in zip(side.texts, side.labels or []):
            assert label.lower() not in text.lower()
            assert text == " ".join(text.split()) and len(text.split()) >= corpora.MIN_WORDS


def make_library(root: Path, packages: int) -> None:
    for i in range(packages):
        folder = root / f"package{chr(97 + i)}"
        folder.mkdir()
        (folder / "__init__.py").write_text(
            "\n".join(
                f'def f{j}():\n    """Package{chr(97 + i)} does number {j} of thing {i} well."""'
                for j in range(20)
            )
        )


def test_files_that_cannot_be_parsed_and_shared_texts_are_left_out(tmp_path: Path) -> None:
    make_library(tmp_path, 3)
    (tmp_path / "packagea" / "python2.py").write_text("print 'hello'\n")
    (tmp_path / "packagea" / "binary.py").write_bytes(b"\xff\xfe\0\0")
    (tmp_path / "packagea" / "surrogate.py").write_text('"""One two three four five \\ud800."""\n')
    for name in ("packagea", "packageb"):
        (tmp_path / name / "shared.py").write_text('"""These words stand in both packages."""\n')
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "__init__.py").write_text('"""One two three four five six seven."""')
    train, dev = corpora.pydoc(str(tmp_path))
    both = train.texts + dev.texts
    assert len(both) == 60 and "These words stand in both packages." not in both
    assert set(train.labels or []) == {"packagea", "packageb", "packagec"}
    assert all(text.startswith("does number") for text in both)


def test_a_python_without_sources_is_an_error(tmp_path: Path) -> None:
    make_library(tmp_path, 1)
    with pytest.raises(DataError, match="packagea.*--train FILE"):
        corpora.pydoc(str(tmp_path))
