"""The walk over a script that trains by ``fit``, to all values that may be its state."""

from __future__ import annotations

import collections
import contextlib
import dis
import enum
import functools
import random
import re
import sys
import types
from typing import Any, Dict, Iterator, Mapping, Set, Tuple

import numpy as np

from amp_xla.backend import keras

_KERAS = (
    "model", "params", "validation_data", "_chief_worker_only", "_supports_tf_logs",
    "stop_training", "history", "_successful_loop_finish", "_compiled_trainable_state",
)  # fmt: skip
CONTAINERS: Any = (list, set, dict, collections.deque, np.ndarray)
_FUNCTIONS: Any = (
    types.FunctionType, types.MethodType, staticmethod, classmethod, property, functools.partial,
)  # fmt: skip
_VALUES = (keras.layers.Layer, tuple, enum.Enum)
_LIBRARIES = (
    "amp_xla", "bert4keras", "keras", "tensorflow", "tensorflow_core", "tf_keras",
    "_csv", "_io", "_thread", "concurrent", "csv", "logging", "queue", "threading",
)  # fmt: skip
_LARGE = 10_000  # items of a container
SMALL = 100  # items of a container of objects, and of a dictionary of the data
MISSING = object()  # value of a variable that is not assigned yet
Slot = Tuple[Any, Any]  # a value, and a function that replaces it or None


def setter(thing: Any, name: str) -> Any:
    """Return a function that sets an attribute or an item; None for a list, a tuple or None."""
    if isinstance(thing, dict):
        return functools.partial(thing.__setitem__, name)
    fixed = isinstance(thing, (list, tuple, type(None)))
    return None if fixed else functools.partial(setattr, thing, name)


def walk(roots: Mapping[str, Any]) -> Tuple[Dict[str, Slot], Dict[str, Any]]:
    """Return the values that callbacks and other objects can reach, and the objects that hold them.

    Values are attributes, class variables, items of containers, and variables of the script's
    functions (defaults, ``nonlocal``, ``global``). Values that are objects of the script are
    searched in turn.

    Args:
      roots: name -> callback or other object; names of values begin with it.

    Returns:
      Two dictionaries: name -> (value, function that replaces it); name -> object with values.
    """
    slots: Dict[str, Slot] = {}
    holders: Dict[str, Any] = {}
    known = {id(root): name for name, root in roots.items()}
    for name, root in roots.items():
        seen = dict(known)
        queue = collections.deque([(name, root)])
        while queue:
            prefix, thing = queue.popleft()
            holders[prefix] = thing
            for part, value, change in _parts(thing):
                if _is_keras(thing, part):
                    continue
                full = f"{prefix}.{part}"
                if not _is_holder(value):
                    slots[full] = value, change
                    continue
                if id(value) not in seen:
                    seen[id(value)] = full
                    queue.append((full, value))
                # A warning names an object that is replaced: no checkpoint can create the new one.
                fixed = isinstance(value, (type, types.FunctionType))
                kind = value.__qualname__ if fixed else f"{type(value).__name__} {seen[id(value)]}"
                slots[f"{full}.is"] = kind, None
    return slots, holders


def _parts(thing: Any) -> Iterator[Tuple[str, Any, Any]]:
    """Yield name, value and setter of each thing in an object, class, function or container."""
    if isinstance(thing, types.FunctionType):
        yield from _outside(thing)
    elif isinstance(thing, _FUNCTIONS):
        for name in ("__self__", "__func__", "fget", "fset", "func"):
            if _is_holder(getattr(thing, name, None)):
                yield name, getattr(thing, name), None
        yield from _items(getattr(thing, "args", ()))
        yield from _items(getattr(thing, "keywords", {}))
    else:
        for kind in reversed((thing if isinstance(thing, type) else type(thing)).__mro__):
            own = vars(kind).items() if _is_scripts(kind.__module__) else ()
            for name, value in own:
                if isinstance(value, types.MemberDescriptorType):  # of __slots__
                    value = getattr(thing, name, MISSING)
                    yield name, value, functools.partial(object.__setattr__, thing, name)
                elif not name.startswith("__") or isinstance(value, _FUNCTIONS):
                    yield name, value, functools.partial(setattr, kind, name)
        # Attributes are set as items of __dict__, because the object may be frozen.
        yield from _items({} if isinstance(thing, type) else getattr(thing, "__dict__", {}))
        if isinstance(thing, (list, tuple)):
            yield "len", len(thing), None
        if isinstance(thing, (dict, list, tuple)):
            yield from _items(thing)


