"""Text files, compressed or not: their lines, and lines that are not UTF-8 text."""

from __future__ import annotations

import collections
import contextlib
import csv
import io
import json
import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from amp_xla.data.text.unpacked import called, plain_name, read_bytes
from amp_xla.errors import DataError

# How files that are no text begin, and what they are
_NO_TEXT = {
    rb"PAR1": "Parquet that was compressed again: unpack it",
    rb"\xd0\xcf\x11\xe0": "Excel: save it as CSV (UTF-8)",
    rb"7z\xbc\xaf|Rar!|.{257}ustar": "an archive: unpack it",
    rb"\x1f\x8b|BZh\d1AY|\xfd7zXZ|PK\x03\x04|\x28\xb5\x2f\xfd": "compressed twice: unpack it once",
    rb"version https://git-lfs": "a pointer of Git LFS: `git lfs pull` fetches the data",
    rb"\s*<(\?xml|sentences|Reviews)": "XML: a line per sample is needed. SemEval's: "
    "python -c \"import sys, xml.etree.ElementTree as E; [print(s.findtext('text'), "
    "a.get('polarity'), sep='\\t') for s in E.parse(sys.argv[1]).iter('sentence') "
    "for a in s.iter() if a.get('polarity')]\" FILE > new-file",
    rb"%PDF-|ARROW1|SQLite format 3|\x80[\x02-\x05]": "no text; text, CSV or JSON lines are needed",
}
EXAMINED = 10_000  # rows that decide what the columns are
OBJECTS = 100  # JSON objects whose keys are collected: the first may lack a key
JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
JSON = re.compile(r"\s*([{]\s*(\"|$)|\[\s*([{]|$))")  # how JSON begins in a file of any name
# A tag behind a token, as in CoNLL. A cell with several tags does not match.
TAG = re.compile(r"O|[BIESMLU]-(?!.*[\s\x02](O|[BIESMLU]-)).*\S")
_BETWEEN = re.compile(r"[\s,\[\]]*")  # around the objects of an array
# A row whose cells all have quotation marks, and a cell that has marks inside, as programs write
_MARKED = re.compile('"[^"\t]*(""[^"\t]*)*"(\t"[^"\t]*(""[^"\t]*)*")+')
_DOUBLED = re.compile('(^|\t)"[^"\t]*(""[^"\t]*)+"(\t|$)')
_BACKSLASH = re.compile(r'(\\["\\])|\\(?=.)')  # escapes, and backslashes that are text
_BEHIND = re.compile('" +(,|\t|$)')
_RETURN = "\udc0d"  # a carriage return, which ends no row; no UTF-8 has this character
_SPACED = re.compile('(^|,) +"[^"]*" *(,|$)')  # a space before a quotation mark, as people write
csv.field_size_limit(1 << 27)  # characters of a cell: enough for a document, not for a long file

Line = Tuple[int, str]


class BadLine(NamedTuple):
    """An unusable line: its number from 1, and the reason."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


class LineError(DataError):
    """An unusable line; ``index`` counts lines from 0, but the message counts from 1."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"line {index + 1}: {reason}")
        self.index, self.reason = index, reason


class Table(NamedTuple):
    """The rows of a file that are not blank.

    Attributes:
      path: name of the file, for messages.
      format: ``tab`` or ``comma``: what separates the columns; ``quoted``: tabs, and quotation
        marks around cells; or ``json``.
      rows: line number and content of each row: columns with tabs between them, or JSON.
      bad: the lines that are not UTF-8 text, or have wrong quotation marks.
    """

    path: str
    format: str
    rows: List[Tuple[int, Any]]
    bad: List[BadLine]

    @classmethod
    def read(cls, path: str) -> Table:
        """Read a file; ``-`` is standard input."""
        return cls.of(path, *every_line(path))

    @classmethod
    def of(
        cls, path: str, lines: Sequence[str], bad: List[BadLine], comma: bool = False
    ) -> Table:  # fmt: skip
        """Return the table in ``lines``; ``comma``: read CSV, whatever the file's name is."""
        rows: Any = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        name, first = plain_name(path).lower(), rows[0][1] if rows else ""
        if rows and (name.endswith(JSON_SUFFIXES) or JSON.match(first)):
            return cls(path, "json", _inside(_json_rows(path, lines, rows, bad)), bad)
        # Most rows of a file with tabs between columns have the same number of them.
        tabs, fitting = "\t" in first, _fitting(rows)
        if comma or (name.endswith(".csv") and not (tabs and 2 * fitting > len(rows))):
            rows, wrong = _quoted(path, lines, ",")
            other = re.search("[;|]", first)
            if wrong and other and not (comma or re.search("[,\t]", first)):
                raise DataError(
                    f"{called(path)}: no comma, but {other[0]!r} in its first line; only tabs and, "
                    f"in a .csv file, commas separate columns. First line: {first[:80]!r}"
                )
            rows = rows[bool(rows) and rows[0][1].lower() == "sep=\t" :]  # a line for Excel
            return cls(path, "comma", rows, [*bad, *wrong])
        marks = [line for _, line in rows if line[0] == '"' or '\t"' in line]
        most = 2 * len(list(filter(_MARKED.fullmatch, marks))) > len(rows)
        marked = most or any(map(_DOUBLED.search, marks))
        if marked or (marks and fitting < len(rows)):  # cells with line breaks, if that fits better
            table, wrong = _quoted(path, lines, "\t")
            fewer = len(wrong) + _misfits(table) < _misfits(rows) + marked
            if fewer and _fitting(table) >= fitting:
                return cls(path, "quoted", table, [*bad, *wrong])
        return cls(path, "tab", rows, bad)


