"""The texts of a corpus."""

from __future__ import annotations

from typing import Any, List

from amp_xla.tasks.pretraining.data.units import Reading, files_of, texts_of, units


def corpus_texts(corpus: Any, **options: str) -> List[str]:
    """Return all documents of files, folders or globs, read with ``Reading(**options)``."""
    reading = Reading(**options)
    return [t for u in units(files_of(str(corpus)), reading) for t in texts_of(u, reading)[0]]
