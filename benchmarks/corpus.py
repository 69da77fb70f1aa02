"""The token ids on which all contestants train, in a file that needs only NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, List, NamedTuple, Tuple

import numpy as np


class Tokens(NamedTuple):
    """Token ids of each sample, and labels."""

    samples: List[List[int]]
    labels: Any

    def accuracy(self, classes: Callable[[Any], Any]) -> float:
        """Return the share of labels that ``classes`` finds for padded samples."""
        right = 0
        for i in range(0, len(self.samples), 64):
            predicted = classes(pad(self.samples[i : i + 64]))
            right += int((predicted == self.labels[i : i + 64]).sum())
        return right / len(self.samples)


def save(path: str, train: Tokens, dev: Tokens, vocab_size: int) -> None:
    """Write training set, dev set and vocabulary size."""
    Path(path).write_text(json.dumps([train, dev, vocab_size]), encoding="utf-8")


def load(path: str) -> Tuple[Tokens, Tokens, int]:
    """Return (train, dev, vocab_size)."""
    *parts, vocab_size = json.loads(Path(path).read_text(encoding="utf-8"))
    train, dev = (Tokens(samples, np.array(labels)) for samples, labels in parts)
    return train, dev, vocab_size


def pad(samples: Any) -> Any:
    """Pad samples with zeros to the longest, int64 [B, longest], as both peers do."""
    out = np.zeros((len(samples), max(len(s) for s in samples)), np.int64)
    for row, sample in zip(out, samples):
        row[: len(sample)] = sample
    return out
