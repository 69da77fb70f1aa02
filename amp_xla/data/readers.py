"""Text files to `Dataset`: tab separated with or without a header, JSON lines, gzip of each."""

from __future__ import annotations

import json
import math
import os
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

from amp_xla.data.dataset import BadLine, Dataset
from amp_xla.data.errors import DataError
from amp_xla.data.lines import Line, read_lines

__all__ = ["BadLine", "DataError", "Dataset", "read"]

# Column names that are known without being asked for, (text, pair), first hit wins: GLUE's and
# CLUE's, then what exports are commonly called.
KNOWN_TEXTS: Tuple[Tuple[str, Optional[str]], ...] = (
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),  # GLUE QNLI
    ("#1 string", "#2 string"),  # GLUE MRPC
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("query", "title"),
    ("sentence", None),
    ("text", None),
    ("review", None),
    ("content", None),
    ("question", None),
)
KNOWN_LABELS = ("label", "gold_label", "is_duplicate", "quality", "labels", "class", "category",
                "sentiment")
JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
SHOWN_BAD_LINES = 5

Sample = Tuple[str, Optional[str], Optional[str]]


class _Bad(Exception):
    """Why the line at hand gives no sample."""


class _Fields(NamedTuple):
    """Names of JSON keys, or of columns, that hold the text, the second text and the label."""

    text: str
    pair: Optional[str]
    label: Optional[str]


def read(
    path: str,
    text_field: Optional[str] = None,
    label_field: Optional[str] = None,
    pair_field: Optional[str] = None,
    on_bad_line: str = "error",
    require_labels: bool = True,
) -> Dataset:
    """Reads a file of texts and labels; its format is seen from the name and the first line.

    - `text<TAB>label` or `text<TAB>pair<TAB>label` without a header;
    - tab separated with a header (GLUE, CLUE): the usual column names are known, others are given
      as `*_field`; a number there is a column counted from 0, for files without a header;
    - one JSON object a line (`.jsonl`, `.json`, or a first line that starts with `{`).

    Each may be gzipped; `-` is standard input. Labels may be text, numbers or booleans and come
    back as text. With `require_labels=False` labels may be absent, and a file without tabs is one
    text a line. Blank lines are passed over. Of the lines that cannot be used, `on_bad_line=
    "error"` raises a `DataError` that shows the first, `"skip"` returns them in `bad_lines`.
    """
    if on_bad_line not in ("error", "skip"):
        raise DataError("on_bad_line is {!r}; allowed: 'error', 'skip'".format(on_bad_line))
    path = os.fspath(path)
    lines, bad = read_lines(path)
    asked = (text_field, pair_field, label_field)
    if not lines:
        raise _bad_lines_error(path, bad, len(bad), on_bad_line)
    name = path[:-3] if path.endswith(".gz") else path
    if name.endswith(JSON_SUFFIXES) or lines[0][1].lstrip().startswith("{"):
        fields, parse = _json_parser(path, lines, asked, require_labels)
    else:
        lines, fields, parse = _tsv_parser(path, lines, asked, require_labels)

    samples: List[Sample] = []
    for number, line in lines:
        try:
            samples.append(_checked(parse(line), fields))
        except _Bad as reason:
            bad.append(BadLine(path, number, str(reason)))
    bad.sort(key=lambda line: line.line)
    if bad and (on_bad_line == "error" or not samples):
        raise _bad_lines_error(path, bad, len(samples) + len(bad), on_bad_line)
    if not samples:
        raise DataError("{}: a header and no sample below it".format(path))
    texts, pairs, labels = zip(*samples)
    return Dataset(
        texts=list(texts),
        pairs=list(pairs) if fields.pair is not None else None,
        labels=list(labels) if fields.label is not None else None,
        source=path,
        bad_lines=bad,
    )


def _bad_lines_error(
    path: str, bad: Sequence[BadLine], total: int, on_bad_line: str
) -> DataError:
    shown = ["  {}".format(line) for line in bad[:SHOWN_BAD_LINES]]
    if len(bad) > len(shown):
        shown.append("  ... and {:,} more".format(len(bad) - len(shown)))
    advice = (
        "not one line is left to use; is it the right file, are the field names right?"
        if len(bad) == total
        else "mend them, or leave them out with --on-bad-line skip"
    )
    return DataError("{}: {:,} of {:,} lines cannot be used:\n{}\n{}".format(
        path, len(bad), total, "\n".join(shown), advice))


def _checked(sample: Sample, fields: _Fields) -> Sample:
    text, pair, label = sample
    for value, field in ((text, fields.text), (pair, fields.pair), (label, fields.label)):
        if field is None:
            continue
        if value is None or not value.strip():
            raise _Bad("{} is empty".format(field))
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:  # JSON's \ud800 without its other half
            raise _Bad("{} holds half a surrogate pair at character {}".format(
                field, error.start + 1)) from None
        if "\0" in value:
            raise _Bad("{} holds a NUL character".format(field))
    return text, pair, None if label is None else label.strip()


def _choose_fields(
    path: str,
    found: Sequence[str],
    asked: Tuple[Optional[str], Optional[str], Optional[str]],
    require_labels: bool,
) -> _Fields:
    """Asked-for names must exist; the others are looked up among the known ones."""
    text, pair, label = asked
    for flag, name in (("text", text), ("pair", pair), ("label", label)):
        if name is not None and name not in found:
            raise DataError("{}: no field {!r} for --{}-field; found: {}".format(
                path, name, flag, ", ".join(map(repr, found))))
    lower = {name.strip().lower(): name for name in reversed(found)}
    if text is None:
        for known, known_pair in KNOWN_TEXTS:
            if known in lower and (known_pair is None or known_pair in lower):
                text = lower[known]
                if pair is None and known_pair is not None:
                    pair = lower[known_pair]
                break
        else:
            raise DataError(
                "{}: which field is the text? found: {}; name it with --text-field".format(
                    path, ", ".join(map(repr, found))))
    if label is None:
        label = next((lower[known] for known in KNOWN_LABELS if known in lower), None)
        if label is None and require_labels:
            raise DataError(
                "{}: which field is the label? found: {}; name it with --label-field".format(
                    path, ", ".join(map(repr, found))))
    return _Fields(text, pair, label)


