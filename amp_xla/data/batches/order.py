"""Random orders and numbers that depend only on a few integers, in every version of NumPy.

NumPy guarantees that the stream of ``RandomState`` never changes. So a resumed run draws the same
numbers as the run that it continues.
"""

from __future__ import annotations

from typing import Iterable

import numpy as np

_WORD = 1 << 32


def generator(*numbers: int) -> np.random.RandomState:
    """Return a generator whose seed is these integers, each modulo 2**32."""
    return np.random.RandomState([number % _WORD for number in numbers])


def permutation(n: int, *numbers: int) -> np.ndarray:
    """Return 0 to n - 1 in an order that depends only on ``numbers``; int64 [n]."""
    return generator(*numbers).permutation(n).astype(np.int64, copy=False)


def uniform(samples: Iterable[int], count: int, *numbers: int) -> np.ndarray:
    """Draw ``count`` numbers in [0, 1) for each sample, float64 [samples, count].

    The seed is ``numbers`` and the sample's id. So a sample gets the same numbers in every batch
    and on every rank.
    """
    source = generator(0)
    seed = [number % _WORD for number in numbers]
    rows = []
    for sample in samples:
        source.seed([*seed, int(sample) % _WORD])  # a new generator would take ten times as long
        rows.append(source.random_sample(count))
    return np.stack(rows)
