"""Click samples: files in Criteo's format, a built-in task, batches. Imports no TensorFlow.

A file is read once before training, to check and count its lines, hash its content and record where
blocks of lines begin. Later each block is read when it is needed. Lines are shuffled within blocks,
in an order that is a function of (seed, epoch). A hash, the same on every machine, turns a value of
a slot into the number of a row of the table; different values may share a row.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import io
import math
import os
import re
import zlib
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
from typing_extensions import Annotated

from amp_xla.config import MAY_CHANGE, within
from amp_xla.data.batches.buckets import filled
from amp_xla.data.batches.order import permutation
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.text import corpora
from amp_xla.data.text.layout import sample
from amp_xla.data.text.lines import LineError, refuse_encoding
from amp_xla.data.text.unpacked import called, opened, read_bytes
from amp_xla.errors import DataError
from amp_xla.process.progress import note

_BLOCK = 1 << 16  # approximate number of lines that are shuffled together
_CRITEO_NUMBERS = 13
_BUILT_IN_VALUES = 64
_WORDS = re.compile(r"[a-z0-9]+")
# Label, numbers, and the hashes of each slot's values in one list; -1 = no value
Parsed = Tuple[float, List[float], List[int]]


class Columns(NamedTuple):
    """Columns after the label: first ``numbers``, then ``slots``, which have categorical values."""

    numbers: int
    slots: int


class Lines:
    """The lines of a file, compressed or not, or of bytes. All lines are checked at the start.

    Args:
      numbers: how many columns after the label are numbers; the others are slots.
      block: lines per block.
      content: bytes to read instead of the file; ``path`` is only a name for messages in this case.
      columns: columns of every line; None = those of the first line.
    """

    def __init__(
        self,
        path: str,
        numbers: int,
        block: int,
        content: Optional[bytes] = None,
        columns: Optional[Columns] = None,
    ) -> None:
        if content is None and not os.path.isfile(path):
            content = read_bytes(path)  # of a pipe, which can be read only once
        self.path, self.block, self._content = path, block, content
        self._offsets: List[int] = []
        self._count, self._digest = 0, hashlib.sha256()
        try:
            with self._open() as handle:
                offset = 0
                for line in handle:
                    if not self._count:
                        refuse_encoding(path, line)
                    if columns is None:
                        tabs = line.count(b"\t")
                        columns = Columns(numbers, tabs - numbers)
                        if 0 < tabs <= numbers:
                            raise LineError(
                                0,
                                f"{tabs} columns after the label; --numbers {numbers} leaves none "
                                f"of them for slots; allowed: --numbers up to {tabs - 1}",
                            )
                    if line[:2] not in (b"0\t", b"1\t"):
                        label = line.split(b"\t")[0][:20].decode("utf-8", "replace").strip()
                        raise LineError(
                            self._count, f"the label is {label!r}; allowed: 0 or 1, then a tab"
                        )
                    parse_line(line, columns, 1, self._count)
                    if self._count % block == 0:
                        self._offsets.append(offset)
                    offset += len(line)
                    self._count += 1
                    self._digest.update(line)
        except LineError as error:
            raise DataError(f"{called(path)}, {error}") from None
        if columns is None:
            raise DataError(f"{called(path)} has no lines")
        self.columns = columns

    def _open(self) -> Any:
        return opened(self.path) if self._content is None else io.BytesIO(self._content)

    def __len__(self) -> int:
        return self._count

    def sample(self) -> str:
        """Return a line that shows the first line's label, numbers and slots."""
        with self._open() as handle:
            label, *cells = handle.readline().decode("utf-8", "replace").rstrip("\r\n").split("\t")
        numbers, slots = cells[: self.columns.numbers], cells[self.columns.numbers :]
        return sample(label=label, numbers=", ".join(numbers), slots=", ".join(slots))

    def fingerprint(self) -> str:
        """Return the SHA-256 (hex) of the content."""
        return self._digest.hexdigest()

    def blocks(self, first: int = 0) -> Iterator[List[bytes]]:
        """Yield the blocks of lines, from block number ``first`` on."""
        with self._open() as handle:
            handle.seek(self._offsets[first] if first < len(self._offsets) else 0)
            for number in range(first, len(self._offsets)):
                count = min(self.block, self._count - number * self.block)
                yield [handle.readline() for _ in range(count)]


