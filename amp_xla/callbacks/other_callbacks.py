"""State of the other callbacks of ``fit``: numbers, texts, arrays, and containers of these.

Attributes hold, for example, EarlyStopping's best weights and an evaluator's scores. A checkpoint
has those that changed since ``fit`` began, also those of a ``Sequence``, the model, its layers and
its optimizer.
"""

from __future__ import annotations

import collections
import contextlib
import dis
import functools
import json
import random
import re
import sys
import types
import zlib
from typing import Any, Callable, Container, Dict, Iterator, List, Mapping, Sequence, Tuple

import numpy as np

from amp_xla.backend import keras
from amp_xla.process.progress import note

_KERAS = (
    "model", "params", "validation_data", "_chief_worker_only", "_supports_tf_logs",
    "stop_training", "history", "_successful_loop_finish",
)  # fmt: skip
_PLACE = re.compile(r"path|file|dir|folder")
_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_SEQUENCES: Dict[str, Any] = {
    kind.__name__: kind for kind in (list, tuple, set, frozenset, collections.deque)
}
_MAPPINGS: Dict[str, Any] = {
    kind.__name__: kind
    for kind in (dict, collections.OrderedDict, collections.Counter, collections.defaultdict)
}
_FACTORIES: Dict[str, Any] = {kind.__name__: kind for kind in (int, float, str, list, dict, set)}
_CONTAINERS: Any = (list, set, dict, collections.deque, np.ndarray)
_STATE: Any = (*_CONTAINERS, int, float, str, type(None))
_LIBRARIES = (
    "amp_xla", "bert4keras", "keras", "tensorflow", "tensorflow_core", "tf_keras",
    "_csv", "_io", "csv",
)  # fmt: skip
_LARGE = 10_000  # items of a container
_CACHE = 100  # items of a dictionary of the data
Arrays = Dict[str, np.ndarray]
Value = Tuple[Any, Callable[[Any], Any]]  # a value, and a function that replaces it


