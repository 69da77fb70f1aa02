"""Parser for columns between tabs, with or without a header line."""

from __future__ import annotations

from typing import Any, List

from amp_xla.data.text.columns import FieldNames, Fields, Parser, Unusable, choose, is_header
from amp_xla.data.text.lines import Line
from amp_xla.errors import DataError


def parser(path: str, lines: List[Line], names: FieldNames) -> Parser:
    """Return the lines below the header, the fields, and a function to (text, pair, label).

    Nothing is quoted, as in GLUE: a " is an ordinary character.

    Raises:
      DataError: A column is missing, or the columns are not recognised.
    """
    first = lines[0][1].split("\t")
    if names.given and all(name.isdigit() for name in names.given) and not is_header(first):
        columns = [str(i) for i in range(len(first))]
        fields = choose(path, columns, names)
    elif names.given or is_header(first):
        columns = [name.strip() for name in first]
        fields = choose(path, columns, names)
        lines = lines[1:]
    else:
        columns = _without_header(path, lines[0], len(first))
        fields = Fields("text", "pair" if "pair" in columns else None, "label")
    positions = [None if name is None else columns.index(name) for name in fields]

    def parse(line: str) -> Any:
        cells = line.split("\t")
        if len(cells) != len(columns):
            raise Unusable(f"{_count(len(cells))}, not {len(columns)}")
        return tuple(None if i is None else cells[i] for i in positions)

    return Parser(lines, fields, parse)


def _without_header(path: str, first: Line, width: int) -> List[str]:
    known = {2: ["text", "label"], 3: ["text", "pair", "label"]}
    if width not in known:
        number, line = first
        raise DataError(
            f"{path}:{number}: {_count(width)} between tabs, and no known header. Needed: "
            "text<TAB>label, or text<TAB>second text<TAB>label, or a header, with --text-field and "
            "--label-field if its names are unusual, or these two as column numbers from 0. "
            f"First line: {line[:80]!r}"
        )
    return known[width]


def _count(columns: int) -> str:
    return "1 column" if columns == 1 else f"{columns} columns"
