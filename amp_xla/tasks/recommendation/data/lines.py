"""Lines of samples: label, numbers and slots, separated by tabs, as in Criteo's files.

A file is read once before training, to check and count its lines, hash its content and record where
blocks of lines begin. Later each block is read when it is needed, so a file of any size takes only
the memory of one block.
"""

from __future__ import annotations

import hashlib
import io
import math
import zlib
from typing import Any, Iterator, List, NamedTuple, Optional, Tuple

from amp_xla.data.text.lines import LineError, opened
from amp_xla.errors import DataError

# Label, numbers, and the hashes of each slot's values in one list; -1 = no value
Parsed = Tuple[float, List[float], List[int]]


class Columns(NamedTuple):
    """Counts of the columns after the label: first those with numbers, then the slots."""

    numbers: int
    slots: int


class Lines:
    """The checked lines of bytes or of a file, which may be compressed.

    Args:
      path: path of the file; with ``content`` it is only a name for messages.
      numbers: how many columns after the label are numbers; the others are slots.
      block: lines per block.
      content: the content, read instead of a file.
      columns: required columns; None = as in the first line.

    Attributes:
      columns: columns of every line.
    """

    def __init__(
        self,
        path: str,
        numbers: int,
        block: int,
        content: Optional[bytes] = None,
        columns: Optional[Columns] = None,
    ) -> None:
        self.path, self.block, self._content = path, block, content
        self._offsets: List[int] = []
        self._count, self._digest = 0, hashlib.sha256()
        try:
            with self._open() as handle:
                offset = 0
                for line in handle:
                    if columns is None:
                        columns = self._columns(line, numbers)
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
            raise DataError(f"{path}, {error}") from None
        if columns is None:
            raise DataError(f"{path} has no lines")
        self.columns = columns

    def _columns(self, line: bytes, numbers: int) -> Columns:
        tabs = line.count(b"\t")
        if tabs and tabs <= numbers:
            raise LineError(
                0,
                f"{tabs} columns after the label; {numbers} of them are numbers, which leaves no "
                f"slot; --numbers sets how many are numbers",
            )
        return Columns(numbers, tabs - numbers)

    def _open(self) -> Any:
        return opened(self.path) if self._content is None else io.BytesIO(self._content)

    def __len__(self) -> int:
        return self._count

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
        parts = [slot] if values == 1 else slot.split(b" ")[:values]
        known = [zlib.crc32(part) for part in parts if part]
        hashes += known + [-1] * (values - len(known))
    return float(label or 0), numbers, hashes
