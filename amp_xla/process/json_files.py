"""JSON files: encoded, decoded, and type-checked when read.

A run folder may come from an untrusted source, so its content is data only, and each field is
checked before it is used.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, Tuple, Type, Union

from amp_xla.process import regular

_NAMES = {
    dict: "an object", list: "a list", str: "text", bool: "true or false",
    int: "a whole number", float: "a number", type(None): "null",
}  # fmt: skip
_DEEPEST = 32
Kinds = Union[Type[Any], Tuple[Type[Any], ...]]


def encode(value: Mapping[str, Any]) -> bytes:
    """Return the content of a JSON file."""
    text = json.dumps(value, ensure_ascii=False, indent=1)
    # Bytes of names that are not UTF-8, such as the working folder's, become JSON's escapes.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def decode(data: bytes, kind: Type[Any] = dict) -> Any:
    """Return the JSON object, or with ``kind`` the list, in ``data``.

    A whole number beyond 64 bits becomes a float, such as the 10^30 that means "no limit" in
    transformers' ``model_max_length``; ``require`` refuses it for a whole number.

    Raises:
      ValueError: it is not, is nested deeper than ``_DEEPEST``, or has a number that is no float.
    """
    try:
        value = json.loads(data.decode("utf-8-sig"), parse_int=_whole_number)
    except RecursionError:
        raise ValueError("JSON nested too deep") from None
    if not isinstance(value, kind):
        raise ValueError(f"{_NAMES[type(value)]}; {_NAMES[kind]} in JSON is needed")
    level: List[Any] = [value]
    for _ in range(_DEEPEST):
        groups = (v.values() if isinstance(v, dict) else v for v in level)
        level = [v for group in groups for v in group if isinstance(v, (dict, list))]
    if level:
        raise ValueError("JSON nested too deep")
    return value


def read(path: Path) -> Dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
      ValueError: the file cannot be read or decoded; the message does not name the file.
    """
    try:
        data = regular.read(path)
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    content: Dict[str, Any] = decode(data)
    return content


def require(values: Mapping[str, Any], kinds: Mapping[str, Kinds], prefix: str = "") -> None:
    """Raise ValueError if a field of ``values`` is missing or not of its kind in ``kinds``."""
    for name, allowed in kinds.items():
        if name not in values:
            raise ValueError(f"{prefix}{name} is missing")
        value, kind = values[name], allowed if isinstance(allowed, tuple) else (allowed,)
        # Python counts True as a number.
        if not isinstance(value, kind) or (isinstance(value, bool) and bool not in kind):
            words = " or ".join(_NAMES[each] for each in kind)
            raise ValueError(f"{prefix}{name} is {_NAMES[type(value)]}, not {words}")


def _whole_number(digits: str) -> float:
    if len(digits) > 308:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits) if len(digits) < 20 else float(digits)
