"""The language of a document, by py3langid: naive Bayes on runs of bytes, its model in the package.

It is the one that has no random part, needs no download, runs on Python 3.7 to 3.12 in one
version, and reads thousands of documents a second.
"""

from __future__ import annotations

import functools
from typing import Any, FrozenSet

from amp_xla.errors import DataError

ENOUGH = 1000  # characters from a document's middle that are looked at


def wanted(names: str) -> FrozenSet[str]:
    """The codes in ``names``, with commas between.

    Raises:
      DataError: one is not known, or the package py3langid is missing.
    """
    codes = [name.strip() for name in names.split(",")]
    known = _identifier().nb_classes
    for code in codes:
        if code not in known:
            allowed = ", ".join(sorted(known))
            raise DataError(f"--language {code}: allowed are {allowed}, with commas between")
    return frozenset(codes)


def of(text: str) -> str:
    """ISO 639-1 code of the language that ``text`` is most likely in."""
    middle = max(0, len(text) - ENOUGH) // 2
    return str(_identifier().classify(text[middle : middle + ENOUGH])[0])


@functools.lru_cache(maxsize=1)
def _identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise DataError("--language needs the package py3langid (pip install py3langid)") from None
    return LanguageIdentifier.from_pickled_model(MODEL_FILE)
