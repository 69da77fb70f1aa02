"""Columns between tabs, with a header line or without."""

from __future__ import annotations

from typing import Callable, List, Optional, Sequence, Tuple

from amp_xla.data.text.columns import Asked, Fields, Unusable, choose, is_header
from amp_xla.data.text.lines import Line
from amp_xla.errors import DataError


def parser(
    path: str, lines: List[Line], asked: Asked, require_labels: bool
) -> Tuple[List[Line], Fields, Callable[[str], Tuple[str, Optional[str], Optional[str]]]]:
    """The lines below the header, the fields, and a function from a line to (text, pair, label).

    The function raises ``Unusable``. Nothing is quoted, as in GLUE: a " is like any other
    character.
    """
    first = lines[0][1].split("\t")
    if asked.given and all(name.isdigit() for name in asked.given) and not is_header(first):
        columns = [str(i) for i in range(len(first))]
        fields = _by_number(path, columns, asked, require_labels)
    elif asked.given or is_header(first):
        columns = [name.strip() for name in first]
        fields = choose(path, columns, asked, require_labels)
        lines = lines[1:]
    else:
        columns = _layout(path, lines[0], len(first), require_labels)
        fields = Fields(
            "text", "pair" if "pair" in columns else None, "label" if "label" in columns else None
        )
    at = [None if name is None else columns.index(name) for name in fields]

    def parse(line: str) -> Tuple[str, Optional[str], Optional[str]]:
        cells = line.split("\t")
        if len(cells) != len(columns):
            raise Unusable(f"{_count(len(cells))}, not {len(columns)}")
        text, pair, label = (None if i is None else cells[i] for i in at)
        assert text is not None
        return text, pair, label

    return lines, fields, parse


def _layout(path: str, first: Line, width: int, require_labels: bool) -> List[str]:
    layouts = {2: ["text", "label"], 3: ["text", "pair", "label"]}
    if not require_labels:
        layouts[1] = ["text"]
    if width not in layouts:
        number, line = first
        raise DataError(
            f"{path}:{number}: {_count(width)} between tabs, and no header that is known. Needed: "
            "text<TAB>label, or text<TAB>second text<TAB>label, or a header, with --text-field and "
            "--label-field if its names are unusual, or these two as column numbers from 0. "
            f"Found: {line[:80]!r}"
        )
    return layouts[width]


def _by_number(path: str, columns: Sequence[str], asked: Asked, require_labels: bool) -> Fields:
    for name in asked.given:
        if name not in columns:
            raise DataError(
                f"{path}: no column {name}; the first line has columns 0 to {len(columns) - 1}"
            )
    if asked.text is None or (asked.label is None and require_labels):
        raise DataError(
            f"{path}: no header, so --text-field and --label-field are both needed, as column "
            f"numbers from 0 to {len(columns) - 1}"
        )
    return choose(path, columns, asked, require_labels)


def _count(columns: int) -> str:
    return "1 column" if columns == 1 else f"{columns} columns"
