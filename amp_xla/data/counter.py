"""Random numbers by counter: any of them is drawn without drawing those before it."""

from __future__ import annotations

from typing import Any

import numpy as np


def uniform(seed: int, epoch: int, stream: int, samples: np.ndarray, count: int) -> np.ndarray:
    """float64 [B, count] in [0, 1): a hash of (seed, epoch, stream, sample, column)."""
    with np.errstate(over="ignore"):
        key = mix64(np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15))
        key = mix64(key ^ mix64(np.uint64(epoch) * np.uint64(64) + np.uint64(stream)))
        rows = mix64(key ^ mix64(np.asarray(samples).astype(np.uint64)))
        columns = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        bits = mix64(rows[:, None] + columns[None, :])
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def mix64(x: Any) -> Any:
    """SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
