"""One JSON object a line."""

from __future__ import annotations

import json
import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from amp_xla.data.text.columns import Asked, Fields, Unusable, choose
from amp_xla.data.text.lines import Line
from amp_xla.errors import DataError

LOOKED_AT = 100  # lines that are asked for their keys: the first alone may lack one


def parser(
    path: str, lines: Sequence[Line], asked: Asked, require_labels: bool
) -> Tuple[Fields, Callable[[str], Tuple[str, Optional[str], Optional[str]]]]:
    """The fields, and a function from a line to (text, pair, label) that raises ``Unusable``."""
    number, first = lines[0]
    if first.lstrip().startswith("["):
        raise DataError(
            f"{path}: one JSON array; one object a line is needed (jq -c '.[]' makes that of it)"
        )
    keys: List[str] = []
    for _, line in lines[:LOOKED_AT]:
        try:
            keys.extend(key for key in _object(line) if key not in keys)
        except Unusable:
            continue  # reported with its number when its turn comes
    if not keys:
        raise DataError(
            f"{path}:{number}: not a JSON object: {first[:60]!r}; one object a line is needed"
        )
    fields = choose(path, keys, asked, require_labels)

    def parse(line: str) -> Tuple[str, Optional[str], Optional[str]]:
        record = _object(line)
        pair = None if fields.pair is None else _text(record, fields.pair)
        label = None if fields.label is None else _label(record, fields.label)
        return _text(record, fields.text), pair, label

    return fields, parse


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
        return json.dumps(value)  # true, 3, 0.5: as the file writes it
    raise Unusable(
        f"{field} is {json.dumps(value)[:40]}; a label is a string, a number or a boolean"
    )
