"""Labels: their names and numbers."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import re
import shlex
import unicodedata
from pathlib import Path
from typing import Any, Dict, Optional, Sequence, Tuple

import numpy as np

from amp_xla.errors import DataError
from amp_xla.process import json_files

SHOWN = 20  # maximum number of labels listed in a message
MANY = 100  # with this many samples, mostly different labels are an error
# No label, in SNLI, pandas, databases and Excel
ABSENT = ("-", "na", "nan", "null", "n/a", "#n/a", "<na>", "\\n")
MANY_NUMBERS = 20  # more different numbers than this are probably values, not names of classes
# 1 000,5 and full-width forms
_OTHER_FORMS = re.compile(r"[-+−－]?(\d{1,3}([\s'’.,．，]\d{3})+|\d+)([.,．，]\d+)?\s?[%‰％]?")


@dataclasses.dataclass(frozen=True)
class Labels:
    """The classes of a task in id order."""

    names: Tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def fit(cls, labels: Sequence[str]) -> Labels:
        """Return the distinct labels: numbers by value (2 before 10), then texts by code point.

        Raises:
          DataError: there is only one label; or there are many samples, and the number of labels is
            more than half the number of samples.
        """
        names = set(labels)
        if len(names) < 2:
            only = ", ".join(map(repr, sorted(names))) or "none"
            raise DataError(
                f"training data: {len(labels):,} samples with only this label: {only}; at least "
                "two different labels are needed. Is --label-field right?"
            )
        if len(labels) >= MANY and len(names) > len(labels) / 2:
            raise DataError(
                f"training data: {len(names):,} different labels in {len(labels):,} samples, such "
                f"as {min(names)[:60]!r}: are text and label swapped (--text-field, --label-field)?"
            )
        return cls(tuple(sorted(names, key=_order)))

    def ids(self, labels: Sequence[str], share: float = 1.0) -> np.ndarray:
        """Return the ids of labels, int32 [len(labels)].

        ``share``, the value of ``train_fraction``, is only for the error about unknown labels.
        """
        index = {name: i for i, name in enumerate(self.names)}
        unseen = sorted(set(labels) - set(index), key=_order)
        if unseen:
            times = collections.Counter(labels)
            counts = ", ".join(f"{name!r} ({times[name]:,} times)" for name in unseen[:SHOWN])
            advice = "add such samples to the training data, or remove them from the dev data"
            if share < 1.0:
                advice = f"did --train-fraction {share:g} leave them out? Give a larger one"
            both = sorted({*self.names, *unseen})
            advice = ("" if alike(self.names) else alike(both)) or several(both) or advice
            raise DataError(
                f"labels never seen in training: {counts}; known: {_listed(self.names)}; {advice}"
            )
        return np.fromiter((index[label] for label in labels), np.int32, len(labels))

    def multi_hot(self, labels: Sequence[Sequence[str]], share: float = 1.0) -> np.ndarray:
        """Return int8 [samples, len(self)]: 1 for each label of a sample, else 0."""
        hot = np.zeros((len(labels), len(self)), np.int8)
        samples = np.repeat(np.arange(len(labels)), [len(names) for names in labels])
        hot[samples, self.ids([name for names in labels for name in names], share)] = 1
        return hot

    def warnings(self, dev_labels: Sequence[str]) -> str:
        """Return warnings, each after a line break: labels without dev texts, suspicious labels."""
        lines = ""
        missing = sorted(set(self.names) - set(dev_labels), key=_order)
        if missing:
            lines += (
                f"\nwarning: {len(missing)} of {len(self)} labels never occur in the dev texts, so "
                f"their accuracy is not measured: {_listed(missing)}; is a file sorted by label?"
            )
        if many_numbers(self.names):
            lines += (
                f"\nwarning: all labels are numbers ({_listed(self.names[:3])}, ...): they become "
                f"{len(self)} classes; the model does not predict values between them"
            )
        for name in self.names:
            if name == "None" or name.lower() in ABSENT:
                lines += f"\nwarning: {name!r} is a class here; in many files it means: no label"
        hints = filter(None, (alike(self.names), several(self.names)))
        return lines + "".join(f"\nwarning: {hint}" for hint in hints)

    def encoded(self) -> bytes:
        """Return the names as a JSON list, the content of ``labels.json``."""
        return json_files.encode(list(self.names))

    @classmethod
    def load(cls, path: str) -> Labels:
        """Read a file that ``encoded`` wrote; checkpoints verify its checksum."""
        return cls(tuple(json_files.read(Path(path), kind=[str])))


@dataclasses.dataclass(frozen=True)
class Scale:
    """The range of a task's labels, which are numbers; ``binary``: each is 0 or 1."""

    low: float
    high: float
    binary: bool

    @classmethod
    def fit(cls, labels: Sequence[str]) -> Scale:
        """Return the scale from the lowest to the highest of ``labels``."""
        names = set(labels)
        values = [float(name) for name in names]
        if len(names) < 2:
            raise DataError(
                f"all {len(labels):,} samples have the same label: {', '.join(names) or 'none'}; "
                "at least two different labels are needed. Is --label-field right?"
            )
        return cls(min(values), max(values), names == {"0", "1"})

    def values(self, labels: Sequence[str]) -> np.ndarray:
        """Return the labels as float32 [N], scaled so that ``low`` is 0 and ``high`` is 1."""
        values = np.array([float(label) for label in labels])
        return ((values - self.low) / (self.high - self.low)).astype(np.float32)

    def labels(self, values: Any) -> Any:
        """Turn scaled ``values``, an array or a tensor, back into labels."""
        return self.low + (self.high - self.low) * values

    def __len__(self) -> int:
        return 1  # number that a model predicts

    def encoded(self) -> bytes:
        """Return the scale as JSON, the content of ``labels.json``."""
        return json_files.encode(dataclasses.asdict(self), indent=None)

    @classmethod
    def load(cls, path: str) -> Scale:
        """Read a file that ``encoded`` wrote; its checksum is verified with the checkpoint."""
        number = (int, float)
        values = json_files.read(Path(path), {"low": number, "high": number, "binary": bool})
        return cls(values["low"], values["high"], values["binary"])


