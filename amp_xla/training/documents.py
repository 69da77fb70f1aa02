"""The JSON that a run leaves on disk: what each must hold, and a version of its layout in it.

A run folder may come from anybody. What is read from it is data and stays data: each document is
checked against the schema here before anything is taken from it. No TensorFlow here.

Version 0 is what was written before documents had one; it is still read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Tuple

VERSION = 1

Number = (int, float)
Text = (str,)


class Each:
    """Schema of an object with any keys, whose values all are alike."""

    def __init__(self, value: Any) -> None:
        self.value = value


# A tuple: one of these types (None = null). A mapping: an object with at least these keys; a key
# that ends in "?" may be absent.
_COUNT = (int,)
_SCHEMAS: Dict[str, Mapping[str, Any]] = {
    "MANIFEST": {"checkpoint": Text, "files": Each({"bytes": _COUNT, "sha256": Text})},
    "state.json": {
        "recipe?": Text,
        "loop": {
            "step": _COUNT,
            "not_finite_in_a_row": _COUNT,
            "best?": (int, float, None),
            "best_step?": _COUNT,
        },
        "identity": {
            "assets": Each(Text),
            "config": {},
            "variables?": Each(Text),
            "data?": {},
            "settings?": {},
            "versions?": {},
        },
    },
    "run.json": {"recipe": Text},
    "config.json": {},
    "columns.json": {"numbers": _COUNT, "slots": _COUNT, "values": _COUNT},
}


def encode(value: Mapping[str, Any]) -> bytes:
    """A document as it is written, its version first."""
    made = {"version": VERSION, **value}
    return json.dumps(made, ensure_ascii=False, indent=1).encode() + b"\n"


def decode(kind: str, data: bytes) -> Dict[str, Any]:
    """Reads a document of a known ``kind``, e.g. ``state.json``; its version is taken out.

    Raises:
      ValueError: it is not JSON, of a newer layout, or not what the schema wants; the message says
        what was found, and does not name the file.
    """
    try:
        value = json.loads(data.decode("utf-8"))
    except RecursionError:
        raise ValueError("JSON nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError(f"{_name(value)}, not a JSON object")
    version = value.pop("version", 0)
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        raise ValueError(f"version is {version!r}; allowed: 0 to {VERSION}")
    if version > VERSION:
        raise ValueError(
            f"version {version}, made by a newer amp_xla; this one reads up to {VERSION}"
        )
    wrong = _wrong(value, _SCHEMAS[kind], "")
    if wrong is not None:
        raise ValueError(wrong)
    return value


def read(path: Path, kind: Optional[str] = None) -> Dict[str, Any]:
    """``decode`` of a file; its kind is its name, unless given.

    Raises:
      ValueError: as ``decode``, or the file cannot be read; the message does not name it.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    return decode(kind or path.name, data)


def _wrong(value: Any, schema: Any, where: str) -> Optional[str]:
    """The first thing that does not fit, in words; None = all fits."""
    if isinstance(schema, tuple):
        return None if _is(value, schema) else f"{where} is {_name(value)}, not {_names(schema)}"
    if not isinstance(value, dict):
        return f"{where} is {_name(value)}, not an object"
    if isinstance(schema, Each):
        wanted = dict.fromkeys(value, schema.value)
    else:
        wanted = {key.rstrip("?"): inner for key, inner in schema.items()}
        required = (key for key in schema if not key.endswith("?"))
        missing = next((key for key in required if key not in value), None)
        if missing is not None:
            return f"{where + '.' if where else ''}{missing} is missing"
    for key, inner in wanted.items():
        if key in value:
            wrong = _wrong(value[key], inner, f"{where}.{key}" if where else key)
            if wrong is not None:
                return wrong
    return None


def _is(value: Any, kinds: Tuple[Any, ...]) -> bool:
    if value is None:
        return None in kinds
    return not isinstance(value, bool) and isinstance(value, tuple(k for k in kinds if k))


def _name(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")


def _names(kinds: Tuple[Any, ...]) -> str:
    words = {str: "text", int: "a whole number", float: "a number", None: "null"}
    return " or ".join(words[kind] for kind in kinds)
