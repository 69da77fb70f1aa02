"""The token ids on which all contestants train, in a file that needs only NumPy."""

from __future__ import annotations

import dataclasses
from typing import Any, List

import numpy as np


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Samples in one array: sample i is ``ids[offsets[i]:offsets[i + 1]]`` with ``labels[i]``."""

    ids: Any
    offsets: Any
    labels: Any

    def samples(self) -> List[Any]:
        """Return one int32 array per sample."""
        return [self.ids[a:b] for a, b in zip(self.offsets[:-1], self.offsets[1:])]


def save(path: str, train: Tokens, dev: Tokens, vocab_size: int) -> None:
    """Write training set, dev set and vocabulary size."""
    arrays = {f"train_{k}": v for k, v in dataclasses.asdict(train).items()}
    arrays.update({f"dev_{k}": v for k, v in dataclasses.asdict(dev).items()})
    np.savez(path, vocab_size=np.int64(vocab_size), **arrays)


def load(path: str) -> Any:
    """Return (train, dev, vocab_size)."""
    with np.load(path) as file:
        parts = [
            Tokens(*(file[f"{part}_{name}"] for name in ("ids", "offsets", "labels")))
            for part in ("train", "dev")
        ]
        return parts[0], parts[1], int(file["vocab_size"])


def pad(samples: Any) -> Any:
    """Pad samples with zeros to the longest, int64 [B, longest], as both peers do."""
    out = np.zeros((len(samples), max(len(s) for s in samples)), np.int64)
    for row, sample in zip(out, samples):
        row[: len(sample)] = sample
    return out
