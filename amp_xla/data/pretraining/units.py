"""Units of a corpus: whole documents of text files, JSON lines and Wikipedia dumps.

The cut depends on the corpus alone, so any number of machines and processes gets the same units. A
file is read as a stream, compressed or not, so a unit and the rest of a document are in memory.
"""

from __future__ import annotations

import bz2
import contextlib
import dataclasses
import functools
import glob
import gzip
import json
import os
import re
from typing import Any, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Pattern, Tuple

from typing_extensions import Literal

from amp_xla.data.extras import extra
from amp_xla.data.pretraining import wikipedia
from amp_xla.data.text.lines import refuse_utf16, text_problem, unpacked
from amp_xla.errors import DataError

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
TEXT_SUFFIXES = (".txt", ".text", ".tsv", ".data")
DUMP_SUFFIXES = (".xml",)
SUFFIXES = TEXT_SUFFIXES + JSON_SUFFIXES + DUMP_SUFFIXES
COMPRESSED = (".bz2", ".gz", ".zst")
EXTRACTED = re.compile(r"wiki_\d+")  # file names of WikiExtractor and wiki_zh
UNIT_BYTES = (1 << 18, 8 << 20)  # parsing a dump takes a second or more per MB
LONGEST_BORDER = 64  # bytes; a longer one that crosses two reads is passed over
UNITS = 64  # a corpus is cut into about this many, within UNIT_BYTES


@dataclasses.dataclass(frozen=True)
class Reading:
    """Format of the corpus."""

    field: str = "text"
    """JSON key of the text, or several: title,content; a number is a tab-separated column, from 0,
    of a text file"""
    documents: Literal["line", "blank", "file"] = "line"
    """a document of a text file is a line, the text between blank lines, or the whole file"""
    on_bad_line: Literal["error", "skip"] = "error"
    """for lines that are not UTF-8, contain a NUL, or are not JSON: stop, or leave out and count"""


class Unit(NamedTuple):
    """Whole documents: ``data``, from byte ``begin`` of a file, decompressed.

    ``name`` sorts in corpus order; ``kind`` is ``text``, ``json`` or ``dump``.
    """

    name: str
    path: str
    kind: str
    begin: int
    data: bytes


def files_of(corpus: str) -> List[str]:
    """Return the files that ``corpus`` names, each once.

    Args:
      corpus: files, folders and globs, separated by commas.

    Raises:
      DataError: one of them matches nothing, or is not a regular file.
    """
    files: Dict[str, str] = {}
    for pattern in filter(None, (part.strip() for part in corpus.split(","))):
        if os.path.isdir(pattern):
            paths = sorted(filter(_has_known_name, _files_below(pattern)))
            problem = f"has no file ending in {', '.join(SUFFIXES)} (or these with .bz2, .gz, .zst)"
        else:
            paths = [pattern] if os.path.exists(pattern) else glob.glob(pattern, recursive=True)
            paths = sorted(p for p in paths if os.path.exists(p) and not os.path.isdir(p))
            problem = "no such file"
        if not paths:
            raise DataError(f"corpus {pattern}: {problem}")
        for path in paths:
            if not os.path.isfile(path):
                raise DataError(
                    f"corpus {path}: a pipe or a device; prepare reads the corpus "
                    "more than once, so a regular file is needed"
                )
            files.setdefault(os.path.realpath(path), path)
    if not files:
        raise DataError("corpus: the name is empty; give files, folders or globs")
    return list(files.values())


def _files_below(root: str) -> Iterator[str]:
    """Yield the files in a folder and its subfolders, without hidden ones."""
    for folder, subfolders, names in os.walk(root, followlinks=True):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        here = os.path.join(os.path.realpath(folder), "")
        for name in subfolders:
            path = os.path.join(folder, name)
            if os.path.islink(path) and here.startswith(os.path.join(os.path.realpath(path), "")):
                raise DataError(
                    f"corpus {root}: {path} is a link to a folder above it; remove the link, or "
                    "name the files"
                )
        yield from (os.path.join(folder, name) for name in names if not name.startswith("."))


def _has_known_name(path: str) -> bool:
    name = os.path.basename(_unpacked_name(path))
    return name.endswith(SUFFIXES) or EXTRACTED.fullmatch(name) is not None


def _unpacked_name(path: str) -> str:
    return os.path.splitext(path)[0] if path.endswith(COMPRESSED) else path


def kind_of(path: str) -> str:
    """Return ``text``, ``json`` or ``dump``, by the name's ending or else the first character.

    Raises:
      DataError: the file is UTF-16.
    """
    with opened(path) as file:
        head = next(unpacked(path, file, os.path.getsize(path), 1024), b"")
    refuse_utf16(path, head)
    name = _unpacked_name(path)
    if name.endswith(DUMP_SUFFIXES):
        return "dump"
    if name.endswith(JSON_SUFFIXES):
        return "json"
    begins_as_json = head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")
    return "json" if begins_as_json and not name.endswith(TEXT_SUFFIXES) else "text"