class OtherCallbacks:
    """All callbacks of ``fit`` except ``Run``, and objects whose attributes they may change.

    Args:
      callbacks: the callbacks, after Keras has called ``on_train_begin`` of each.
      objects: data, model, layers, optimizers.
      variables: names of TensorFlow's variables in the checkpoint.
    """

    def __init__(
        self, callbacks: Sequence[Any], objects: Sequence[Any], variables: Container[str]
    ) -> None:
        self._callbacks, self._variables = list(callbacks), variables
        self._all = [*callbacks, *objects]
        self._named: List[str] = []
        self._first = [
            {name: value for name, (value, _) in _values(each).items()} for each in self._all
        ]
        self._initial: List[Dict[str, str]] = []
        for number in range(len(self._all)):
            values = self._attributes(number)
            self._initial.append({name: text for name, (text, _) in values.items()})

    def silence(self) -> None:
        """Do not call the callbacks for batches, until ``rejoin``: these were trained before."""
        # The hooks of a LambdaCallback are attributes of the object.
        self._hooks = [
            {hook: vars(callback)[hook] for hook in _BATCH_HOOKS if hook in vars(callback)}
            for callback in self._callbacks
        ]
        self._silent = [self._attributes(number) for number in range(len(self._all))]
        for callback in self._callbacks:
            vars(callback).update(dict.fromkeys(_BATCH_HOOKS, lambda batch, logs=None: None))

    def rejoin(self) -> None:
        """Call the callbacks for batches again; undo what they changed since ``silence``."""
        for callback, hooks in zip(self._callbacks, self._hooks):
            for hook in _BATCH_HOOKS:
                delattr(callback, hook)
            vars(callback).update(hooks)
        for number, each in enumerate(self._all):
            now = self._attributes(number)
            for name, (text, arrays) in self._silent[number].items():
                if name not in now or now[name][0] != text:
                    _change(each, name, decoded(json.loads(text), arrays))
        self._silent.clear()

    def state(self, arrays: Arrays) -> Dict[str, List[Dict[str, Any]]]:
        """Return classes and changed attributes for JSON; add to ``arrays``."""
        states = []
        for number, (each, initial) in enumerate(zip(self._all, self._initial)):
            changed = {}
            for name, (text, found) in self._attributes(number).items():
                if initial.get(name) != text:
                    changed[name] = json.loads(text)
                    arrays.update(found)
            states.append({"class": type(each).__name__, "state": changed})
        count = len(self._callbacks)
        return {"callbacks": states[:count], "objects": states[count:]}

    def restore(self, saved_states: Any, arrays: Mapping[str, np.ndarray]) -> None:
        """Restore the result of ``state``, by class and order."""
        left = saved_states["callbacks"] + saved_states["objects"]
        for each in self._all:
            name = type(each).__name__
            saved = next((state for state in left if state["class"] == name), None)
            if saved is None:
                continue
            left.remove(saved)
            for attribute, value in (saved["state"] or {}).items():
                before = decoded(value, arrays)
                if attribute not in _KERAS and not _is_place(attribute, before):
                    _change(each, attribute, before)

    def _attributes(self, number: int) -> Dict[str, Tuple[str, Arrays]]:
        """Return name -> JSON and arrays of what can be restored; name the rest in a line."""
        attributes, lost = {}, []
        each, called = self._all[number], number < len(self._callbacks)
        known = self._initial[number] if number < len(self._initial) else {}
        for name, (value, _) in _values(each).items():
            last = name.rpartition(".")[2]
            if last in (*_KERAS, *_BATCH_HOOKS) or _is_place(name, value):
                continue
            cached = isinstance(value, dict) and len(value) > _CACHE
            if not called and (cached or _is_data(value) or name.startswith("_self_")):
                continue
            arrays: Arrays = {}
            try:
                text = json.dumps(encoded(value, f"callbacks/{number}/{name}", arrays))
                attributes[name] = text, arrays
            except (TypeError, RecursionError):
                if self._is_elsewhere(value):
                    continue
                first = self._first[number].get(name)
                label = f"{type(each).__name__}.{name} ({type(value).__name__})"
                # An object has parts that are no state, such as a tokenizer.
                may_be = called or name in known or value is not first
                if label not in self._named and may_be and _is_state(value, first):
                    lost.append(label)
        if lost:
            self._named += lost
            note(f"warning: checkpoints do not hold {', '.join(lost)}: a resume is not exact there")
        return attributes

    def _is_elsewhere(self, value: Any) -> bool:
        """Return whether a value is made of what is saved apart from it, such as variables."""
        items = list(value.values()) if isinstance(value, dict) else value
        if isinstance(items, (list, tuple)):
            return bool(items) and all(self._is_elsewhere(item) for item in items)
        metrics = [metric for each in self._all for metric in getattr(each, "metrics", None) or ()]
        if any(value is each for each in (*self._all, *metrics)):
            return True
        return hasattr(value, "read_value") and value.op.name in self._variables


def encoded(value: Any, name: str, arrays: Arrays) -> Any:
    """Return a value for JSON; raise TypeError if it cannot be restored exactly.

    Args:
      name: name of the array if the value is one, and start of the names of those in it.
      arrays: gets copies of the arrays in the value.
    """
    if type(value).__name__ in ("ListWrapper", "_DictWrapper"):  # Keras' form of attributes
        value = getattr(value, "__wrapped__", None) or list(value)
    kind = type(value)
    if value is None or kind in (bool, float, str) or (kind is int and abs(value) < 2**63):
        return value
    if kind is np.ndarray and value.dtype.kind in "biuf":
        arrays[name] = np.array(value)
        return {"array": name, "crc": zlib.crc32(np.ascontiguousarray(value).tobytes())}
    if isinstance(value, np.generic) and kind.__module__ == "numpy" and value.dtype.kind in "biuf":
        return {"scalar": value.dtype.name, "value": value.item()}
    if _SEQUENCES.get(kind.__name__) is kind:
        items = [encoded(item, f"{name}/{i}", arrays) for i, item in enumerate(value)]
        if kind is list:
            return items
        return {"type": kind.__name__, "items": items, "maxlen": getattr(value, "maxlen", None)}
    if _MAPPINGS.get(kind.__name__) is kind:
        pairs = [
            [encoded(key, name, arrays), encoded(item, f"{name}/{i}", arrays)]
            for i, (key, item) in enumerate(value.items())
        ]
        factory = getattr(value, "default_factory", None)
        factory_name = getattr(factory, "__name__", "")
        if factory is not None and _FACTORIES.get(factory_name) is not factory:
            raise TypeError
        return {"type": kind.__name__, "pairs": pairs, "factory": factory_name}
    raise TypeError


