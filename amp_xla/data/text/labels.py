"""Label names to ids 0..n-1 and back."""

from __future__ import annotations

import collections
import dataclasses
import json
from pathlib import Path
from typing import List, Sequence, Tuple

import numpy as np

from amp_xla.errors import DataError
from amp_xla.process import durable

SHOWN = 20
MANY = 100  # samples, from which on mostly different labels are taken for a mistake


@dataclasses.dataclass(frozen=True)
class Labels:
    """The classes of a task in id order."""

    names: Tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))
        if len(set(self.names)) != len(self.names):
            raise DataError(f"labels: a name stands twice: {', '.join(self.names)}")

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def fit(cls, labels: Sequence[str], source: str = "training data") -> Labels:
        """Every distinct label, numbers by value (2 before 10), then text by code point.

        Raises `DataError` when there is only one: nothing could be learned.
        """
        names = set(labels)
        if len(names) < 2:
            found = ", ".join(map(repr, sorted(names))) or "none"
            raise DataError(
                f"{source}: {len(labels):,} samples with only this label: {found}; at least two "
                "different ones are needed. Is --label-field right?"
            )
        if len(labels) >= MANY and len(names) > len(labels) / 2:
            raise DataError(
                f"{source}: {len(names):,} different labels in {len(labels):,} samples, such as "
                f"{min(names)[:60]!r}: are text and label swapped? --text-field and --label-field "
                "say which is which"
            )
        return cls(tuple(sorted(names, key=_order)))

    def ids(self, labels: Sequence[str], source: str = "data") -> np.ndarray:
        """int32 [len(labels)]. Raises `DataError` for labels that were not in `fit`."""
        index = {name: i for i, name in enumerate(self.names)}
        unseen = sorted(set(labels) - set(index), key=_order)
        if unseen:
            times = collections.Counter(labels)
            counts = ", ".join(f"{name!r} ({times[name]:,} times)" for name in unseen[:SHOWN])
            known = ", ".join(map(repr, self.names[:SHOWN]))
            more = "" if len(self) <= SHOWN else f", ... ({len(self):,} in all)"
            raise DataError(
                f"{source}: labels never seen in training: {counts}; known: {known}{more}"
            )
        return np.fromiter((index[label] for label in labels), np.int32, len(labels))

    def decode(self, ids: Sequence[int]) -> List[str]:
        """Ids to names."""
        return [self.names[int(i)] for i in ids]

    def save(self, path: str) -> None:
        """Writes the names in id order as a JSON list."""
        text = json.dumps(list(self.names), ensure_ascii=False, indent=1) + "\n"
        durable.write(Path(path), text.encode("utf-8"))

    @classmethod
    def load(cls, path: str) -> Labels:
        """What `save` wrote."""
        try:
            with open(path, encoding="utf-8") as handle:
                names = json.load(handle)
        except FileNotFoundError:
            raise DataError(f"{path}: no such file; a training run writes it") from None
        except OSError as error:  # a directory, no permission
            raise DataError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: not a label list: {error}") from None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise DataError(f"{path}: not a label list; needed: a JSON list of strings")
        return cls(tuple(names))


def _order(name: str) -> Tuple[int, float, str]:
    try:
        value = float(name)
    except ValueError:
        return (1, 0.0, name)
    return (0, value, name) if value == value else (1, 0.0, name)  # "nan" has no place by value