def units(files: List[str], reading: Reading) -> Iterator[Unit]:
    """Yield the units of a corpus in order."""
    total = sum(map(os.path.getsize, files))
    target = min(max(total // UNITS, UNIT_BYTES[0]), UNIT_BYTES[1])
    for number, path in enumerate(files):
        kind = kind_of(path)
        begin = 0
        for part, data in enumerate(_parts(path, target, _border(kind, reading))):
            yield Unit(f"{number:05d}-{part:05d}", path, kind, begin, data)
            begin += len(data)


def _border(kind: str, reading: Reading) -> Optional[Pattern[bytes]]:
    """Return the pattern between two documents, or None if a file is one document."""
    if kind == "dump":
        return wikipedia.BORDER
    if kind == "json" or reading.documents == "line":
        return re.compile(rb"\n")
    return re.compile(rb"\n(?:[ \t\r]*\n)+") if reading.documents == "blank" else None


def _parts(path: str, size: int, border: Optional[Pattern[bytes]]) -> Iterator[bytes]:
    """Yield the content of a file, cut at the first border behind each multiple of ``size``."""
    rest, begin, needed = bytearray(), 0, size
    with opened(path) as file:
        for data in unpacked(path, file, os.path.getsize(path), size):
            rest += data
            while border and len(rest) >= needed:
                # What came before these data has no border behind ``needed``.
                start = max(needed - 1, len(rest) - len(data) - LONGEST_BORDER)
                match = border.search(rest, start)
                endless = border is wikipedia.BORDER and len(rest) > needed + wikipedia.PAGE_BYTES
                if match is None and not endless:
                    break
                end = match.end() if match else len(rest)
                yield bytes(rest[:end])
                del rest[:end]
                begin += end
                needed = size - begin % size
    if rest:
        yield bytes(rest)


def texts_of(unit: Unit, reading: Reading) -> Tuple[List[str], int]:
    """Return the documents of a unit, and how many bad lines or pages were skipped.

    Raises:
      DataError: a bad line, with file and byte offset, unless bad lines are skipped.
    """
    texts: List[str] = []
    bad = 0
    for offset, raw in _raw_documents(unit, reading):
        try:
            texts.append(_text(raw, unit, reading.field))
        except ValueError as error:
            if reading.on_bad_line == "error":
                raise DataError(
                    f"{unit.path}, byte {unit.begin + offset}: {error}; correct it, or leave out "
                    "bad lines with --on-bad-line skip"
                ) from None
            bad += 1
    return [text for text in texts if text.strip()], bad


def _text(raw: bytes, unit: Unit, field: str) -> str:
    if b"\0" in raw:
        raise ValueError("a NUL byte")
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (0x{raw[error.start]:02x})") from None
    if unit.kind == "dump":
        return wikipedia.text_of(line, _link_prefixes(unit.path))
    line = line.lstrip("\ufeff").strip("\r\n")
    fields = [name.strip() for name in field.split(",")]
    if unit.kind == "text":
        if not all(map(str.isdecimal, fields)):
            return line
        columns = line.split("\t")
        for name in fields:
            if int(name) >= len(columns):
                raise ValueError(f"{len(columns)} tab-separated columns, none is number {name}")
        return "\n".join(columns[int(name)] for name in fields)
    if not line.strip():
        return ""
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from None
    return "\n".join(filter(None, (_value(record, name) for name in fields)))


def _value(record: Any, field: str) -> str:
    if not isinstance(record, dict):
        raise ValueError(f"a JSON {type(record).__name__}; an object with {field!r} is needed")
    if field not in record:
        keys = ", ".join(map(repr, record))
        raise ValueError(f"no text under {field!r} (--field); keys: {keys}")
    text = record[field]
    if not isinstance(text, str):
        raise ValueError(f"{field!r} is a JSON {type(text).__name__}; a string is needed")
    problem = text_problem(text)
    if problem:
        raise ValueError(f"{field!r}: {problem}")
    return text


@functools.lru_cache(maxsize=16)
def _link_prefixes(path: str) -> FrozenSet[str]:
    with opened(path) as file:
        return wikipedia.prefixes(file.read(wikipedia.HEAD_BYTES))


def _raw_documents(unit: Unit, reading: Reading) -> Iterator[Tuple[int, bytes]]:
    """Yield (byte offset in the unit, bytes) of its documents."""
    border = _border(unit.kind, reading)
    if border is None:
        yield 0, unit.data
    elif unit.kind == "dump":
        yield from wikipedia.pages(unit.data)
    else:
        start = 0
        for match in border.finditer(unit.data):
            yield start, unit.data[start : match.start()]
            start = match.end()
        if start < len(unit.data):
            yield start, unit.data[start:]


@contextlib.contextmanager
def opened(path: str) -> Iterator[Any]:
    """Open a file, decompressed according to its name."""
    try:
        with open(path, "rb") as raw:
            if path.endswith(".gz"):
                yield gzip.GzipFile(fileobj=raw)
            elif path.endswith(".bz2"):
                yield bz2.BZ2File(raw)
            elif path.endswith(".zst"):
                zstandard = extra("zstandard", f"{path}: reading .zst")
                unpacker = zstandard.ZstdDecompressor()
                yield unpacker.stream_reader(raw, read_across_frames=True)
            else:
                yield raw
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