def _fitting(rows: Sequence[Line]) -> int:
    """Return the number of rows with as many tabs as the first."""
    return sum(line.count("\t") == rows[0][1].count("\t") for _, line in rows)


def _misfits(rows: Sequence[Line]) -> int:
    """Return the number of rows with more or fewer tabs than is usual in the file."""
    times = collections.Counter(line.count("\t") for _, line in rows)
    return len(rows) - max(times.values(), default=0)


def _quoted(path: str, lines: Sequence[str], mark: str) -> Tuple[List[Line], List[BadLine]]:
    """Parse a table with quotation marks; return rows with tabs between cells, and bad lines.

    A row has the number of its last line. Quotation marks inside a cell are doubled or (in files of
    Spark and MySQL) follow a backslash. Parse in both ways; return the one with fewer bad lines.
    """
    spaces = any(map(_SPACED.search, lines[:2]))
    how: Dict[str, Any] = {"delimiter": mark, "skipinitialspace": spaces}
    each = [_csv(path, [*lines], **how)]
    if any('\\"' in line for line in lines):
        escaped = [_BACKSLASH.sub(lambda m: m[1] or r"\\", line) for line in lines]
        each.append(_csv(path, escaped, escapechar="\\", **how))
    return min(each, key=lambda rows: len(rows[1]))


def _csv(path: str, lines: List[str], **how: Any) -> Tuple[List[Line], List[BadLine]]:
    rows: List[Line] = []
    bad: List[BadLine] = []
    begin = end = 0
    while begin < len(lines):
        rest = (f"{lines[i]}\n".replace("\r", _RETURN) for i in range(begin, len(lines)))
        reader = csv.reader(rest, strict=True, **how)
        try:
            for row in reader:
                end = begin + reader.line_num
                if any(map(str.strip, row)):
                    line = "\t".join(cell.replace("\t", " ") for cell in row)
                    rows.append((end, line.replace(_RETURN, "\r")))
            break
        except csv.Error as error:
            begin, line = end, _BEHIND.sub(r'"\1', lines[end])
            if line != lines[end]:  # again, without spaces behind marks
                lines[end] = line
                continue
            end = begin = end + 1  # continue after the first line of this row
            reason = f"{error}; is a quotation mark missing, or not doubled?"
            bad.append(BadLine(path, end, reason))
    return rows, bad


def _json_rows(
    path: str, lines: Sequence[str], rows: List[Line], bad: Sequence[BadLine]
) -> List[Tuple[int, Any]]:
    """Return JSON lines as they are; parse an array, or objects that span several lines."""
    with contextlib.suppress(ValueError):
        json_object(rows[0][1])
        return list(rows)
    text = "\n".join(lines)
    values: List[Tuple[int, Any]] = []
    decode, at, counted, number = json.JSONDecoder().raw_decode, 0, 0, 1
    while True:
        begin = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
        number += text.count("\n", counted, begin)
        if begin == len(text):
            break
        try:
            value, at = decode(text, begin)
        except (ValueError, RecursionError) as error:
            if not values:
                return list(rows)  # JSON lines, and the first is bad
            raise DataError(f"{path}:{number}: not JSON: {error}") from None
        values.append((number, value))
        counted = begin
    if bad:
        raise DataError(str(bad[0]))
    if text.lstrip().startswith("[") and not text.rstrip().endswith("]"):
        raise DataError(f"{path}:{number}: the JSON array has no end; is the file complete?")
    return values


