"""Documents that stand in a corpus more than once: all but the first are left out.

8 bytes a document are kept of the corpus, so ten million of them take some hundred MB while they
are sorted, however long they are. Nothing is written: whoever asks finds the same again.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
from typing import Any, Dict, Iterable, List, Tuple

import numpy as np

from amp_xla.data.pretraining.units import Reading, Unit, texts_of


def copies(
    units: Iterable[Unit], reading: Reading, pool: concurrent.futures.Executor, at_once: int
) -> Tuple[Dict[str, np.ndarray], int]:
    """Which documents are copies of one before them, white space aside.

    Args:
      units: of the whole corpus, in order.
      reading: how documents lie in them.
      pool: reads them.
      at_once: units that are held at the same time, at most.

    Returns:
      (name of a unit -> int64, numbers of the documents of ``texts_of`` to leave out; how many
      documents there are). Keys have 64 bits: among 10 million documents, some two that differ are
      taken for copies with a chance of 3 in a million.
    """
    names: List[str] = []
    keys: List[np.ndarray] = []
    waiting: List[Any] = []
    for unit in units:
        names.append(unit.name)
        waiting.append(pool.submit(keys_of, unit, reading))
        if len(waiting) == at_once:
            keys.append(waiting.pop(0).result())
    keys += [future.result() for future in waiting]
    counts = [len(some) for some in keys]
    every = np.concatenate([np.zeros(0, np.uint64), *keys])
    del keys
    _, firsts = np.unique(every, return_index=True)
    again = np.ones(len(every), bool)
    again[firsts] = False
    ends = np.cumsum([0, *counts])
    found = {name: np.flatnonzero(again[a:b]) for name, a, b in zip(names, ends, ends[1:])}
    return found, len(every)


def keys_of(unit: Unit, reading: Reading) -> np.ndarray:
    """uint64 [documents]: of each text, white space made single spaces."""
    texts, _ = texts_of(unit, reading)
    digests = (
        hashlib.blake2b(" ".join(text.split()).encode("utf-8"), digest_size=8).digest()
        for text in texts
    )
    return np.frombuffer(b"".join(digests), np.uint64)
