"""Parser for one JSON object per line."""

from __future__ import annotations

import json
import math
from typing import Any, Dict, List, Sequence

from amp_xla.data.text.columns import FieldNames, Fields, Parser, Unusable, choose
from amp_xla.data.text.lines import Line
from amp_xla.errors import DataError

EXAMINED = 100  # lines whose keys are collected: the first line may lack one


def parser(path: str, lines: Sequence[Line], names: FieldNames) -> Parser:
    """Return the fields, and a function from a line to (text, pair, label).

    Raises:
      DataError: The file is one JSON array, not JSON, or a field is missing.
    """
    number, first = lines[0]
    if first.lstrip().startswith("["):
        raise DataError(
            f"{path}: one JSON array; one object per line is needed (jq -c '.[]' writes it so)"
        )
    keys: List[str] = []
    for _, line in lines[:EXAMINED]:
        try:
            keys.extend(key for key in _object(line) if key not in keys)
        except Unusable:
            continue  # reported with its number later
    if not keys:
        raise DataError(
            f"{path}:{number}: not a JSON object: {first[:60]!r}; one object per line is needed"
        )
    fields = choose(path, keys, names)
    return Parser(list(lines), fields, lambda line: _parse(line, fields))


def _parse(line: str, fields: Fields) -> Any:
    record = _object(line)
    pair = None if fields.pair is None else _text(record, fields.pair)
    return _text(record, fields.text), pair, _label(record, fields.label)


def _object(line: str) -> Dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Unusable(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise Unusable(f"JSON, but not an object: {line.strip()[:40]}")
    return record


def _value(record: Dict[str, Any], field: str) -> Any:
    if field not in record:
        raise Unusable(f"no field {field!r}")
    return record[field]


def _text(record: Dict[str, Any], field: str) -> str:
    value = _value(record, field)
    if not isinstance(value, str):
        raise Unusable(f"{field} is {json.dumps(value)[:40]}; a text is a string")
    return value


def _label(record: Dict[str, Any], field: str) -> str:
    value = _value(record, field)
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return json.dumps(value)  # true, 3, 0.5: as in the file
    raise Unusable(
        f"{field} is {json.dumps(value)[:40]}; a label is a string, a number or a boolean"
    )
