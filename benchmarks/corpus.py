"""The token ids that all contestants train on, in a file that NumPy alone can read."""

from __future__ import annotations

import dataclasses
from typing import Any, List

import numpy as np


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Concatenated samples: sample i is ``ids[offsets[i]:offsets[i + 1]]`` with ``labels[i]``."""

    ids: Any
    offsets: Any
    labels: Any

    def samples(self) -> List[Any]:
        """Return one int32 array per sample."""
        return [self.ids[a:b] for a, b in zip(self.offsets[:-1], self.offsets[1:])]


def save(path: str, train: Tokens, dev: Tokens, vocab_size: int) -> None:
    """Write both sets and the size of the vocabulary."""
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
    """Return int64 [B, longest], zero-padded, as the collation of both peers does."""
    out = np.zeros((len(samples), max(len(s) for s in samples)), np.int64)
    for row, sample in zip(out, samples):
        row[: len(sample)] = sample
    return out
