"""Bytes of a file, gzipped or not, to numbered lines of text; undecodable lines are told apart."""

from __future__ import annotations

import gzip
import io
import os
import sys
from typing import Any, Iterator, List, Tuple

from amp_xla.data.text.dataset import BadLine
from amp_xla.errors import DataError

GZIP_MAGIC = b"\x1f\x8b"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
UTF8_MARK = b"\xef\xbb\xbf"

# Text packs 3 to 10 times, a log of one line over and over 200 times; a bomb 1,000 times and more.
MOST_TIMES, ALWAYS_ALLOWED = 200, 64 << 20
CHUNK = 16 << 20

Line = Tuple[int, str]


def read_lines(path: str) -> Tuple[List[Line], List[BadLine]]:
    """The non-blank lines of `path` as (number from 1, text), and those that are not UTF-8 text.

    Raises `DataError` as `every_line`, and for a file without a line.
    """
    lines, bad = every_line(path)
    good = [(number, text) for number, text in enumerate(lines, start=1) if text.strip()]
    if not good and not bad:
        raise DataError(f"{called(path)}: the file is empty; it needs one sample a line")
    return good, bad


def every_line(path: str) -> Tuple[List[str], List[BadLine]]:
    """All lines of `path`, blank ones too, and those that are not UTF-8 text: empty in the list.

    This is what a line is wherever text is read: what ends with `\\n` (and so the last one, too,
    without it); carriage returns before it and a byte order mark at the beginning are dropped. `-`
    is standard input. gzip is known by its first two bytes, whatever the file is called.

    Raises `DataError` for a file that is missing, unreadable, truncated or UTF-16, and for gzip
    that unpacks to far more than text does.
    """
    data = _decompressed(path, read_bytes(path))
    if data[:2] in UTF16_MARKS:
        raise DataError(
            f"{called(path)}: the file is UTF-16; UTF-8 is needed "
            f"(iconv -f UTF-16 -t UTF-8 {path} > new-file)"
        )
    if data.startswith(UTF8_MARK):
        data = data[len(UTF8_MARK) :]
    lines: List[str] = []
    bad: List[BadLine] = []
    # Only \n ends a line: str.splitlines would also cut at U+2028, \x0b and others inside a text.
    pieces = data.split(b"\n")
    if not pieces[-1]:
        pieces.pop()
    for number, raw in enumerate(pieces, start=1):
        text = ""
        try:
            text = raw.decode("utf-8").rstrip("\r")
        except UnicodeDecodeError as error:
            found = f"0x{raw[error.start]:02x}"
            bad.append(BadLine(path, number, f"is not UTF-8: byte {error.start + 1} is {found}"))
        if "\0" in text:
            bad.append(BadLine(path, number, "holds a NUL byte"))
            text = ""
        lines.append(text)
    return lines, bad


def called(path: str) -> str:
    """What a message calls the file."""
    return "standard input" if path == "-" else path


def unpacked(path: str, file: Any, packed: int, chunk: int) -> Iterator[bytes]:
    """What a decompressing ``file`` of ``packed`` bytes holds, ``chunk`` bytes at a time.

    Raises `DataError` for damage, and as soon as there is more than text gives: a bomb would fill
    the memory.
    """
    total = 0
    while True:
        try:
            data = file.read(chunk)
        except Exception as error:  # each library has its own name for damage
            kind = path.rsplit(".", 1)[-1]
            kind = kind if kind in ("zst", "bz2") else "gzip"
            raise DataError(f"{path}: damaged {kind} file: {error}") from None
        if not data:
            return
        total += len(data)
        if total > max(ALWAYS_ALLOWED, MOST_TIMES * packed):
            raise DataError(
                f"{path}: unpacks to more than {total >> 20:,} MiB, over {MOST_TIMES} times its "
                f"{packed:,} bytes, as no text does; if it is right, unpack it yourself and name "
                f"that"
            )
        yield data


def read_bytes(path: str) -> bytes:
    """The whole file; `DataError` if it is not there or cannot be read."""
    if path == "-":
        if sys.stdin is None:  # closed by whoever started this process
            raise DataError("standard input is closed; name a file")
        return sys.stdin.buffer.read()
    try:
        with open(path, "rb") as handle:
            return handle.read()
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such file (looked in {os.path.abspath(os.path.dirname(path))})"
        ) from None
    except OSError as error:  # a directory, no permission, a broken disk
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def _decompressed(path: str, data: bytes) -> bytes:
    if not data.startswith(GZIP_MAGIC):
        if path.endswith(".gz") and data:
            raise DataError(f"{path}: named .gz but the content is not gzip")
        return data
    return b"".join(unpacked(path, gzip.GzipFile(fileobj=io.BytesIO(data)), len(data), CHUNK))
