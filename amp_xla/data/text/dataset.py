"""The result of reading a file: texts, second texts, labels and unusable lines."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Iterable, List, NamedTuple, Optional


class BadLine(NamedTuple):
    """An unusable line: ``line`` counts from 1, ``reason`` describes it."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Texts in file order, with second texts and labels if the file has them."""

    texts: List[str]
    pairs: Optional[List[str]] = None
    labels: Optional[List[str]] = None
    source: str = ""
    bad_lines: List[BadLine] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.texts)

    def fingerprint(self) -> str:
        """Return the SHA-256 (hex) of texts, pairs and labels in order, without ``source``."""
        digest = hashlib.sha256()
        for column in (self.texts, self.pairs, self.labels):
            digest.update(b"-" if column is None else b"%d:" % len(column))
            for value in column or ():
                data = value.encode("utf-8", "surrogatepass")
                digest.update(b"%d:" % len(data))  # length first: ["ab"] is not ["a", "b"]
                digest.update(data)
        return digest.hexdigest()

    def take(self, indices: Iterable[int]) -> Dataset:
        """Return the samples at ``indices``, in that order."""
        chosen = [int(i) for i in indices]
        return dataclasses.replace(
            self,
            texts=[self.texts[i] for i in chosen],
            pairs=None if self.pairs is None else [self.pairs[i] for i in chosen],
            labels=None if self.labels is None else [self.labels[i] for i in chosen],
        )
