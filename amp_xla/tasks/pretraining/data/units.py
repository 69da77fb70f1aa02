"""Units of a corpus: whole documents of text files, JSON lines and Parquet.

Corpus and ``Reading`` alone decide where units begin, so any number of machines and processes gets
the same units. Files, compressed or not, are read as streams, so few units are in memory at a time.
"""

from __future__ import annotations

import dataclasses
import glob
import itertools
import os
import re
from typing import Dict, Iterator, List, NamedTuple, Tuple

from typing_extensions import Literal

from amp_xla.data.text.lines import JSON_SUFFIXES, decoded, json_object, refuse_encoding
from amp_xla.data.text.readers import text_value
from amp_xla.data.text.unpacked import COMPRESSED, opened, plain_name
from amp_xla.errors import DataError

TEXT_SUFFIXES = (".txt", ".text", ".tsv", ".data")
SUFFIXES = (*TEXT_SUFFIXES, *JSON_SUFFIXES, ".parquet")
EXTRACTED = re.compile(r"wiki_\d+")  # file names of WikiExtractor and wiki_zh
UNIT_BYTES = (1 << 18, 8 << 20)  # range of a unit's approximate size
Document = Tuple[int, bytes]  # its first byte in the decompressed file, and its content
UNITS = 64  # approximate number of units in a corpus, unless UNIT_BYTES forbids it
HEAD_BYTES = 1 << 16  # first bytes of a file, which show its kind


@dataclasses.dataclass(frozen=True)
class Reading:
    """Format of the corpus."""

    field: str = "text"
    """JSON key of the text, or several keys: title,content; in a text file with tabs, the number of
    the column, from 0"""
    documents: Literal["line", "blank", "file"] = "line"
    """what a document of a text file is: a line, the text between blank lines, or the whole file"""
    on_bad_line: Literal["error", "skip"] = "error"
    """what to do with lines that are not UTF-8 or not JSON: stop, or leave out and count them"""


class Unit(NamedTuple):
    """A unit of a corpus: neighbouring documents of one file.

    Units sorted by name are in the order of the corpus. ``kind`` is ``text`` or ``json``; ``size``
    is in bytes.
    """

    name: str
    path: str
    kind: str
    size: int
    documents: List[Document]


def files_of(corpus: str) -> List[str]:
    """Return the files of ``corpus``, each once; commas separate its files, folders and globs."""
    files: Dict[str, str] = {}
    for pattern in filter(None, (part.strip() for part in corpus.split(","))):
        if os.path.isdir(pattern):
            below = glob.glob(os.path.join(glob.escape(pattern), "**"), recursive=True)
            paths = list(filter(_has_known_name, below))
            packed = ", ".join(COMPRESSED)
            problem = f"has no file ending in {', '.join(SUFFIXES)} (or these with {packed})"
        else:
            paths = [pattern] if os.path.exists(pattern) else glob.glob(pattern, recursive=True)
            problem = "no such file"
        paths = sorted(p for p in paths if os.path.exists(p) and not os.path.isdir(p))
        if not paths:
            raise DataError(f"corpus {pattern}: {problem}")
        for path in paths:
            if not os.path.isfile(path):
                raise DataError(
                    f"corpus {path}: a pipe or a device; prepare reads the corpus more than once, "
                    "so it needs a regular file"
                )
            files.setdefault(os.path.realpath(path), path)
    if not files:
        raise DataError("--corpus is empty; name files, folders or globs")
    return list(files.values())


def _has_known_name(path: str) -> bool:
    name = os.path.basename(plain_name(path))
    return name.lower().endswith(SUFFIXES) or EXTRACTED.fullmatch(name) is not None


def units(files: List[str], reading: Reading) -> Iterator[Unit]:
    """Yield the units of a corpus in order."""
    total = sum(map(os.path.getsize, files))
    target = min(max(total // UNITS, UNIT_BYTES[0]), UNIT_BYTES[1])
    for number, path in enumerate(files):
        with opened(path) as file:
            head = file.read(HEAD_BYTES)
        refuse_encoding(path, head)
        kind = _kind(path, head, reading.field)
        # A unit ends with the first document that ends after a multiple of the target.
        part = begin = end = 0
        documents: List[Document] = []
        for start, content in _documents(path, kind, reading):
            documents.append((start, content))
            end = start + len(content)
            if end // target > begin // target:
                name = f"{number:05d}-{part:05d}"
                yield Unit(name, path, kind, end - begin, documents)
                part, begin, documents = part + 1, end, []
        if documents:
            yield Unit(f"{number:05d}-{part:05d}", path, kind, end - begin, documents)


def _kind(path: str, head: bytes, field: str) -> str:
    """Return ``text`` or ``json``, by the file name's ending or the file's first characters."""
    name, begin = plain_name(path).lower(), head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if name.endswith(JSON_SUFFIXES) or begin.startswith(b'{"'):
        return "json"
    if name.endswith((".csv", ".xml")):
        raise DataError(
            f"{path} is {name[-3:].upper()}; needed: text, JSON lines, Parquet, or columns "
            f"separated by tabs"
        )
    if name.endswith(".tsv") and b"\t" in begin.split(b"\n")[0] and not field[:1].isdigit():
        raise DataError(f"{path} has columns separated by tabs; --field 0 reads the first of them")
    return "json" if begin[:1] == b"{" and not name.endswith(TEXT_SUFFIXES) else "text"


def _documents(path: str, kind: str, reading: Reading) -> Iterator[Document]:
    def inside(line: Document) -> bool:
        return reading.documents == "file" or bool(line[1].strip(b" \t\r\n"))

    lines = _lines(path)
    if kind == "json" or reading.documents == "line":
        yield from lines
        return
    for is_document, group in itertools.groupby(lines, inside):
        if is_document:
            begin, first = next(group)
            yield begin, first + b"".join(line for _, line in group)


def _lines(path: str) -> Iterator[Tuple[int, bytes]]:
    """Yield (byte offset, bytes) of each line of a file."""
    begin = 0
    with opened(path) as file:
        for line in file:
            yield begin, line
            begin += len(line)


def texts_of(unit: Unit, reading: Reading) -> Tuple[List[str], int]:
    """Return the documents of a unit, and the number of bad lines that were skipped.

    Raises:
      DataError: a line is bad, and ``reading`` does not skip bad lines.
    """
    texts: List[str] = []
    bad = 0
    for begin, content in unit.documents:
        try:
            texts.append(_text(content, unit, reading.field))
        except ValueError as error:
            if reading.on_bad_line == "error":
                raise DataError(
                    f"{unit.path}, byte {begin}: {error}; correct the line or --field, or leave "
                    "out bad lines with --on-bad-line skip"
                ) from None
            bad += 1
    return [text for text in texts if text.strip()], bad


def _text(raw: bytes, unit: Unit, field: str) -> str:
    line = decoded(raw).lstrip("\ufeff").strip("\r\n")
    fields = [name.strip() for name in field.split(",")]
    if unit.kind == "text":
        if not all(map(str.isdecimal, fields)):
            return line
        lines = [row.lstrip("\ufeff").strip("\r") for row in line.split("\n") if row.strip()]
        rows = [row.split("\t") for row in lines]
        for columns, name in itertools.product(rows, fields):
            if int(name) >= len(columns):
                raise ValueError(
                    f"{len(columns)} tab-separated columns; none has number {name}, counted from 0"
                )
        return "\n".join(columns[int(name)] for columns in rows for name in fields)
    if not line.strip():
        return ""
    record = json_object(line)
    full = [name for name in fields if str(record.get(name, name)).strip()]
    return "\n".join(text_value(record, name) for name in full)