def _items(container: Any) -> Iterator[Tuple[str, Any, Any]]:
    """Yield name, value and setter of each item of a list, tuple or dictionary."""
    change = getattr(container, "__setitem__", None)  # a tuple has none
    pairs = container.items() if isinstance(container, dict) else enumerate(container)
    for key, value in list(pairs):  # a thread may add some
        yield str(key), value, change and functools.partial(change, key)


def _outside(function: Any) -> Iterator[Tuple[str, Any, Any]]:
    """Yield a function's attributes, its defaults, and the outer variables that it may change."""
    yield from _items(vars(function))
    defaults = *_items(function.__defaults__ or ()), *_items(function.__kwdefaults__ or {})
    for name, value, change in defaults:
        if change or _may_change(value):
            yield f"default {name}", value, change
    names, assigned = _names(function.__code__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        value = MISSING
        with contextlib.suppress(ValueError):  # not assigned yet
            value = cell.cell_contents
        if name in assigned or _may_change(value):
            yield name, value, functools.partial(setattr, cell, "cell_contents")
    for name in sorted(names):
        value = function.__globals__.get(name, MISSING)
        if name in assigned or _may_change(value):
            yield name, value, functools.partial(function.__globals__.__setitem__, name)
        elif isinstance(value, types.ModuleType) and _is_scripts(value.__name__):
            for inner in sorted(names & vars(value).keys()):
                change = functools.partial(setattr, value, inner)
                yield f"{name}.{inner}", vars(value)[inner], change


@functools.lru_cache(maxsize=None)
def _names(code: Any) -> Tuple[Set[str], Set[str]]:
    """Return the names that code and its inner functions use, and outer names that they assign."""
    stores = ("STORE_GLOBAL", "STORE_DEREF")
    assigned = {each.argval for each in dis.get_instructions(code) if each.opname in stores}
    used = {*code.co_names}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            used, assigned = used | _names(inner)[0], assigned | _names(inner)[1]
    return used, assigned


def _may_change(value: Any) -> bool:
    """Return whether a value's content can change although nothing assigns to its name."""
    return _is_holder(value) or is_drawn(value) or isinstance(value, CONTAINERS)


def _is_holder(value: Any, depth: int = 3) -> bool:
    """Return whether a value is the script's function, class or object, or contains one.

    Args:
      depth: how many levels of containers are searched.
    """
    if type(value) in (list, tuple, dict):
        items: Any = value.values() if isinstance(value, dict) else value
        near = depth > 0 and len(items) <= SMALL
        return near and any(_is_holder(item, depth - 1) for item in items)
    if isinstance(value, types.FunctionType):
        return _is_scripts(value.__module__)
    if isinstance(value, (*_FUNCTIONS, keras.callbacks.Callback)):
        return True
    kind = value if isinstance(value, type) else type(value)
    return _is_scripts(kind.__module__) and not isinstance(value, _VALUES)


def _is_keras(thing: Any, name: str) -> bool:
    """Return whether an attribute is Keras' own; ``history`` in a script's own class is not."""
    if not isinstance(thing, (keras.callbacks.Callback, keras.models.Model)):
        return False
    return name in _KERAS and not (name == "history" and _is_scripts(type(thing).__module__))


def is_drawn(value: Any) -> bool:
    """Return whether a value is an iterator or draws random numbers."""
    draws = type(value).__module__.startswith("numpy.random") or isinstance(value, random.Random)
    return draws or isinstance(value, Iterator)


def is_data(value: Any) -> bool:
    """Return whether a container is so large that it is data rather than state."""
    if isinstance(value, np.ndarray):
        return value.size >= 1000 * _LARGE  # compared by its checksum
    kinds: Any = (*CONTAINERS, tuple)
    return isinstance(value, kinds) and len(value) >= _LARGE


@functools.lru_cache(maxsize=None)
def _is_scripts(module: str) -> bool:
    """Return whether a module is the script or another file of its author."""
    file = str(getattr(sys.modules.get(module), "__file__", None) or "")
    if module == "__main__":
        return True
    installed = re.search(r"(site|dist)-packages|/lib/python3", file)
    return bool(file) and not installed and not is_library(module)


def is_library(module: Any) -> bool:
    """Return whether a module is part of a library, such as Keras, and not of the script."""
    return str(module).partition(".")[0] in _LIBRARIES
