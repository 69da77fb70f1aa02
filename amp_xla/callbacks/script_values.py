"""Values of a script as JSON and arrays: numbers, texts, arrays and containers of these."""

from __future__ import annotations

import collections
import json
import re
import zlib
from typing import Any, Callable, Dict, List, Mapping, MutableMapping

import numpy as np

from amp_xla.callbacks.random_states import GENERATORS, generator
from amp_xla.callbacks.script_walk import CONTAINERS

_SEQUENCES: Any = (list, tuple, set, frozenset, collections.deque)
_MAPPINGS: Any = (dict, collections.OrderedDict, collections.Counter, collections.defaultdict)
_KINDS: Any = {kind.__name__: kind for kind in (*_SEQUENCES, *_MAPPINGS, int, float, str)}
Arrays = Mapping[str, np.ndarray]


def shared(text: str) -> List[str]:
    """Return the names of the values with which an encoded value shares objects."""
    names = re.findall(r'"same": ("(?:[^"\\]|\\.)*")', text)
    return [str(json.loads(name)).partition("|")[0] for name in names]


def holds_generator(value: Any) -> bool:
    """Return whether a value is, or holds in small containers, a generator of random numbers."""
    values, seen = [value], set()
    while values:
        value = values.pop()
        if type(value) in GENERATORS:
            return True
        if isinstance(value, _SEQUENCES + _MAPPINGS) and len(value) <= 1000:
            if id(value) not in seen:
                values += value.values() if isinstance(value, dict) else value
            seen.add(id(value))
    return False


def encoded(
    value: Any, name: str, arrays: Dict[str, np.ndarray], owners: MutableMapping[int, str]
) -> Any:
    """Return a value for JSON; raise TypeError if it cannot be restored exactly.

    Args:
      name: name of the value; the names of arrays in the value begin with this name.
      arrays: gets the arrays in the value, not copies.
      owners: id -> name of lists, dictionaries, sets and arrays that have been encoded.
    """
    if type(value).__name__ in ("ListWrapper", "_DictWrapper"):  # Keras' form of attributes
        value = getattr(value, "__wrapped__", None) or [*value]
        return encoded(value, name, arrays, {})
    kind = type(value)
    if id(value) in owners and kind in CONTAINERS:
        return {"same": owners[id(value)]}
    if value is None or kind in (bool, float, str) or (kind is int and abs(value) < 2**63):
        return value
    if kind is np.ndarray and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8:
        arrays[name], owners[id(value)] = value, name
        return {"array": name, "crc": zlib.crc32(np.ascontiguousarray(value).data)}
    if isinstance(value, np.generic) and kind.__module__ == "numpy" and value.dtype.kind in "biuf":
        return {"scalar": value.dtype.name, "value": value.item()}
    if kind in GENERATORS:
        return {"random": kind.__name__, "state": value.__getstate__()}  # arrays in dictionaries
    if kind in _MAPPINGS or kind in _SEQUENCES:
        items = list(value.items() if kind in _MAPPINGS else value)  # a thread may change it
        items = [encoded(item, f"{name}|{i}", arrays, owners) for i, item in enumerate(items)]
        factory = getattr(value, "default_factory", None)
        factory_name = getattr(factory, "__name__", "")
        if factory is not None and _KINDS.get(factory_name) is not factory:
            raise TypeError
        owners[id(value)] = name
        if kind is list:
            return items
        limit = getattr(value, "maxlen", None)
        return {"type": kind.__name__, "items": items, "maxlen": limit, "factory": factory_name}
    raise TypeError


def decoded(
    value: Any, name: str, arrays: Arrays, made: Dict[str, Any], value_of: Callable[[str], Any]
) -> Any:
    """Return the value that ``encoded`` got; objects with several names stay one object.

    Args:
      made: gets name -> object for each container and array in the value.
      value_of: returns the object of a name; called where ``encoded`` stored only this name.
    """
    if not isinstance(value, (list, dict)):
        return value
    form: Any = {"type": "list", "items": value} if isinstance(value, list) else value
    if "same" in form:
        return value_of(form["same"])
    if "scalar" in form:
        return np.dtype(form["scalar"]).type(form["value"])
    if "random" in form:
        return generator(form["random"], form["state"])
    if "array" in form:
        made[name] = np.array(arrays[form["array"]])
        return made[name]
    kind, inner = _KINDS[form["type"]], form.get("items", form.get("pairs"))
    items = [decoded(v, f"{name}|{i}", arrays, made, value_of) for i, v in enumerate(inner)]
    if kind is collections.deque:
        made[name] = kind(items, form["maxlen"])
    elif kind is collections.defaultdict:
        made[name] = kind(_KINDS.get(form["factory"]), items)
    else:
        made[name] = kind(dict(items) if kind is collections.Counter else items)
    return made[name]


def fill(old: Any, value: Any) -> bool:
    """Give an object the content of ``value``; return False if that is impossible."""
    if type(old) is type(value) in GENERATORS:
        old.__setstate__(value.__getstate__())
        return True
    if type(old) is not type(value) or not isinstance(old, CONTAINERS):
        return False
    if isinstance(old, np.ndarray):
        fits = (old.shape, old.dtype) == (value.shape, value.dtype) and old.flags.writeable
        if fits:
            old[...] = value
        return fits
    if getattr(old, "maxlen", None) != getattr(value, "maxlen", None):
        return False
    old.clear()
    (old.extend if isinstance(old, (list, collections.deque)) else old.update)(value)
    return True
