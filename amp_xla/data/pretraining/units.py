"""Units of a corpus: stretches of text, JSON lines and Wikipedia dumps that are read independently.

The cut depends on the corpus alone, so any number of machines and processes gets the same units. A
document belongs to the unit in which its line, its page, or the blank line before it, begins.
Plain files are cut by byte offset without being read; compressed files are streamed.
"""

from __future__ import annotations

import bz2
import contextlib
import dataclasses
import functools
import glob
import gzip
import io
import json
import os
import re
from typing import Any, Dict, FrozenSet, Iterator, List, Optional, Pattern, Tuple

from amp_xla.data.pretraining import wikipedia
from amp_xla.data.text.lines import UTF16_MARKS, unpacked
from amp_xla.errors import DataError

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
TEXT_SUFFIXES = (".txt", ".text", ".tsv", ".data")
DUMP_SUFFIXES = (".xml",)
SUFFIXES = TEXT_SUFFIXES + JSON_SUFFIXES + DUMP_SUFFIXES
COMPRESSED = (".bz2", ".gz", ".zst")
EXTRACTED = re.compile(r"wiki_\d+")  # file names of WikiExtractor and wiki_zh
UNIT_BYTES = (1 << 18, 16 << 20)
UNITS = 64  # a corpus is cut into about this many, within UNIT_BYTES


@dataclasses.dataclass(frozen=True)
class Reading:
    """Format of the documents in a corpus, as the flags of these names describe it."""

    field: str = "text"
    documents: str = "line"
    on_bad_line: str = "error"


@dataclasses.dataclass(frozen=True)
class Unit:
    """Bytes ``begin`` to ``end`` of a file, decompressed.

    ``name`` sorts in corpus order; ``kind`` is ``text``, ``json`` or ``dump``; ``data`` holds the
    bytes of a compressed file.
    """

    name: str
    path: str
    begin: int
    end: int
    kind: str = "text"
    data: Optional[bytes] = dataclasses.field(default=None, repr=False)

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.end - self.begin


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
    if head[:2] in UTF16_MARKS or head.count(0) * 4 > len(head):
        raise DataError(
            f"{path}: the file is UTF-16; UTF-8 is needed (iconv -f UTF-16 -t UTF-8 FILE > NEW)"
        )
    name = _unpacked_name(path)
    if name.endswith(DUMP_SUFFIXES):
        return "dump"
    if name.endswith(JSON_SUFFIXES):
        return "json"
    begins_as_json = head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")
    return "json" if begins_as_json and not name.endswith(TEXT_SUFFIXES) else "text"


def units(files: List[str], reading: Reading) -> Iterator[Unit]:
    """Yield the units of a corpus in order."""
    sizes = [os.path.getsize(path) for path in files]
    target = min(max(sum(sizes) // UNITS, UNIT_BYTES[0]), UNIT_BYTES[1])
    for number, (path, size) in enumerate(zip(files, sizes)):
        kind = kind_of(path)
        most = min(target, wikipedia.UNIT_BYTES) if kind == "dump" else target
        whole = reading.documents == "file" and kind == "text"
        if path.endswith(COMPRESSED):
            begin = 0
            for part, data in enumerate(_streamed(path, most, _border(kind, reading), whole)):
                end = begin + len(data)
                yield Unit(f"{number:05d}-{part:05d}", path, begin, end, kind, data)
                begin = end
            continue
        cuts = [0, size] if whole else [*range(0, size, most), size]
        for part, (begin, end) in enumerate(zip(cuts, cuts[1:])):
            yield Unit(f"{number:05d}-{part:05d}", path, begin, end, kind)


def texts_of(unit: Unit, reading: Reading) -> Tuple[List[str], int]:
    """Return the documents of a unit, and how many bad lines or pages were skipped.

    Raises:
      DataError: a bad line, with file and byte offset, unless bad lines are skipped.
    """
    texts: List[str] = []
    bad = 0
    for offset, raw in _raw_documents(unit, reading.documents):
        try:
            texts.append(_text(raw, unit, reading.field))
        except ValueError as error:
            if reading.on_bad_line == "error":
                raise DataError(
                    f"{unit.path}, byte {offset}: {error}; correct it, or leave out bad lines "
                    "with --on-bad-line skip"
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
    line = line.lstrip("\ufeff")
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
    if "\0" in text:
        raise ValueError("a NUL character")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("half a surrogate pair") from None
    return text


@functools.lru_cache(maxsize=16)
def _link_prefixes(path: str) -> FrozenSet[str]:
    with opened(path) as file:
        return wikipedia.prefixes(file.read(wikipedia.HEAD_BYTES))


def _raw_documents(unit: Unit, documents: str) -> Iterator[Tuple[int, bytes]]:
    """Yield (byte offset, bytes) of the documents that belong to a unit."""
    cut = wikipedia.pages
    if unit.kind != "dump":
        cut = functools.partial(_split, documents="line" if unit.kind == "json" else documents)
    if unit.data is not None:
        for offset, raw in cut(io.BytesIO(unit.data), 0, unit.size):
            yield unit.begin + offset, raw
    else:
        with opened(unit.path) as file:
            yield from cut(file, unit.begin, unit.end)


def _split(file: Any, begin: int, end: int, documents: str) -> Iterator[Tuple[int, bytes]]:
    if documents == "file":
        file.seek(begin)
        yield begin, file.read(end - begin)
        return
    position = begin
    if begin:  # the line that crosses into this unit belongs to the previous one
        file.seek(begin - 1)
        position = begin - 1 + len(file.readline())
    if documents == "line":
        while position < end:
            line = file.readline()
            if not line:
                return
            yield position, line.rstrip(b"\r\n")
            position += len(line)
        return
    in_own_document = begin == 0  # the file's first document has no blank line before it
    start = position
    lines: List[bytes] = []
    while True:
        line = file.readline()
        if line.strip():
            if in_own_document:
                lines.append(line)
            elif position >= end:
                return
        else:
            if lines:
                yield start, b"".join(lines)
            if not line or position >= end:
                return
            in_own_document, lines, start = True, [], position + len(line)
        position += len(line)


def _border(kind: str, reading: Reading) -> Pattern[bytes]:
    """Return the pattern that ends a document."""
    if kind == "dump":
        return wikipedia.BORDER
    blank = kind == "text" and reading.documents == "blank"
    return re.compile(rb"\n[ \t\r]*\n" if blank else rb"\n")


def _streamed(path: str, target: int, border: Pattern[bytes], whole: bool) -> Iterator[bytes]:
    """Yield a compressed file in parts of about ``target`` bytes that end with a document."""
    rest = b""
    with opened(path) as file:
        for data in unpacked(path, file, os.path.getsize(path), target):
            rest += data
            if whole or len(rest) < target:
                continue
            ends = [match.end() for match in border.finditer(rest)]
            if ends:
                yield rest[: ends[-1]]
                rest = rest[ends[-1] :]
    if rest:
        yield rest


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
                yield _zstandard(path).stream_reader(raw, read_across_frames=True)
            else:
                yield raw
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error


def _zstandard(path: str) -> Any:
    try:
        import zstandard
    except ImportError:
        raise DataError(
            f"{path}: reading .zst needs the package zstandard (pip install zstandard)"
        ) from None
    return zstandard.ZstdDecompressor()
