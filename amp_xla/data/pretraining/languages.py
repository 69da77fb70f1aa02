"""The language of a document, by py3langid: no download, and the same result on all Pythons."""

from __future__ import annotations

import functools
from typing import Any, FrozenSet

from amp_xla.errors import DataError

CHARACTERS = 1000  # characters from the middle of a document that are classified


def codes(names: str) -> FrozenSet[str]:
    """Return the language codes in ``names``, which are separated by commas.

    Raises:
      DataError: an unknown code, or the package py3langid is missing.
    """
    requested = [name.strip() for name in names.split(",")]
    known = _identifier().nb_classes
    for code in requested:
        if code not in known:
            allowed = ", ".join(sorted(known))
            raise DataError(f"--language {code}: allowed are {allowed}, separated by commas")
    return frozenset(requested)


def of(text: str) -> str:
    """Return the ISO 639-1 code of the most likely language of ``text``."""
    middle = max(0, len(text) - CHARACTERS) // 2
    return str(_identifier().classify(text[middle : middle + CHARACTERS])[0])


@functools.lru_cache(maxsize=1)
def _identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise DataError("--language needs the package py3langid (pip install py3langid)") from None
    return LanguageIdentifier.from_pickled_model(MODEL_FILE)
