"""Encodes, decodes and reads JSON files; reading checks size, depth, types and ranges.

A run folder, prepared text or weights may come from an untrusted source, so their content is data
only, and each field is checked before it is used, by ``read``, ``decode`` or ``require``.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, List, Mapping, NamedTuple, Optional

from amp_xla.errors import DataError
from amp_xla.process import regular

NAMES = {
    dict: "an object", list: "a list", str: "text", bool: "true or false",
    int: "a whole number", float: "a number", type(None): "null",
}  # fmt: skip
_DEEPEST = 32


class Whole(NamedTuple):
    """A range of whole numbers."""

    at_least: int = 0
    at_most: int = 2**63 - 1

    def __str__(self) -> str:
        return f"a whole number from {self.at_least:,} to {self.at_most:,}"


Kind = Any  # a type, ``Whole``, or [str] for a list of texts; in fields also a tuple of kinds


def encode(value: Any, indent: Optional[int] = 1) -> bytes:
    """Return a value as the content of a JSON file; ``indent``: None = in one line."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    # Bytes that are not UTF-8, such as of the working folder's name, and halves of surrogate pairs
    # become JSON's escapes.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def decode(data: bytes, kind: Kind = dict) -> Any:
    """Return the value in ``data``: a JSON object, or another ``kind`` such as a list.

    Whole numbers of 20 or more characters become floats, so ``require`` refuses them if a whole
    number is needed. For example, transformers writes 10^30 as ``model_max_length`` for "no limit".

    Raises:
      ValueError: the data are no UTF-8 JSON, of another kind, too deep, or beyond float's range.
    """
    try:
        value = json.loads(data.decode("utf-8-sig"), parse_int=_number, parse_float=_number)
    except RecursionError:
        raise ValueError("JSON nested too deep") from None
    if not _fits(value, kind):
        raise ValueError(f"the JSON value is {NAMES[type(value)]}; needed: {_words(kind)}")
    level: List[Any] = [value]
    for _ in range(_DEEPEST):
        groups = (v.values() if isinstance(v, dict) else v for v in level)
        level = [v for group in groups for v in group if isinstance(v, (dict, list))]
        if not level:
            return value
    raise ValueError("JSON nested too deep")


def read(
    path: Path,
    fields: Optional[Mapping[str, Kind]] = None,
    kind: Kind = dict,
    links: bool = False,
    most: int = regular.LARGEST,
) -> Any:
    """Return the value in a JSON file: an object, or another ``kind`` such as a list.

    Args:
      fields: the fields that the object must have; see ``require``.
      kind: as for ``decode``.
      links, most: as for ``regular.read``.

    Raises:
      DataError: the file is missing, no regular file or too large, or its content is not right.
      OSError: the file cannot be read; its content may be right.
    """
    try:
        value = decode(regular.read(path, links, most), kind)
        require(value, fields or {})
    except (FileNotFoundError, regular.NotAFile) as error:
        raise DataError(f"cannot use {path}: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"cannot use {path}: {error}") from error
    return value


def require(values: Mapping[str, Any], kinds: Mapping[str, Kind], prefix: str = "") -> None:
    """Raise ValueError if ``values`` lacks a field of ``kinds``, or has one of another kind."""
    for name, allowed in kinds.items():
        if name not in values:
            raise ValueError(f"{prefix}{name} is missing")
        value = values[name]
        each = allowed if type(allowed) is tuple else (allowed,)  # ``Whole`` is a tuple, too
        if not any(_fits(value, kind) for kind in each):
            number = type(value) is int and any(isinstance(kind, Whole) for kind in each)
            shown = value if number else NAMES[type(value)]
            raise ValueError(f"{prefix}{name} is {shown}, not {' or '.join(map(_words, each))}")


def _fits(value: Any, kind: Kind) -> bool:
    if isinstance(kind, list):
        return isinstance(value, list) and all(_fits(each, kind[0]) for each in value)
    if isinstance(kind, Whole):
        return type(value) is int and kind.at_least <= value <= kind.at_most
    # Python counts True as a number.
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _words(kind: Kind) -> str:
    if isinstance(kind, list):
        return f"a list of nothing but {_words(kind[0])}"
    return str(kind) if isinstance(kind, Whole) else NAMES[kind]


def _number(text: str) -> float:
    number = float(text)
    if number in (0.0, math.inf, -math.inf) and re.match("[^eE]*[1-9]", text):
        shown = text if len(text) < 40 else f"a number of {len(text)} digits"
        raise ValueError(f"{shown} is beyond the range of numbers")
    return int(text) if len(text) < 20 and text.lstrip("-").isdigit() else number