# --- JSON lines


def _json_parser(
    path: str,
    lines: Sequence[Line],
    asked: Tuple[Optional[str], Optional[str], Optional[str]],
    require_labels: bool,
) -> Tuple[_Fields, Callable[[str], Sample]]:
    if lines[0][1].lstrip().startswith("["):
        raise DataError(
            "{}: one JSON array; one object a line is needed (jq -c '.[]' does that)".format(path))
    keys: List[str] = []
    for _, line in lines[:100]:  # fields of a sample of lines: the first alone may lack one
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            keys.extend(key for key in record if key not in keys)
    if not keys:
        raise DataError(
            "{}:{}: not a JSON object: {!r}; one object a line is needed".format(
                path, lines[0][0], lines[0][1][:60]))
    fields = _choose_fields(path, keys, asked, require_labels)

    def parse(line: str) -> Sample:
        try:
            record = json.loads(line)
        except ValueError as error:
            raise _Bad("not JSON: {}".format(error)) from None
        if not isinstance(record, dict):
            raise _Bad("a JSON {}, not an object".format(type(record).__name__))
        text = _json_text(record, fields.text)
        pair = None if fields.pair is None else _json_text(record, fields.pair)
        return text, pair, None if fields.label is None else _json_label(record, fields.label)

    return fields, parse


def _json_text(record: Any, field: str) -> str:
    value = record.get(field)
    if not isinstance(value, str):
        raise _Bad("no field {!r}".format(field) if field not in record else
                   "{} is {}, not a string".format(field, json.dumps(value)[:40]))
    return value


def _json_label(record: Any, field: str) -> str:
    value = record.get(field)
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int)) or isinstance(value, float) and math.isfinite(value):
        return json.dumps(value)  # true, 3, 0.5: as the file writes it
    raise _Bad("no field {!r}".format(field) if field not in record else
               "{} is {}; a label is a string, a number or a boolean".format(
                   field, json.dumps(value)[:40]))


# --- tab separated


def _tsv_parser(
    path: str,
    lines: List[Line],
    asked: Tuple[Optional[str], Optional[str], Optional[str]],
    require_labels: bool,
) -> Tuple[List[Line], _Fields, Callable[[str], Sample]]:
    header = lines[0][1].split("\t")  # GLUE quotes nothing: a " is a character like any other
    width = len(header)
    if any(name is not None for name in asked) and not _are_columns(header, asked):
        header = [name.strip() for name in header]
        fields = _choose_fields(path, header, asked, require_labels)
        lines = lines[1:]
    elif any(name is not None for name in asked):
        header = [str(column) for column in range(width)]
        fields = _numbered(path, header, asked, require_labels)
    elif _is_header(header):
        header = [name.strip() for name in header]
        fields = _choose_fields(path, header, asked, require_labels)
        lines = lines[1:]
    else:
        layouts = {2: ["text", "label"], 3: ["text", "pair", "label"]}
        if not require_labels:
            layouts[1] = ["text"]
        if width not in layouts:
            raise DataError(
                "{}:{}: {} tab separated column{} and no known header; needed: text<TAB>label, or "
                "text<TAB>pair<TAB>label, or a header line, or column numbers from 0 as "
                "--text-field and --label-field. Found: {!r}".format(
                    path, lines[0][0], width, "" if width == 1 else "s", lines[0][1][:80]))
        header = layouts[width]
        fields = _Fields("text", "pair" if width == 3 else None, "label" if width > 1 else None)
    at_text = header.index(fields.text)
    at_pair = None if fields.pair is None else header.index(fields.pair)
    at_label = None if fields.label is None else header.index(fields.label)

    def parse(line: str) -> Sample:
        columns = line.split("\t")
        if len(columns) != width:
            raise _Bad("{} column{}, not {}".format(
                len(columns), "" if len(columns) == 1 else "s", width))
        return (
            columns[at_text],
            None if at_pair is None else columns[at_pair],
            None if at_label is None else columns[at_label],
        )

    return lines, fields, parse


def _is_header(header: Sequence[str]) -> bool:
    names = {name.strip().lower() for name in header}
    texts = {name for known in KNOWN_TEXTS for name in known if name is not None}
    # Test files have no label column; "index", "id" or a pair beside the text gives them away.
    return bool(names & texts) and (
        bool(names & set(KNOWN_LABELS)) or len(names & texts) > 1 or bool(names & {"index", "id"})
    )


def _are_columns(header: Sequence[str], asked: Sequence[Optional[str]]) -> bool:
    given = [name for name in asked if name is not None]
    return all(name.isdigit() for name in given) and not set(given) <= set(header)


def _numbered(
    path: str,
    columns: Sequence[str],
    asked: Tuple[Optional[str], Optional[str], Optional[str]],
    require_labels: bool,
) -> _Fields:
    text, pair, label = asked
    for name in asked:
        if name is not None and name not in columns:
            raise DataError("{}: no column {}; the first line has columns 0 to {}".format(
                path, name, len(columns) - 1))
    if text is None or (label is None and require_labels):
        raise DataError(
            "{}: a file without a header needs both --text-field and --label-field as column "
            "numbers from 0".format(path))
    return _Fields(text, pair, label)
