"""A corpus as units of work: stretches of text files and JSON lines that are read independently.

The cut depends on the corpus alone, so however many machines and processes share the work, the
same units come out. A document belongs to the unit in which its line, or the blank line before
it, begins. Plain files are cut by byte offset without being read; compressed ones are streamed.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import os
import re
from typing import Any, BinaryIO, Iterator, List, Optional, Tuple

from amp_xla.data.pretraining import records
from amp_xla.data.text.lines import unpacked
from amp_xla.errors import DataError

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
TEXT_SUFFIXES = (".txt", ".text", ".tsv", ".data")
COMPRESSED = (".gz", ".zst")
DOCUMENTS = ("line", "blank", "file")
ON_BAD_LINE = ("error", "skip")
UNIT_BYTES = (1 << 18, 64 << 20)
UNITS = 64  # a corpus is cut into about as many, within UNIT_BYTES


@dataclasses.dataclass(frozen=True)
class Reading:
    """How documents lie in files.

    Args:
      field: JSON key of the text; a number is a tab-separated column from 0 of a text file.
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
    """Bytes ``begin`` to ``end`` of a file, or ``data`` that was read already.

    ``name`` sorts as the corpus does.
    """

    name: str
    path: str
    begin: int
    end: int
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
            allowed = ", ".join(TEXT_SUFFIXES + JSON_SUFFIXES)
            problem = f"no file with a known ending in it (allowed: {allowed}, and .gz, .zst)"
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
    base = os.path.splitext(path)[0] if path.endswith(COMPRESSED) else path
    return base.endswith(TEXT_SUFFIXES + JSON_SUFFIXES) and not os.path.basename(path).startswith(
        "."
    )


def units(files: List[str], reading: Reading) -> Iterator[Unit]:
    """The units of a corpus in order; the same for the same files, whoever asks."""
    sizes = [records.size_of(path) for path in files]
    target = min(max(sum(sizes) // UNITS, UNIT_BYTES[0]), UNIT_BYTES[1])
    for number, (path, size) in enumerate(zip(files, sizes)):
        whole = reading.documents == "file" and not _is_json(path)
        if path.endswith(COMPRESSED):
            for part, data in enumerate(_streamed(path, target, reading, whole)):
                yield Unit(f"{number:05d}-{part:05d}", path, 0, len(data), data)
            continue
        cuts = [0, size] if whole else list(range(0, size, target)) + [size]
        for part, (begin, end) in enumerate(zip(cuts, cuts[1:])):
            yield Unit(f"{number:05d}-{part:05d}", path, begin, end)


def texts_of(unit: Unit, reading: Reading) -> Tuple[List[str], int]:
    """The documents of a unit, and how many lines were left out as bad.

    Raises:
      DataError: a bad line, with file and byte offset, unless they are skipped.
    """
    kind = "line" if _is_json(unit.path) else reading.documents
    texts: List[str] = []
    bad = 0
    for offset, raw in _raw_documents(unit, kind):
        try:
            text = _text(raw, unit.path, reading.field)
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


def _is_json(path: str) -> bool:
    base = os.path.splitext(path)[0] if path.endswith(COMPRESSED) else path
    return base.endswith(JSON_SUFFIXES)


def _text(raw: bytes, path: str, field: str) -> str:
    if b"\0" in raw:
        raise ValueError("a NUL byte")
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (0x{raw[error.start]:02x})") from None
    line = line.lstrip("\ufeff")
    if not _is_json(path):
        if not field.isdigit():
            return line
        columns = line.split("\t")
        if int(field) >= len(columns):
            raise ValueError(f"{len(columns)} tab-separated columns, none is number {field}")
        return columns[int(field)]
    if not line.strip():
        return ""
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from None
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


def _raw_documents(unit: Unit, kind: str) -> Iterator[Tuple[int, bytes]]:
    """(byte offset, bytes) of the documents that belong to the unit."""
    if unit.data is not None:
        yield from _split(io.BytesIO(unit.data), 0, unit.end, kind)
        return
    with records.opened(unit.path) as file:
        yield from _split(file, unit.begin, unit.end, kind)


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


def _streamed(path: str, target: int, reading: Reading, whole: bool) -> Iterator[bytes]:
    """A compressed file in stretches of about ``target`` bytes that end where a document does."""
    blank = reading.documents == "blank" and not _is_json(path)
    border = re.compile(rb"\n[ \t\r]*\n" if blank else rb"\n")
    kept = b""
    with records.opened(path) as raw, _decompressed(raw, path) as file:
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


def _decompressed(raw: BinaryIO, path: str) -> Any:
    if path.endswith(".gz"):
        return gzip.GzipFile(fileobj=raw)
    try:
        import zstandard
    except ImportError:
        raise DataError(
            f"{path}: reading .zst needs the package zstandard (pip install zstandard)"
        ) from None
    return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