def many_numbers(names: Sequence[str]) -> Optional[bool]:
    """Return whether over 20 names differ or one is no whole float; None if one is no number."""
    if not all(map(is_number, names)):
        return None
    return len(set(names)) > MANY_NUMBERS or any(as_number(name) % 1 for name in names)  # or NaN


def alike(names: Sequence[str]) -> str:
    """Return a hint if two names nearly agree, such as "a" and "A", or "1" and "1.0"; else ""."""
    known: Dict[Any, str] = {}
    for name in names:
        text = unicodedata.normalize("NFKC", name).lower()
        text = "".join(c for c in text if unicodedata.category(c) != "Cf")
        value = as_number({"true": "1", "false": "0"}.get(text, text))
        other = known.setdefault(" ".join(text.split()) if math.isnan(value) else value, name)
        if other != name:
            return f"{other!r} and {name!r} are two labels; if they mean one, write them alike"
    return ""


def several(names: Sequence[str]) -> str:
    """Return a hint if names such as "0,17" seem to be several labels; else an empty string."""
    for separator in ",|;":
        parts = [{part.strip() for part in name.split(separator)} for name in names]
        times = collections.Counter(part for each in parts for part in each)
        joined = [name for name, each in zip(names, parts) if len(each) > 1]
        known = [name for name, each in zip(names, parts) if min(times[p] for p in each) > 1]
        if joined and 2 * len({*joined} & {*known}) >= len(joined):
            return f"{joined[0]!r} may be several labels: --multilabel {shlex.quote(separator)}"
    return ""


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:SHOWN]))
    return shown if len(names) <= SHOWN else f"{shown}, ... ({len(names):,} in all)"


def as_number(text: str) -> float:
    """Return the number in a text; NaN for other texts and for "1_000", a number only in Python."""
    with contextlib.suppress(ValueError):
        return math.nan if "_" in text else float(text)
    return math.nan


def is_number(text: str) -> bool:
    """Return whether people read a text as a number, as they do "1,5", which ``float`` refuses."""
    return _OTHER_FORMS.fullmatch(text) is not None or math.isfinite(as_number(text))


def _order(name: str) -> Tuple[int, float, str]:
    value = as_number(name)
    return (1, 0.0, name) if math.isnan(value) else (0, value, name)
