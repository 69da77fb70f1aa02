"""Lines of text files, gzipped or not, and a separate report of those that are not UTF-8 text."""

from __future__ import annotations

import gzip
import io
import os
import sys
from typing import Any, Iterator, List, NamedTuple, Optional, Tuple

from amp_xla.errors import DataError

GZIP_MAGIC = b"\x1f\x8b"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
UTF8_MARK = b"\xef\xbb\xbf"

# gzip ratio: text 3 to 10, a log that repeats one line 200, a malicious file 1,000 or more.
MOST_TIMES, ALWAYS_ALLOWED = 200, 64 << 20
CHUNK = 16 << 20

Line = Tuple[int, str]


class BadLine(NamedTuple):
    """An unusable line: ``line`` counts from 1, ``reason`` describes it."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


def read_lines(path: str) -> Tuple[List[Line], List[BadLine]]:
    """Return the non-blank lines as (number from 1, text), and the lines that are not UTF-8 text.

    Raises:
      DataError: As ``every_line``, or the file has no line.
    """
    lines, bad = every_line(path)
    good = [(number, text) for number, text in enumerate(lines, start=1) if text.strip()]
    if not good and not bad:
        raise DataError(f"{called(path)}: the file is empty; it needs one sample per line")
    return good, bad


def every_line(path: str) -> Tuple[List[str], List[BadLine]]:
    r"""Return all lines, blank ones too, and those that are not UTF-8 text, empty in the list.

    Only ``\n`` ends a line; carriage returns before it and a byte order mark are dropped. ``-`` is
    standard input. gzip is recognised by its first two bytes.

    Raises:
      DataError: The file is missing, unreadable, truncated or UTF-16, or unpacks to far more than
        text does.
    """
    data = _decompressed(path, read_bytes(path))
    refuse_utf16(path, data)
    if data.startswith(UTF8_MARK):
        data = data[len(UTF8_MARK) :]
    lines: List[str] = []
    bad: List[BadLine] = []
    # str.splitlines would also cut at U+2028, \x0b and others inside a text.
    pieces = data.split(b"\n")
    if not pieces[-1]:
        pieces.pop()
    for number, raw in enumerate(pieces, start=1):
        try:
            lines.append(decoded(raw).rstrip("\r"))
        except ValueError as reason:
            lines.append("")
            bad.append(BadLine(path, number, str(reason)))
    return lines, bad


def decoded(raw: bytes) -> str:
    """Return UTF-8 text; raise ``ValueError`` with the reason if it is not UTF-8."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"0x{raw[error.start]:02x}"
        raise ValueError(f"is not UTF-8: byte {error.start + 1} is {byte}") from None
    if "\0" in text:
        raise ValueError("holds a NUL byte")
    return text


def text_problem(text: str) -> Optional[str]:
    """Return why a text cannot be used, or None."""
    if "\0" in text:
        return "holds a NUL character"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:  # JSON's \ud800 without its other half
        return f"character {error.start + 1} is half a surrogate pair"
    return None


def called(path: str) -> str:
    """Return the name of a file in messages."""
    return "standard input" if path == "-" else path


def count(path: str) -> int:
    """Return the number of lines of a regular file, 0 if it cannot be read."""
    try:
        if not os.path.isfile(path):  # a pipe can be read only once
            return 0
        return len(every_line(path)[0])
    except DataError:  # whoever reads the texts reports it
        return 0


def unpacked(path: str, file: Any, packed: int, chunk: int) -> Iterator[bytes]:
    """Yield ``chunk`` bytes at a time from a decompressor; ``packed`` is the compressed size.

    Raises:
      DataError: The file is damaged, or holds far more than text does, which would fill the memory.
    """
    total = 0
    while True:
        try:
            data = file.read(chunk)
        except Exception as error:  # each library has another class for damage
            kind = path.rsplit(".", 1)[-1]
            kind = kind if kind in ("zst", "bz2") else "gzip"
            raise DataError(f"{path}: damaged {kind} file: {error}") from None
        if not data:
            return
        total += len(data)
        if total > max(ALWAYS_ALLOWED, MOST_TIMES * packed):
            raise DataError(
                f"{path}: unpacks to more than {total >> 20:,} MiB, over {MOST_TIMES} times its "
                f"{packed:,} bytes, as no text does; if you trust it, unpack it first"
            )
        yield data


def read_bytes(path: str) -> bytes:
    """Return the content of a file, a pipe or, for ``-``, standard input.

    Raises:
      DataError: It does not exist, or cannot be read.
    """
    if path == "-":
        if sys.stdin is None:
            raise DataError("standard input is closed; name a file")
        return sys.stdin.buffer.read()
    try:
        with open(path, "rb") as handle:
            return handle.read()
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such file (looked in {os.path.abspath(os.path.dirname(path))})"
        ) from None
    except OSError as error:  # a folder, no permission, a loop of links
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def refuse_utf16(path: str, data: bytes) -> None:
    """Raise ``DataError`` if data has UTF-16's byte order mark, or every other byte is zero."""
    begin = data[:1024]
    zeros = max(begin[0::2].count(0), begin[1::2].count(0))
    if data[:2] in UTF16_MARKS or (len(begin) > 3 and 4 * zeros > len(begin)):
        raise DataError(
            f"{called(path)}: the file is UTF-16; UTF-8 is needed "
            f"(iconv -f UTF-16 -t UTF-8 {path} > new-file)"
        )


def _decompressed(path: str, data: bytes) -> bytes:
    if not data.startswith(GZIP_MAGIC):
        if path.endswith(".gz") and data:
            raise DataError(f"{path}: named .gz but the content is not gzip")
        return data
    return b"".join(unpacked(path, gzip.GzipFile(fileobj=io.BytesIO(data)), len(data), CHUNK))
