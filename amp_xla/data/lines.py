"""Bytes of a file, gzipped or not, to numbered lines of text; undecodable lines are told apart."""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from typing import List, Tuple

from amp_xla.data.dataset import BadLine
from amp_xla.data.errors import DataError

GZIP_MAGIC = b"\x1f\x8b"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
UTF8_MARK = b"\xef\xbb\xbf"

Line = Tuple[int, str]


def read_lines(path: str) -> Tuple[List[Line], List[BadLine]]:
    """The non-blank lines of `path` as (number from 1, text), and those that are not UTF-8 text.

    `-` is standard input. A byte order mark and carriage returns are dropped; gzip is known by
    its first two bytes, whatever the file is called. Raises `DataError` for a file that is
    missing, unreadable, truncated, empty or UTF-16.
    """
    data = _decompressed(path, read_bytes(path))
    if data[:2] in UTF16_MARKS:
        raise DataError(
            f"{path}: the file is UTF-16; UTF-8 is needed "
            f"(iconv -f UTF-16 -t UTF-8 {path} > new-file)"
        )
    if data.startswith(UTF8_MARK):
        data = data[len(UTF8_MARK) :]
    good: List[Line] = []
    bad: List[BadLine] = []
    # Only \n ends a line: str.splitlines would also cut at U+2028, \x0b and others inside a text.
    for number, raw in enumerate(data.split(b"\n"), start=1):
        if b"\0" in raw:
            bad.append(BadLine(path, number, "holds a NUL byte"))
            continue
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            found = f"0x{raw[error.start]:02x}"
            bad.append(BadLine(path, number, f"is not UTF-8: byte {error.start + 1} is {found}"))
            continue
        if text.strip():
            good.append((number, text.rstrip("\r")))
    if not good and not bad:
        raise DataError(f"{path}: the file is empty; it needs one sample a line")
    return good, bad


def read_bytes(path: str) -> bytes:
    """The whole file; `DataError` if it is not there or cannot be read."""
    if path == "-":
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
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file: {error}") from None