def parse_line(line: bytes, columns: Columns, values: int, index: int = 0) -> Parsed:
    """Return label, numbers and hashes of a line; an empty label is 0.

    Each slot gets ``values`` hashes, -1 for missing ones. ``index``: number of the line, from 0.

    Raises:
      LineError: there are too many or too few columns, or a number is not finite.
    """
    label, *fields = line.rstrip(b"\r\n").split(b"\t")
    if len(fields) != sum(columns):
        raise LineError(index, f"{len(fields)} columns after the label; required: {sum(columns)}")
    numbers: List[float] = []
    for field in fields[: columns.numbers]:
        try:
            numbers.append(float(field or 0))
        except ValueError:
            numbers.append(math.nan)
        if not math.isfinite(numbers[-1]):
            text = field[:20].decode("utf-8", "replace")
            raise LineError(
                index, f"{text!r} is not a finite number; allowed: a number, or nothing for 0"
            )
    hashes: List[int] = []
    for slot in fields[columns.numbers :]:
        parts = [slot] if values == 1 else slot.split(b" ")
        known = [zlib.crc32(part) for part in parts if part][:values]
        hashes += known + [-1] * (values - len(known))
    return float(label or 0), numbers, hashes


def block_of(batch_size: int) -> int:
    """Return the lines per block, a multiple of ``batch_size``, so only the last batch is short."""
    return max(1, _BLOCK // batch_size) * batch_size


@dataclasses.dataclass(eq=False)
class SlotBatches:
    """A ``BatchSource`` with the batches of a file. ``batch_of`` describes the arrays.

    Args:
      lines: lines in blocks of ``block_of(batch_size)``.
      rows: number of rows of the table.
      values: maximum values per slot; others are dropped. 1 = a slot is not split at spaces.
      shuffle: False keeps the order of the file.
    """

    lines: Lines
    batch_size: int
    rows: int
    values: int = 1
    seed: int = 0
    shuffle: bool = True

    @property
    def shapes(self) -> Sequence[Tuple[int, int]]:
        """(samples, ids per sample), the same for all batches."""
        return [(self.batch_size, self.lines.columns.slots * self.values)]

    def steps_per_epoch(self) -> int:
        """Return the number of batches per epoch."""
        return -(-len(self.lines) // self.batch_size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of ``epoch`` from ``start`` on, without reading earlier blocks."""
        columns, batches_per_block = self.lines.columns, self.lines.block // self.batch_size
        first = start // batches_per_block
        begin = (start - first * batches_per_block) * self.batch_size
        for number, lines in enumerate(self.lines.blocks(first), first):
            order = np.arange(len(lines))
            if self.shuffle:
                order = permutation(len(lines), self.seed, epoch, number)
            for at in range(begin, len(lines), self.batch_size):
                chosen = order[at : at + self.batch_size]
                parsed = [parse_line(lines[i], columns, self.values) for i in chosen]
                ids = number * self.lines.block + chosen
                yield batch_of(parsed, columns, self.rows, self.values, ids, self.batch_size)
            begin = 0


def batch_of(
    parsed: Sequence[Parsed],
    columns: Columns,
    rows: int,
    values: int,
    sample_ids: np.ndarray,
    size: int,
) -> Batch:
    """Return a batch of ``size`` samples, filled up with padding.

    Args:
      parsed: at least one sample.
      values: maximum values per slot.
      sample_ids: int64 [samples].
      size: B, samples per batch.

    Returns:
      ``numbers``: float32 [B, numbers], log(1 + max(x, 0)) of each x; ``ids``: int64 [B, slots,
      values], rows of the table, -1 for missing values; ``labels``, ``weights``: float32 [B];
      ``sample_ids``: int64 [B].
    """
    labels, numbers, hashes = map(np.array, zip(*parsed))
    count, padding = len(parsed), (0, size - len(parsed))
    # Criteo's numbers are counts, but a few are -1 or -2.
    numbers = np.log1p(np.maximum(numbers.reshape(count, columns.numbers), 0.0))
    ids = _rows(hashes.reshape(count, columns.slots, values), rows)
    return {
        "numbers": np.pad(numbers, [padding, (0, 0)]).astype(np.float32),
        "ids": filled(ids, size),
        "labels": np.pad(labels, padding).astype(np.float32),
        "weights": (np.arange(size) < count).astype(np.float32),
        "sample_ids": filled(sample_ids, size),
    }


def _rows(hashes: np.ndarray, rows: int) -> np.ndarray:
    """Return the table rows for hashes of values; a row depends on the value and on its slot."""
    slot = np.arange(1, hashes.shape[1] + 1, dtype=np.uint64)[None, :, None]
    with np.errstate(over="ignore"):
        mixed = _mixed(hashes.astype(np.uint64) + (slot << np.uint64(32)))
    return np.where(hashes < 0, -1, (mixed % np.uint64(rows)).astype(np.int64))


def _mixed(x: Any) -> Any:
    """Return SplitMix64's hash of uint64 numbers (Steele, Lea and Flood, OOPSLA 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclasses.dataclass(frozen=True)
class SlotFiles:
    """Files to train on and to evaluate on."""

    train: Annotated[Optional[str], MAY_CHANGE] = None
    """training file in Criteo's format, also gzipped; none = built-in"""
    dev: Annotated[Optional[str], MAY_CHANGE] = None
    """dev file, in the same format; needed with --train"""
    numbers: Annotated[Optional[int], within(at_least=0)] = None
    """number of columns with numbers, after the label; none = 13 as in Criteo's files, or 0 for the
    built-in data"""
    values: Annotated[Optional[int], within(at_least=1)] = None
    """maximum values per slot; above 1, spaces separate them; none = 1, or 64 for built-in data"""

    def read(self, batch_size: int) -> Tuple[Lines, Lines, int]:
        """Return training lines, dev lines and values per slot."""
        block = block_of(batch_size)
        if (self.train is None) != (self.dev is None):
            raise DataError("--train and --dev belong together: give both, or neither")
        note(f"reading {self.train or 'the built-in texts'} ...")
        if self.train is None or self.dev is None:
            if self.numbers:
                raise DataError(f"--numbers {self.numbers}: without --train, only 0 is allowed")
            texts = zip(("built-in, train", "built-in, dev"), two_packages())
            train, dev = (Lines(name, 0, block, text) for name, text in texts)
            return train, dev, self.values or _BUILT_IN_VALUES
        numbers = _CRITEO_NUMBERS if self.numbers is None else self.numbers
        train = Lines(self.train, numbers, block)
        return train, Lines(self.dev, numbers, block, columns=train.columns), self.values or 1


def two_packages() -> Tuple[bytes, bytes]:
    """Return training lines and dev lines of the built-in task, to tell two packages apart.

    The packages are the two with most docstrings; the label is 0 or 1, the package's number. Both
    slots of a line are docstrings of that package, with words as values. Each docstring is the
    first slot of eight lines. No docstring is both in training lines and in dev lines.
    """
    parts = []
    common = collections.Counter(corpora.pydoc()[0].labels or []).most_common(2)
    names = sorted(name for name, _ in common)
    seen: Set[str] = set()
    for texts in corpora.pydoc():
        sides: List[Dict[str, None]] = [{} for _ in names]  # texts of each package, without copies
        for text, label in zip(texts.texts, texts.labels or []):
            # Texts that differ only in punctuation are the same text here.
            words = " ".join(_WORDS.findall(text.lower()))
            if label in names and words not in seen:
                sides[names.index(label)][words] = None
        seen.update(*sides)
        lists = list(map(list, sides))
        samples = [
            f"{label}\t{words}\t{lists[label][(i + shift * 7) % len(side)]}\n"
            for label, side in enumerate(sides)
            for shift in range(1, 9)
            for i, words in enumerate(side)
        ]
        order = np.random.RandomState(0).permutation(len(samples))
        parts.append("".join(samples[i] for i in order).encode())
    return parts[0], parts[1]
