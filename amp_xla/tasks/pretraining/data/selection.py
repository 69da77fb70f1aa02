"""Documents to leave out of a corpus: copies of earlier ones, and other languages.

Finding copies needs 8 bytes of memory per document, near copies 112. py3langid detects languages
without a download, and with the same result on all Pythons.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from typing import Any, Dict, FrozenSet, Iterable, List, Tuple

import numpy as np

from amp_xla.data.extras import extra
from amp_xla.errors import DataError
from amp_xla.tasks.pretraining.data.pool import Pool
from amp_xla.tasks.pretraining.data.units import Reading, Unit, texts_of

# As in FineWeb (https://arxiv.org/abs/2406.17557, section 3.4): runs of 5 words, and 112 hashes in
# 14 bands of 8. Two documents with an equal band are near copies. The probability of finding two
# documents depends on their share of equal runs: 0.9 100%, 0.8 92%, 0.7 56%, 0.5 5%, 0.3 0.1%.
WORDS, BANDS, HASHES = 5, 14, 8
# A Chinese character counts as a word; case and punctuation do not count.
_CHARACTERS = "\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(f"[{_CHARACTERS}]|[^\\W{_CHARACTERS}]+")
LANGUAGE_CHARACTERS = 1000  # characters from the middle of a document that decide its language
_BATCH = 4096  # runs that are hashed together, which takes 4 MB


def copies(
    units: Iterable[Unit], reading: Reading, pool: Pool, near: bool = False
) -> Tuple[Dict[str, np.ndarray], int]:
    """Find documents that are copies of an earlier one, ignoring white space.

    Args:
      units: the whole corpus, in order.
      reading: format of its documents.
      pool: processes that read the documents.
      near: also find documents that differ in a few words.

    Returns:
      (unit name -> numbers of its copies among the documents of ``texts_of``, int64; number of all
      documents). Keys have 64 bits: among 10 million documents, the probability that two different
      ones have the same key is 3 in a million.
    """
    parts = dict(pool.map(functools.partial(_keys, reading=reading, near=near), units))
    ends = np.cumsum([0, *map(len, parts.values())])
    keys = np.concatenate([np.zeros([0, BANDS if near else 1], np.uint64), *parts.values()])
    is_copy = np.zeros(len(keys), bool)
    for column in keys.T:
        _, firsts = np.unique(column, return_index=True)
        is_later = np.ones(len(keys), bool)
        is_later[firsts] = False
        is_copy |= is_later
    left_out = {name: np.flatnonzero(is_copy[a:b]) for name, a, b in zip(parts, ends, ends[1:])}
    return left_out, len(keys)


def _keys(unit: Unit, reading: Reading, near: bool) -> Tuple[str, np.ndarray]:
    """Return the unit's name, and the keys of its documents, uint64 [documents, keys].

    A document has one key per band if ``near``, else one key.
    """
    keys_of = _bands if near else _exact_key
    keys = [keys_of(text) for text in texts_of(unit, reading)[0]]
    return unit.name, np.array(keys, np.uint64).reshape(len(keys), BANDS if near else 1)


def _exact_key(text: str) -> List[int]:
    return [_hash(" ".join(text.split()).encode())]


def _bands(text: str) -> List[int]:
    words = _WORD.findall(text.lower())
    runs = [" ".join(words[i : i + WORDS]).encode() for i in range(max(1, len(words) - WORDS + 1))]
    signature = _empty_signature().copy()
    for start in range(0, len(runs), _BATCH):
        signature.update_batch(runs[start : start + _BATCH])
    values = np.asarray(signature.hashvalues, "<u8").reshape(BANDS, HASHES)
    return [_hash(band.tobytes()) for band in values]


@functools.lru_cache(maxsize=1)
def _empty_signature() -> Any:
    MinHash = extra("datasketch", "--dedup near").MinHash
    # datasketch 2 has another default; the old scheme gives the same result in all versions.
    scheme = {"scheme": "legacy"} if "scheme" in inspect.signature(MinHash).parameters else {}
    return MinHash(BANDS * HASHES, **scheme)


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def language_codes(names: str) -> FrozenSet[str]:
    """Return the language codes in a list separated by commas.

    Raises:
      DataError: a code is unknown, or the package py3langid is missing.
    """
    requested = [name.strip() for name in names.split(",")]
    known = _identifier().nb_classes
    for code in requested:
        if code not in known:
            allowed = ", ".join(sorted(known))
            raise DataError(f"--language {code}: allowed are {allowed}, separated by commas")
    return frozenset(requested)


def language_of(text: str) -> str:
    """Return the ISO 639-1 code of the most likely language of ``text``."""
    middle = max(0, len(text) - LANGUAGE_CHARACTERS) // 2
    return str(_identifier().classify(text[middle : middle + LANGUAGE_CHARACTERS])[0])


@functools.lru_cache(maxsize=1)
def _identifier() -> Any:
    langid = extra("py3langid.langid", "--language")
    return langid.LanguageIdentifier.from_pickled_model(langid.MODEL_FILE)
