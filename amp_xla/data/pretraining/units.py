"""A corpus as units of work: stretches of text, JSON lines and Wikipedia dumps, read independently.

The cut depends on the corpus alone, so however many machines and processes share the work, the
same units come out. A document belongs to the unit in which its line, its page, or the blank line
before it, begins. Plain files are cut by byte offset without being read; compressed ones are
streamed.
"""

from __future__ import annotations

import bz2
import contextlib
import dataclasses
import functools
import gzip
import io
import json
import os
import re
from typing import Any, FrozenSet, Iterator, List, Optional, Pattern, Tuple

from amp_xla.data.pretraining import records, wikipedia
from amp_xla.data.text.lines import unpacked
from amp_xla.errors import DataError

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
TEXT_SUFFIXES = (".txt", ".text", ".tsv", ".data")
DUMP_SUFFIXES = (".xml",)
EXTRACTED = re.compile(r"wiki_\d+")  # as WikiExtractor and wiki_zh call their files
COMPRESSED = (".bz2", ".gz", ".zst")
DOCUMENTS = ("line", "blank", "file")
ON_BAD_LINE = ("error", "skip")
UNIT_BYTES = (1 << 18, 64 << 20)
UNITS = 64  # a corpus is cut into about as many, within UNIT_BYTES


@dataclasses.dataclass(frozen=True)
class Reading:
    """How documents lie in files.

    Args:
      field: JSON key of the text; a number is a tab-separated column from 0 of a text file; of
        several with commas between, each is a paragraph of the text.
      documents: of text files: each ``line``, what stands between ``blank`` lines, or the ``file``.
      on_bad_line: what to do with what is not UTF-8, holds a NUL, or is not JSON.
    """

    field: str = "text"
    documents: str = "line"
    on_bad_line: str = "error"

    def __post_init__(self) -> None:
        for name, allowed in (("documents", DOCUMENTS), ("on_bad_line", ON_BAD_LINE)):
            if getattr(self, name) not in allowed:
                raise DataError(
                    f"{name}={getattr(self, name)!r} is not known; allowed: {', '.join(allowed)}"
                )


@dataclasses.dataclass(frozen=True)
class Unit:
    """Bytes ``begin`` to ``end`` of a file, unpacked; ``data`` is them if they were read already.

    ``name`` sorts as the corpus does; ``kind`` is ``text``, ``json`` or ``dump``.
    """

    name: str
    path: str
    begin: int
    end: int
    kind: str = "text"
    data: Optional[bytes] = dataclasses.field(default=None, repr=False)

    @property
    def size(self) -> int:
        """Bytes of text."""
        return self.end - self.begin


def files_of(corpus: str) -> List[str]:
    """The files that ``corpus`` means: files, folders and globs, with commas between them.

    Raises:
      DataError: one of them matches nothing.
    """
    found: List[str] = []
    for pattern in filter(None, (part.strip() for part in corpus.split(","))):
        if records.is_folder(pattern):
            inner = records.matching(records.join(pattern, "**/*"))
            inner += records.matching(records.join(pattern, "*"))
            files = sorted({p for p in inner if _known(p) and not records.is_folder(p)})
            allowed = ", ".join(TEXT_SUFFIXES + JSON_SUFFIXES + DUMP_SUFFIXES)
            more = ", ".join(COMPRESSED)
            problem = f"no file with a known ending in it (allowed: {allowed}, and {more})"
        else:
            exact = records.exists(pattern)
            files = [pattern] if exact else records.matching(pattern)
            files = [p for p in files if not records.is_folder(p)]
            problem = "no such file"
        if not files:
            raise DataError(f"corpus {pattern}: {problem}")
        found += files
    if not found:
        raise DataError("the corpus is an empty name; give files, folders or globs")
    return list(dict.fromkeys(found))


def _known(path: str) -> bool:
    name = os.path.basename(_unpacked_name(path))
    known = name.endswith(TEXT_SUFFIXES + JSON_SUFFIXES + DUMP_SUFFIXES)
    return (known and not name.startswith(".")) or EXTRACTED.fullmatch(name) is not None


def _unpacked_name(path: str) -> str:
    return os.path.splitext(path)[0] if path.endswith(COMPRESSED) else path


def kind_of(path: str) -> str:
    """``text``, ``json`` or ``dump``: by the name's ending; by the first sign where it has none."""
    name = _unpacked_name(path)
    for kind, suffixes in (("json", JSON_SUFFIXES), ("dump", DUMP_SUFFIXES)):
        if name.endswith(suffixes):
            return kind
    if name.endswith(TEXT_SUFFIXES):
        return "text"
    with opened(path) as file:
        begin = next(unpacked(path, file, records.size_of(path), 1024), b"")
    return "json" if begin.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") else "text"


