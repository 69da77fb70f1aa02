"""Samples in lines: label, numbers, slots, with tabs between them, as Criteo's files have them.

A file is read once from end to end before training: its lines are counted and looked at, its
content gets a digest, and the places where blocks of lines begin are noted. From then on a block
is read where it is needed, so a file of any size takes the memory of one block.
"""

from __future__ import annotations

import gzip
import hashlib
import io
from typing import Any, Iterator, List, NamedTuple, Optional

from amp_xla.errors import DataError

CRITEO_NUMBERS = 13


class Columns(NamedTuple):
    """What a line has after its label: columns of numbers, then slots."""

    numbers: int
    slots: int


class Lines:
    """The lines of a file (also .gz), or of bytes.

    Args:
      path: of the file; where ``content`` is given, only what it is called.
      numbers: columns of numbers; the rest after the label are slots.
      block: lines of a block.
      content: the lines themselves.
      columns: what a line must have; None = as many as the first line has.

    Attributes:
      columns: of every line.

    Raises:
      DataError: the file cannot be read, has no lines, or one of them has other columns or another
        label than 0 and 1.
    """

    def __init__(
        self,
        path: str,
        numbers: int,
        block: int,
        content: Optional[bytes] = None,
        columns: Optional[Columns] = None,
    ) -> None:
        self.path, self.block = path, block
        self._content = content
        self._offsets: List[int] = []
        self._count, self._digest = 0, hashlib.sha256()
        tabs = None if columns is None else columns.numbers + columns.slots
        try:
            with self._open() as handle:
                offset = 0
                for line in handle:
                    if self._count % block == 0:
                        self._offsets.append(offset)
                    offset += len(line)
                    self._count += 1
                    self._digest.update(line)
                    if line[:2] not in (b"0\t", b"1\t"):
                        found = line.split(b"\t")[0][:20].decode("utf-8", "replace").strip()
                        raise self._wrong(f"the label is {found!r}; allowed: 0 or 1, then a tab")
                    if tabs is None:
                        tabs = line.count(b"\t")
                        if tabs <= numbers:
                            raise self._wrong(
                                f"{tabs} columns after the label, of which {numbers} are numbers, "
                                f"leave no slot; --numbers says how many are numbers"
                            )
                    found_tabs = line.count(b"\t")
                    if found_tabs != tabs:
                        raise self._wrong(f"{found_tabs} columns after the label; wanted {tabs}")
        except (OSError, EOFError) as error:
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"cannot read {path}: {reason}") from error
        if not self._count:
            raise DataError(f"{path} has no lines")
        self.columns = Columns(numbers, (tabs or 0) - numbers)

    def _wrong(self, why: str) -> DataError:
        return DataError(f"{self.path}, line {self._count}: {why}")

    def _open(self) -> Any:
        if self._content is not None:
            return io.BytesIO(self._content)
        return gzip.open(self.path) if self.path.endswith(".gz") else open(self.path, "rb")

    def __len__(self) -> int:
        return self._count

    def fingerprint(self) -> str:
        """SHA-256 (hex) of the content."""
        return self._digest.hexdigest()

    def blocks(self, first: int = 0) -> Iterator[List[bytes]]:
        """Blocks ``first``, ``first + 1``, ... of lines; earlier ones are skipped over.

        Raises:
          DataError: the file has become shorter.
        """
        with self._open() as handle:
            handle.seek(self._offsets[first] if first < len(self._offsets) else 0)
            for number in range(first, len(self._offsets)):
                wanted = min(self.block, self._count - number * self.block)
                lines = [handle.readline() for _ in range(wanted)]
                if not lines[-1]:
                    raise DataError(f"{self.path} has become shorter while it was read")
                yield lines
