"""Read labelled texts: tab separated with or without a header, JSON lines, gzip of each."""

from __future__ import annotations

import json
import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from amp_xla.data.text.dataset import BadLine, Dataset
from amp_xla.data.text.fields import Fields, choose, is_header
from amp_xla.data.text.lines import Line, read_lines
from amp_xla.errors import DataError

JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
EXAMINED = 100  # JSON lines whose keys are collected: the first line may lack one
SHOWN_BAD_LINES = 5
WITHOUT_HEADER = {2: ["text", "label"], 3: ["text", "pair", "label"]}  # by number of columns

Sample = Tuple[str, Optional[str], str]
# The fields, the lines with samples, and a function from a line to (text, pair, label).
Format = Tuple[Fields, Sequence[Line], Callable[[str], Any]]


class Unusable(Exception):
    """The reason why a line is no sample."""


def read(
    path: str,
    text_field: Optional[str] = None,
    label_field: Optional[str] = None,
    pair_field: Optional[str] = None,
    on_bad_line: str = "error",
) -> Dataset:
    """Read a file of texts and labels; its name and its first line show the format.

    - ``text<TAB>label`` or ``text<TAB>pair<TAB>label`` without a header;
    - tab separated with a header (GLUE, CLUE);
    - one JSON object per line (``.jsonl``, ``.json``, or a first line that starts with ``{``).

    Each may be gzipped. Labels may be text, numbers or booleans; they become text. Blank lines are
    skipped.

    Args:
      path: the file; ``-`` is standard input.
      text_field, label_field, pair_field: names of columns or keys; None = the usual ones. In a
        file without a header, column numbers from 0.
      on_bad_line: ``"error"`` raises for unusable lines, ``"skip"`` returns them in ``bad_lines``.

    Raises:
      DataError: The file is missing or empty, lacks a field, or has bad lines.
    """
    lines, bad = read_lines(path)
    if not lines:
        raise _unusable(path, bad, len(bad))
    plain = path[:-3] if path.endswith(".gz") else path
    is_json = plain.endswith(JSON_SUFFIXES) or lines[0][1].lstrip().startswith("{")
    format_of = _json_lines if is_json else _tab_separated
    fields, sample_lines, parse = format_of(
        path, lines, Fields(text_field, pair_field, label_field)
    )

    samples: List[Sample] = []
    for number, line in sample_lines:
        try:
            samples.append(_checked(parse(line), fields))
        except Unusable as reason:
            bad.append(BadLine(path, number, str(reason)))
    bad.sort(key=lambda line: line.line)
    if bad and (on_bad_line == "error" or not samples):
        raise _unusable(path, bad, len(samples) + len(bad))
    if not samples:
        raise DataError(f"{path}: a header and no sample below it")
    texts, pairs, labels = (list(column) for column in zip(*samples))
    return Dataset(texts, None if fields.pair is None else pairs, labels, path, bad)


def _tab_separated(path: str, lines: Sequence[Line], given: Fields) -> Format:
    """Return the format of columns between tabs. Nothing is quoted, as in GLUE."""
    number, line = lines[0]
    columns = [name.strip() for name in line.split("\t")]
    header = is_header(columns)
    names = [name for name in given if name is not None]
    if names and not header and all(map(str.isdigit, names)):
        columns = [str(i) for i in range(len(columns))]
        fields = choose(path, columns, given)
    elif names or header:
        fields = choose(path, columns, given)
        lines = lines[1:]
    elif len(columns) in WITHOUT_HEADER:
        columns = WITHOUT_HEADER[len(columns)]
        fields = Fields("text", "pair" if "pair" in columns else None, "label")
    else:
        raise DataError(
            f"{path}:{number}: {_count(columns)} between tabs, and no known header. Needed: "
            "text<TAB>label, or text<TAB>second text<TAB>label, or a header, with --text-field and "
            "--label-field if its names are unusual, or these two as column numbers from 0. "
            f"First line: {line[:80]!r}"
        )
    positions = [None if name is None else columns.index(name) for name in fields]

    def parse(line: str) -> Any:
        cells = line.split("\t")
        if len(cells) != len(columns):
            raise Unusable(f"{_count(cells)}, not {len(columns)}")
        return [None if i is None else cells[i] for i in positions]

    return fields, lines, parse


def _count(columns: Sequence[str]) -> str:
    return "1 column" if len(columns) == 1 else f"{len(columns)} columns"


def _json_lines(path: str, lines: Sequence[Line], given: Fields) -> Format:
    """Return the format of one JSON object per line."""
    number, first = lines[0]
    if first.lstrip().startswith("["):
        raise DataError(
            f"{path}: one JSON array; one object per line is needed (jq -c '.[]' writes it so)"
        )
    keys: Dict[str, None] = {}
    for _, line in lines[:EXAMINED]:
        try:
            keys.update(dict.fromkeys(_object(line)))
        except Unusable:
            continue  # reported with its number later
    if not keys:
        raise DataError(
            f"{path}:{number}: not a JSON object: {first[:60]!r}; one object per line is needed"
        )
    fields = choose(path, list(keys), given)

    def parse(line: str) -> Any:
        record = _object(line)
        names = fields._asdict().items()
        return [None if name is None else _value(record, name, kind) for kind, name in names]

    return fields, lines, parse


def _object(line: str) -> Dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Unusable(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise Unusable(f"JSON, but not an object: {line.strip()[:40]}")
    return record


def _value(record: Dict[str, Any], field: str, kind: str) -> str:
    if field not in record:
        raise Unusable(f"no field {field!r}")
    value = record[field]
    if isinstance(value, str):
        return value
    if kind != "label":
        raise Unusable(f"{field} is {json.dumps(value)[:40]}; a text is a string")
    if isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return json.dumps(value)  # true, 3, 0.5: as in the file
    raise Unusable(
        f"{field} is {json.dumps(value)[:40]}; a label is a string, a number or a boolean"
    )


def _checked(sample: Sample, fields: Fields) -> Sample:
    for value, field in zip(sample, fields):
        if value is None or field is None:
            continue
        if not value.strip():
            raise Unusable(f"{field} is empty")
        if "\0" in value:
            raise Unusable(f"{field} holds a NUL character")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:  # JSON's \ud800 without its other half
            place = error.start + 1
            raise Unusable(f"{field}: character {place} is half a surrogate pair") from None
    text, pair, label = sample
    return text, pair, label.strip()


def _unusable(path: str, bad: Sequence[BadLine], total: int) -> DataError:
    listed = [f"  {line}" for line in bad[:SHOWN_BAD_LINES]]
    if len(bad) > len(listed):
        listed.append(f"  ... and {len(bad) - len(listed):,} more")
    advice = "No line is left. Is it the right file? Are the field names right?"
    if len(bad) < total:
        advice = "Correct them, or leave them out with --on-bad-line skip."
    return DataError(
        "\n".join([f"{path}: {len(bad):,} of {total:,} lines cannot be used:", *listed, advice])
    )