def units(files: List[str], reading: Reading) -> Iterator[Unit]:
    """The units of a corpus in order; the same for the same files, whoever asks."""
    sizes = [records.size_of(path) for path in files]
    target = min(max(sum(sizes) // UNITS, UNIT_BYTES[0]), UNIT_BYTES[1])
    for number, (path, size) in enumerate(zip(files, sizes)):
        kind = kind_of(path)
        each = min(target, wikipedia.UNIT_BYTES) if kind == "dump" else target
        whole = reading.documents == "file" and kind == "text"
        if path.endswith(COMPRESSED):
            begin = 0
            for part, data in enumerate(_streamed(path, each, _border(kind, reading), whole)):
                end = begin + len(data)
                yield Unit(f"{number:05d}-{part:05d}", path, begin, end, kind, data)
                begin = end
            continue
        cuts = [0, size] if whole else list(range(0, size, each)) + [size]
        for part, (begin, end) in enumerate(zip(cuts, cuts[1:])):
            yield Unit(f"{number:05d}-{part:05d}", path, begin, end, kind)


def texts_of(unit: Unit, reading: Reading) -> Tuple[List[str], int]:
    """The documents of a unit, and how many lines, or pages, were left out as bad.

    Raises:
      DataError: a bad line, with file and byte offset, unless they are skipped.
    """
    texts: List[str] = []
    bad = 0
    for offset, raw in _raw_documents(unit, reading.documents):
        try:
            text = _text(raw, unit, reading.field)
        except ValueError as error:
            if reading.on_bad_line == "error":
                raise DataError(
                    f"{unit.path}, byte {offset}: {error}; mend it, or leave such lines out with "
                    f"--on-bad-line skip"
                ) from None
            bad += 1
            continue
        if text.strip():
            texts.append(text)
    return texts, bad


def _text(raw: bytes, unit: Unit, field: str) -> str:
    if b"\0" in raw:
        raise ValueError("a NUL byte")
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (0x{raw[error.start]:02x})") from None
    if unit.kind == "dump":
        return wikipedia.text_of(line, _prefixes(unit.path))
    line = line.lstrip("\ufeff")
    fields = [name.strip() for name in field.split(",")]
    if unit.kind == "text":
        if not all(map(str.isdigit, fields)):
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
    texts = [_value(record, name) for name in fields]
    return "\n".join(filter(None, texts))


def _value(record: Any, field: str) -> str:
    text = record.get(field) if isinstance(record, dict) else None
    if not isinstance(text, str):
        found = ", ".join(map(repr, record)) if isinstance(record, dict) else type(record).__name__
        raise ValueError(f"no text under {field!r} (--field); found: {found}")
    if "\0" in text:
        raise ValueError("a NUL character")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # JSON's \ud800 without its other half
        raise ValueError("half a surrogate pair") from None
    return text


@functools.lru_cache(maxsize=16)
def _prefixes(path: str) -> FrozenSet[str]:
    with opened(path) as file:
        return wikipedia.prefixes(file.read(wikipedia.HEAD_BYTES))


def _raw_documents(unit: Unit, documents: str) -> Iterator[Tuple[int, bytes]]:
    """(byte offset, bytes) of the documents that belong to the unit."""
    if unit.data is not None:
        for offset, raw in _cut(io.BytesIO(unit.data), 0, unit.size, unit.kind, documents):
            yield unit.begin + offset, raw
        return
    with records.opened(unit.path) as file:
        yield from _cut(file, unit.begin, unit.end, unit.kind, documents)


def _cut(file: Any, begin: int, end: int, kind: str, documents: str) -> Iterator[Tuple[int, bytes]]:
    if kind == "dump":
        return wikipedia.pages(file, begin, end)
    return _split(file, begin, end, "line" if kind == "json" else documents)


def _split(file: Any, begin: int, end: int, kind: str) -> Iterator[Tuple[int, bytes]]:
    if kind == "file":
        file.seek(begin)
        yield begin, file.read(end - begin)
        return
    position = begin
    if begin:  # the line that runs into this unit belongs to the one before
        file.seek(begin - 1)
        position = begin - 1 + len(file.readline())
    else:
        file.seek(0)
    if kind == "line":
        while position < end:
            line = file.readline()
            if not line:
                return
            yield position, line.rstrip(b"\r\n")
            position += len(line)
        return
    mine = begin == 0  # the file's first document has no blank line before it
    start, lines = position, []  # type: Tuple[int, List[bytes]]
    while True:
        line = file.readline()
        if line.strip():
            if mine:
                lines.append(line)
            elif position >= end:
                return
        else:
            if lines:
                yield start, b"".join(lines)
            if not line or position >= end:
                return
            mine, lines, start = True, [], position + len(line)
        position += len(line)


def _border(kind: str, reading: Reading) -> Pattern[bytes]:
    """What stands after a document."""
    if kind == "dump":
        return wikipedia.BORDER
    blank = kind == "text" and reading.documents == "blank"
    return re.compile(rb"\n[ \t\r]*\n" if blank else rb"\n")


def _streamed(path: str, target: int, border: Pattern[bytes], whole: bool) -> Iterator[bytes]:
    """A compressed file in stretches of about ``target`` bytes that end where a document does."""
    kept = b""
    with opened(path) as file:
        for data in unpacked(path, file, records.size_of(path), target):
            kept += data
            if whole or len(kept) < target:
                continue
            ends = [match.end() for match in border.finditer(kept)]
            if ends:
                yield kept[: ends[-1]]
                kept = kept[ends[-1] :]
    if kept:
        yield kept


@contextlib.contextmanager
def opened(path: str) -> Iterator[Any]:
    """A file, decompressed as its name says."""
    with records.opened(path) as raw:
        if path.endswith(".gz"):
            yield gzip.GzipFile(fileobj=raw)
        elif path.endswith(".bz2"):
            yield bz2.BZ2File(raw)
        elif path.endswith(".zst"):
            try:
                import zstandard
            except ImportError:
                raise DataError(
                    f"{path}: reading .zst needs the package zstandard (pip install zstandard)"
                ) from None
            yield zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
        else:
            yield raw
