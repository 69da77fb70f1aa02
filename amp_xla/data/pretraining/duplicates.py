"""Documents that stand in a corpus more than once: all but the first are left out.

8 bytes a document are kept of the corpus (near: 112), so ten million of them take some hundred MB
(near: 2 GB) while they are sorted, however long they are. Nothing is written: whoever asks finds
the same again.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import re
import zlib
from typing import Any, Dict, Iterable, List, Tuple

import numpy as np

from amp_xla.data.pretraining.units import Reading, Unit, texts_of

# MinHash as FineWeb has it (https://arxiv.org/abs/2406.17557, section 3.4): runs of 5 words, 112
# hashes in 14 groups of 8; one equal group makes two documents copies. Of documents that share
# this part of their runs, so many are found: 0.9, all; 0.8, 92%; 0.7, 56%; 0.5, 5%; 0.3, 0.1%.
WORDS, GROUPS, HASHES = 5, 14, 8
# A Chinese sign counts as a word; case and punctuation do not count.
_SIGNS = "\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(f"[{_SIGNS}]|[^\\W{_SIGNS}]+")
_RANDOM = np.random.RandomState(112).randint(0, 2**32, (4, GROUPS * HASHES)).astype(np.uint64)
_MULTIPLY = (_RANDOM[0] << np.uint64(32)) + _RANDOM[1] | np.uint64(1)
_ADD = (_RANDOM[2] << np.uint64(32)) + _RANDOM[3]
_MIX = np.uint64(0x9E3779B97F4A7C15)
_AT_ONCE = 4096  # runs, each against all hashes: 4 MB


def copies(
    units: Iterable[Unit],
    reading: Reading,
    pool: concurrent.futures.Executor,
    at_once: int,
    near: bool = False,
) -> Tuple[Dict[str, np.ndarray], int]:
    """Which documents are copies of one before them, white space aside.

    Args:
      units: of the whole corpus, in order.
      reading: how documents lie in them.
      pool: reads them.
      at_once: units that are held at the same time, at most.
      near: those too that differ in a few words. Where one is like a second and the second like a
        third, the first alone stays.

    Returns:
      (name of a unit -> int64, numbers of the documents of ``texts_of`` to leave out; how many
      documents there are). Keys have 64 bits: among 10 million documents, some two that differ are
      taken for copies with a chance of 3 in a million.
    """
    names: List[str] = []
    keys: List[np.ndarray] = []
    waiting: List[Any] = []
    keys_of = near_keys_of if near else exact_keys_of
    for unit in units:
        names.append(unit.name)
        waiting.append(pool.submit(keys_of, unit, reading))
        if len(waiting) == at_once:
            keys.append(waiting.pop(0).result())
    keys += [future.result() for future in waiting]
    counts = [len(some) for some in keys]
    every = np.concatenate([np.zeros([0, GROUPS if near else 1], np.uint64), *keys])
    del keys
    again = firsts(every) != np.arange(len(every))
    ends = np.cumsum([0, *counts])
    found = {name: np.flatnonzero(again[a:b]) for name, a, b in zip(names, ends, ends[1:])}
    return found, len(every)


def firsts(keys: np.ndarray) -> np.ndarray:
    """The first document that each is a copy of, over any number of documents between them.

    Args:
      keys: uint64 [documents, groups]; one equal key in a column makes two of them copies.

    Returns:
      int64 [documents]; its own number where a document is no copy.
    """
    first = np.arange(len(keys))
    while True:
        before = first.copy()
        for column in keys.T:
            order = np.argsort(column, kind="stable")
            ordered = column[order]
            starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]][: len(ordered)])
            if len(starts) < len(ordered):
                lowest = np.minimum.reduceat(first[order], starts)
                first[order] = np.repeat(lowest, np.diff(np.r_[starts, len(ordered)]))
        if (first == before).all():
            return first


def exact_keys_of(unit: Unit, reading: Reading) -> np.ndarray:
    """uint64 [documents, 1]: of each text, white space made single spaces."""
    texts, _ = texts_of(unit, reading)
    digests = (
        hashlib.blake2b(" ".join(text.split()).encode("utf-8"), digest_size=8).digest()
        for text in texts
    )
    return np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 1)


def near_keys_of(unit: Unit, reading: Reading) -> np.ndarray:
    """uint64 [documents, groups]: of each text, its groups of least hashes."""
    texts, _ = texts_of(unit, reading)
    return np.array([least(text) for text in texts], np.uint64).reshape(-1, GROUPS)


def least(text: str) -> np.ndarray:
    """uint64 [groups]: for each hash its least value over the text's runs of words."""
    found = _WORD.findall(text.lower())
    words = np.array([zlib.crc32(word.encode("utf-8")) for word in found], np.uint64)
    runs: np.ndarray = np.zeros(max(1, len(words) - WORDS + 1), np.uint64)  # short: one run
    for place in range(min(WORDS, len(words))):
        runs = (runs ^ (runs >> np.uint64(29))) * _MIX + words[place : place + len(runs)]
    runs = (runs ^ (runs >> np.uint64(32))) * _MIX
    lowest = np.full(GROUPS * HASHES, 2**32 - 1, np.uint64)
    for start in range(0, len(runs), _AT_ONCE):
        hashed = (runs[start : start + _AT_ONCE, None] * _MULTIPLY + _ADD) >> np.uint64(32)
        lowest = np.minimum(lowest, hashed.min(axis=0))
    keys: np.ndarray = np.zeros(GROUPS, np.uint64)
    for values in lowest.reshape(GROUPS, HASHES).T:
        keys = (keys ^ (keys >> np.uint64(29))) * _MIX + values
    return keys