def decoded(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return a new value equal to the one that ``encoded`` got."""
    if isinstance(value, list):
        return [decoded(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return np.array(arrays[value["array"]])
    if "scalar" in value:
        return np.dtype(value["scalar"]).type(value["value"])
    kind = value["type"]
    if kind in _SEQUENCES:
        items = [decoded(item, arrays) for item in value["items"]]
        limit = {} if value["maxlen"] is None else {"maxlen": value["maxlen"]}
        return _SEQUENCES[kind](items, **limit)
    pairs = [(decoded(key, arrays), decoded(item, arrays)) for key, item in value["pairs"]]
    if kind == "defaultdict":
        return collections.defaultdict(_FACTORIES.get(value["factory"]), pairs)
    return _MAPPINGS[kind](dict(pairs)) if kind == "Counter" else _MAPPINGS[kind](pairs)


def _change(callback: Any, name: str, value: Any) -> None:
    old, change = _values(callback).get(name, (None, functools.partial(setattr, callback, name)))
    arrays = "." in name and isinstance(old, np.ndarray) and isinstance(value, np.ndarray)
    if arrays and (old.shape, old.dtype) == (value.shape, value.dtype):
        old[...] = value  # it may be what fit reads
    else:
        change(value)


def _is_place(name: str, value: Any) -> bool:
    """Return whether an attribute is a path: only the script decides where a callback writes."""
    return isinstance(value, str) and _PLACE.search(name) is not None


def _values(thing: Any, prefix: str = "", depth: int = 2) -> Dict[str, Value]:
    """Return the state of a callback by name, with functions that set it.

    It is in attributes, in containers and numbers of the script's classes, in variables that their
    functions assign (``nonlocal``, ``global``), and in the script's classes and objects there.

    Args:
      thing: a callback, or an object or class that it uses.
      prefix: start of the names.
      depth: how many objects and functions there may be from here to a value.
    """
    values: Dict[str, Value] = {}
    functions: Dict[str, Any] = {}
    is_class = isinstance(thing, type)
    for kind in reversed((thing if is_class else type(thing)).__mro__):
        for name, value in vars(kind).items() if _library(kind) not in _LIBRARIES else ():
            if isinstance(value, types.FunctionType):
                functions[name] = value
            elif name.startswith("__"):
                continue
            elif _is_plain(value) if prefix else isinstance(value, _STATE):
                values[prefix + name] = value, functools.partial(setattr, kind, name)
    for name, value in {} if is_class else vars(thing).items():
        functions[name] = value
        if prefix and (_is_data(value) or not (depth or _is_plain(value))):
            continue
        values[prefix + name] = value, functools.partial(setattr, thing, name)
    for name, value in functions.items() if depth else ():
        owner = getattr(value, "__self__", value)
        function = getattr(value, "__func__", value)
        if _is_own(owner) and name not in _KERAS:
            values.pop(prefix + name, None)
            values.update(_values(owner, f"{prefix}{name}.", depth - 1))
        elif isinstance(function, types.FunctionType) and _library(function) not in _LIBRARIES:
            values.update(_outside(function, f"{prefix}{name}.", depth - 1))
    return values


def _outside(function: Any, prefix: str, depth: int) -> Dict[str, Value]:
    """Return a function's attributes, defaults, and variables outside that it may change."""
    values: Dict[str, Value] = {
        f"{prefix}{name}": (value, functools.partial(setattr, function, name))
        for name, value in vars(function).items()
    }
    everywhere, assigned = function.__globals__, _assigned(function.__code__)
    found = {
        name: (everywhere[name], functools.partial(everywhere.__setitem__, name))
        for name in function.__code__.co_names
        if name in everywhere
    }
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        with contextlib.suppress(ValueError):  # not assigned yet
            found[name] = cell.cell_contents, functools.partial(setattr, cell, "cell_contents")
    if any(map(_may_change, function.__defaults__ or ())):
        change = functools.partial(setattr, function, "__defaults__")
        values[f"{prefix}__defaults__"] = function.__defaults__, change
    for name, (value, change) in found.items():
        if name in assigned or _is_drawn(value) or _may_change(value):
            values[prefix + name] = value, change
        elif _is_own(value):
            values.update(_values(value, f"{prefix}{name}.", depth))
    return values


@functools.lru_cache(maxsize=None)
def _assigned(code: Any) -> Container[str]:
    """Return the names outside a function that its code assigns."""
    stores = ("STORE_GLOBAL", "STORE_DEREF")
    return {each.argval for each in dis.get_instructions(code) if each.opname in stores}


def _may_change(value: Any) -> bool:
    """Return whether a value is a container that can be saved, and not data."""
    if not isinstance(value, _CONTAINERS) or _is_data(value):
        return False
    with contextlib.suppress(TypeError, RecursionError):
        encoded(value, "", {})
        return True
    return False


def _is_plain(value: Any) -> bool:
    """Return whether a value can be saved, or draws random numbers."""
    if isinstance(value, _CONTAINERS):
        return _may_change(value)
    return isinstance(value, _STATE) or _is_drawn(value)


def _is_drawn(value: Any) -> bool:
    """Return whether a value is an iterator or draws random numbers."""
    draws = type(value).__module__.startswith("numpy.random") or isinstance(value, random.Random)
    return draws or isinstance(value, Iterator)


def _is_data(value: Any) -> bool:
    """Return whether a container is so large that it is data rather than state."""
    if isinstance(value, np.ndarray):
        return value.size >= 1000 * _LARGE  # compared by its checksum
    kinds: Any = (*_CONTAINERS, tuple)
    return isinstance(value, kinds) and len(value) >= _LARGE


def _is_own(value: Any) -> bool:
    """Return whether a value is a class of the script, an object of one, or Keras' callback."""
    kind = value if isinstance(value, type) else type(value)
    module, library = kind.__module__, _library(kind)
    file = str(getattr(sys.modules.get(module), "__file__", "") or "")
    if isinstance(value, keras.callbacks.Callback):
        return library != "amp_xla"
    other = (keras.layers.Layer, keras.utils.Sequence)
    if isinstance(value, other) or library in _LIBRARIES:
        return False
    has_file = bool(file) and not re.search(r"(site|dist)-packages|/lib/python3", file)
    return hasattr(value, "__dict__") and (module == "__main__" or has_file)


def _library(kind: Any) -> str:
    return kind.__module__.partition(".")[0]


def _is_state(value: Any, first: Any) -> bool:
    """Return whether a value looks like state: a container, or an object of the script's own.

    Args:
      first: the value at the start; a number or a path is state only if it was replaced.
    """
    tensors = hasattr(value, "read_value") or isinstance(value, keras.metrics.Metric)
    if tensors or isinstance(value, (*_CONTAINERS, tuple)):
        return True
    if isinstance(value, (type, types.ModuleType)) or callable(value):
        return False
    if _library(type(value)) in _LIBRARIES:
        return False
    changes = _is_drawn(value) or type(value).__hash__ is None
    return changes or hasattr(value, "__dict__") or value is not first
