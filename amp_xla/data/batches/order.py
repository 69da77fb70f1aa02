"""Order of samples by counter: position i of epoch e under seed s, without replaying 0..i-1.

Up to `TABLE` things the order is a table, sorted by a keyed hash: every order is as likely. Beyond,
it is computed and not stored: a Feistel network over the a x b grid of the smallest a, b with
a * b >= n, then "cycle walking": a value that falls outside 0..n-1 is put through again until it
falls inside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002). The grid has
fewer than 2 * sqrt(n) + 1 cells too many, so few values walk. On a small grid a network of so few
rounds would miss many orders, hence the table.
"""

from __future__ import annotations

import hashlib
import math
from typing import Optional, Union

import numpy as np

ROUNDS = 8
TABLE = 1 << 16
MAX_N = 1 << 60


class Permutation:
    """Reads like an int64 array of length n: `p[i]`, `p[a:b]` and `p[array]` cost their size.

    The first look into one of at most `TABLE` things makes the table, in milliseconds.
    """

    def __init__(self, n: int, key: bytes) -> None:
        if not 0 <= n <= MAX_N:
            raise ValueError(f"permutation of {n} things; allowed: 0 to 2**60")
        self._n = n
        self._keys = np.frombuffer(hashlib.blake2b(key, digest_size=64).digest(), "<u8")
        self._table: Optional[np.ndarray] = None
        self._a = max(1, math.ceil(math.sqrt(n)))
        while self._a * self._a < n:  # sqrt is a float: beyond 2**52 it may round down
            self._a += 1
        self._b = max(1, -(-n // self._a))

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: Union[int, slice, np.ndarray]) -> np.ndarray:
        if isinstance(index, slice):
            index = np.arange(*index.indices(self._n), dtype=np.int64)
        where = np.asarray(index, np.int64)
        if where.size and (int(where.min()) < 0 or int(where.max()) >= self._n):
            raise IndexError(f"position outside 0..{self._n - 1}")
        if self._n <= TABLE:
            if self._table is None:
                self._table = self.at_once()
            return self._table[where]
        value = self._once(where.reshape(-1))
        outside = np.flatnonzero(value >= self._n)
        while outside.size:
            value[outside] = self._once(value[outside])
            outside = outside[value[outside] >= self._n]
        return value.reshape(where.shape)

    def at_once(self) -> np.ndarray:
        """int64 [n]: 0..n-1 sorted by a keyed hash. Beyond `TABLE` another order than `[:]`."""
        hashed = _mix(_mix(np.arange(self._n, dtype=np.uint64) ^ self._keys[0]) ^ self._keys[1])
        return np.argsort(hashed, kind="stable")

    def _once(self, value: np.ndarray) -> np.ndarray:
        a, b = np.uint64(self._a), np.uint64(self._b)
        left, right = np.divmod(value.astype(np.uint64), b)
        for i, key in enumerate(self._keys[:ROUNDS]):
            if i % 2:
                right = (right + _mix(left ^ key) % b) % b
            else:
                left = (left + _mix(right ^ key) % a) % a
        return (left * b + right).astype(np.int64)


def permutation(n: int, seed: int, epoch: int, stream: int = 0) -> Permutation:
    """The order of `n` things in `epoch` under `seed`; `stream` tells independent uses apart."""
    return Permutation(n, f"{n}/{seed}/{epoch}/{stream}".encode("ascii"))


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014): every bit moves every bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