def _inside(rows: List[Tuple[int, Any]]) -> List[Tuple[int, Any]]:
    """Return the objects in ``{"data": [...]}`` if that is the whole file; else the rows."""
    with contextlib.suppress(ValueError):
        data = json_object(rows[0][1]).get("data") if len(rows) == 1 else None
        if isinstance(data, list) and all(isinstance(each, dict) for each in data):
            return [(rows[0][0], each) for each in data]
    return rows


def json_object(content: Any) -> Dict[str, Any]:
    """Return the JSON object in ``content``, a line or parsed JSON; else raise ``ValueError``."""
    try:
        record = json.loads(content) if isinstance(content, str) else content
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise ValueError(f"JSON, but not an object: {json.dumps(record, ensure_ascii=False)[:40]}")
    return record


def cells_of(line: str) -> List[str]:
    """Return the cells of a row."""
    return [cell.strip() for cell in line.split("\t")]


def numbers(cells: Sequence[Any]) -> Tuple[str, ...]:
    """Return "0", "1", ..., the names of columns in a file without a header."""
    return tuple(map(str, range(len(cells))))


def count(cells: Sequence[Any]) -> str:
    """Return the number of columns in words, such as "2 columns"."""
    return "1 column" if len(cells) == 1 else f"{len(cells)} columns"


def keys(table: Table) -> List[str]:
    """Return the keys of the first JSON objects."""
    found: Dict[str, None] = {}
    for _, content in table.rows[:OBJECTS]:
        with contextlib.suppress(ValueError):  # reported later, with the line number
            found.update(dict.fromkeys(json_object(content)))
    if table.rows and not found:
        number, content = table.rows[0]
        raise DataError(
            f"{called(table.path)}:{number}: not a JSON object: {str(content)[:60]!r}; objects are "
            "needed, one per line or in an array"
        )
    return list(found)


def every_line(path: str) -> Tuple[List[str], List[BadLine]]:
    r"""Return all lines of a file, including blank ones, and the lines that are not UTF-8 text.

    A line that is not UTF-8 text is an empty string in the first list. Only ``\n`` ends a line;
    carriage returns before it and byte order marks are dropped. ``-`` is standard input.
    """
    data = read_bytes(path)
    refuse_encoding(path, data)
    lines: List[str] = []
    bad: List[BadLine] = []
    # str.splitlines would also cut at U+2028, \x0b and others inside a text.
    for number, raw in enumerate(io.BytesIO(data), start=1):
        try:
            # Files that were appended to each other have a mark inside.
            lines.append(decoded(raw.rstrip(b"\n")).lstrip("\ufeff").rstrip("\r"))
        except ValueError as reason:
            lines.append("")
            bad.append(BadLine(path, number, str(reason)))
    return lines, bad


def decoded(raw: bytes) -> str:
    """Decode UTF-8; raise ``ValueError`` for bytes that are not UTF-8, and for NUL bytes."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"0x{raw[error.start]:02x}"
        raise ValueError(f"is not UTF-8: byte {error.start + 1} is {byte}") from None
    if "\0" in text:
        raise ValueError("contains a NUL byte")
    return text


def text_problem(text: str) -> Optional[str]:
    """Return the reason why a text cannot be used, or None if it can."""
    if "\0" in text:
        return "contains a NUL character"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:  # such as \ud800 in JSON, without its second half
        return f"character {error.start + 1} is half a surrogate pair"
    return None


def refuse_encoding(path: str, data: bytes) -> None:
    r"""Raise ``DataError`` if data are UTF-16, UTF-32 or no text, or end lines only with ``\r``.

    UTF-16 is recognized by its byte order mark, or by zeros in every other byte.
    """
    begin = data[:1024]
    for pattern, other in _NO_TEXT.items():
        if re.match(pattern, begin, re.DOTALL):
            raise DataError(f"{called(path)}: the file is {other}")
    few, zeros = sorted((begin[0::2].count(0), begin[1::2].count(0)))
    is_utf16 = len(begin) > 3 and 4 * zeros > len(begin) and 4 * few < zeros
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or is_utf16:
        name = "UTF-32" if 2 * (few + zeros) > len(begin) else "UTF-16"
        raise DataError(
            f"{called(path)}: the file is {name}; UTF-8 is needed "
            f"(iconv -f {name} -t UTF-8 {path} > new-file converts it)"
        )
    if len(begin) > 99 and 20 * (few + zeros) > len(begin):
        raise DataError(
            f"{called(path)}: not text: {few + zeros} of its first {len(begin):,} bytes are 0"
        )
    content = data.rstrip(b"\r\n")
    if b"\r" in content and b"\n" not in content:
        raise DataError(
            f"{called(path)}: only carriage returns end its lines; line feeds are needed "
            f"(tr '\\r' '\\n' < {path} > new-file converts it)"
        )
