"""State of a script that trains by ``fit``: plain values and arrays under stable names.

A checkpoint has what changed since ``fit`` began, for example EarlyStopping's best weights and an
evaluator's scores.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import enum
import itertools
import json
import re
import types
from typing import Any, Container, Dict, Iterable, List, Mapping, Sequence, Set, Tuple

import numpy as np

from amp_xla.backend import keras
from amp_xla.callbacks import script_walk
from amp_xla.callbacks.script_values import Arrays, decoded, encoded, fill, shared
from amp_xla.process import redaction
from amp_xla.process.progress import note

_PLACE = re.compile(r"path|file|dir|folder")
_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


class ScriptState:
    """State of all callbacks of ``fit`` except ``Run``, and of objects that they may change.

    Args:
      callbacks: the callbacks, after Keras has called ``on_train_begin`` of each.
      objects: data, model, layers, optimizers.
      variables: names of TensorFlow's variables in the checkpoint.
      saved: the result of ``changed`` in a checkpoint.
      arrays: arrays of the checkpoint.
    """

    def __init__(
        self, callbacks: Sequence[Any], objects: Sequence[Any], variables: Container[str],
        saved: Mapping[str, Any], arrays: Arrays,
    ) -> None:  # fmt: skip
        self._callbacks, self._variables = list(callbacks), variables
        self._roots = numbered((type(each).__name__, each) for each in (*callbacks, *objects))
        self._called = tuple(f"{name}." for name in itertools.islice(self._roots, len(callbacks)))
        self._named: List[str] = []
        self._initial: Dict[str, str] = {}
        slots, _ = script_walk.walk(self._roots)
        self._first = {name: value for name, (value, _) in slots.items()}
        values = copy.deepcopy(self._values(slots))
        self._initial = {name: text for name, (text, _) in values.items()}
        self._before = {**values, **{name: (text, arrays) for name, text in saved["state"].items()}}
        self._before = {name: each for name, each in self._before.items() if each[0]}
        self._anew = {*saved.get("anew", saved["state"])}

    def silence(self) -> contextlib.ExitStack:
        """Call no callbacks for batches until the returned stack is closed.

        In its first epoch, a resumed fit skips the batches that were trained before the checkpoint.
        """
        silence = contextlib.ExitStack()
        for callback in self._callbacks:
            attributes: Dict[str, Any] = vars(callback)
            # The hooks of a LambdaCallback are attributes of the object.
            hooks = {hook: attributes[hook] for hook in _BATCH_HOOKS if hook in attributes}
            silence.callback(attributes.update, hooks)
            for hook in _BATCH_HOOKS:
                attributes[hook] = lambda batch, logs=None: None
                silence.callback(attributes.pop, hook)
        return silence

    def changed(self, arrays: Dict[str, np.ndarray]) -> Dict[str, Any]:
        """Return the values that have changed since ``fit`` began; add their arrays to ``arrays``.

        The result has ``state``: name -> JSON, "" for a name that no longer exists; and ``anew``:
        the names to which the script has assigned a new object.
        """
        slots, _ = script_walk.walk(self._roots)
        values = self._values(slots)
        names = {name for name, (text, _) in values.items() if self._initial.get(name) != text}
        names.update([owner for name in names for owner in shared(values[name][0])])
        for name in names:
            arrays.update(copy.deepcopy(values[name][1]))
        gone = dict.fromkeys(self._initial.keys() - values.keys(), "")
        return {
            "state": {**gone, **{n: text for n, (text, _) in values.items() if n in names}},
            "anew": sorted(n for n in names if slots[n][0] is not self._first.get(n)),
        }

    def restore(self, last: bool = True) -> None:
        """Restore the checkpoint's values; reset all other values to those at the start of ``fit``.

        A list that data and a callback share stays one object. If the script assigned a new object
        to a name, so does this method: the old one may be a view of data, so filling it is unsafe.

        Args:
          last: True = this is the last call, so print what cannot be restored.
        """
        slots, holders = script_walk.walk(self._roots)
        texts = {name: text for name, (text, _) in self._values(slots).items()}
        differ = {name for name, (text, _) in self._before.items() if texts.get(name) != text}
        group = collections.defaultdict(set)  # names of one object, by the first of them
        linked: Set[str] = set()
        for name, (text, _) in self._before.items():
            owners = shared(text)
            linked.update([name] * bool(owners), owners)
            group[owners[0] if text == json.dumps({"same": "".join(owners)}) else name].add(name)
        if linked & differ:
            differ |= linked
        restored: Dict[str, Any] = {}

        def value_of(name: str) -> Any:
            slot = name.partition("|")[0]
            if slot not in restored:
                text, arrays = self._before[slot]
                restored[slot] = decoded(json.loads(text), slot, arrays, restored, value_of)
                is_other = text.startswith('{"same"')
                for each in set() if is_other else group[slot] & slots.keys():
                    old, change = slots[each]
                    same = old is self._first.get(each) and each not in self._anew
                    if (same or change is None) and fill(old, restored[slot]):
                        restored[slot] = old
                        break
            return restored.get(name)

        lost = []
        for name in sorted(differ):
            holder, _, attribute = name.rpartition(".")
            absent = None, script_walk.setter(holders.get(holder), attribute)
            old, change = slots.get(name, absent)
            value = value_of(name)
            if old is not value and change is not None:
                change(value)
            elif old is not value and name.partition(".")[0] in self._roots:
                lost.append(holder if attribute == "is" else name)
        if last:
            self._before.clear()
        if lost and last:
            lost.sort(key=len)
            note(
                f"warning: this script has no {', '.join(lost[:3])}, which the checkpoint holds: "
                f"the resume is exact only if a callback sets them again before it reads them"
            )

    def _values(self, slots: Mapping[str, script_walk.Slot]) -> Dict[str, Tuple[str, Arrays]]:
        """Return name -> JSON and arrays of values that can be restored; warn of the others."""
        values: Dict[str, Tuple[str, Arrays]] = {}
        owners: Dict[int, str] = {}
        lost = []
        for name, (value, _) in slots.items():
            first, called = self._first.get(name), name.startswith(self._called)
            if self._is_left_out(name, value):
                continue
            arrays: Dict[str, np.ndarray] = {}
            try:
                if isinstance(value, str) and value != first and _is_secret(name, value):
                    raise TypeError
                inner_owners: Any = collections.ChainMap({}, owners)
                form = encoded(value, name, arrays, inner_owners)
                text = json.dumps(form, default=np.ndarray.tolist)
            except (TypeError, RecursionError):
                # An object has parts that are no state, such as a tokenizer.
                may_be = called or name in self._initial or value is not first
                if may_be and self._is_state(value, value is not first):
                    lost.append(f"{name} ({type(value).__name__})")
                continue
            owners.update(inner_owners.maps[0])
            values[name] = text, arrays
        lost = [label for label in lost if label not in self._named]
        if lost:
            self._named += lost
            note(f"warning: checkpoints do not hold {', '.join(lost)}: a resume is not exact")
        return values

    def _is_left_out(self, name: str, value: Any) -> bool:
        """Return whether checkpoints leave out a value, e.g. a batch hook, a file path or data."""
        _, _, rest = name.partition(".")
        last = rest.rpartition(".")[2]
        if last in _BATCH_HOOKS or value is script_walk.MISSING:
            return True
        if isinstance(value, str) and _PLACE.search(last) and re.search(r"[./\\]", value):
            return True  # only the script decides where a callback writes
        if name.startswith(self._called):
            return "." in rest and script_walk.is_data(value)
        cached = isinstance(value, dict) and len(value) > script_walk.SMALL
        return cached or script_walk.is_data(value) or last.startswith("_self_")

    def _is_state(self, value: Any, replaced: bool, depth: int = 3) -> bool:
        """Return whether a value looks like state: a container, or an object of unknown kind.

        Args:
          replaced: whether another object was in its place when ``fit`` began. A number, a path,
            or a tuple of numbers or paths is state only if this is so.
          depth: how many levels of containers are searched for state.
        """
        roots = self._roots.values()
        metrics = [metric for root in roots for metric in getattr(root, "metrics", None) or ()]
        if any(value is each for each in (*roots, *metrics)):
            return False
        if hasattr(value, "read_value"):
            return value.op.name not in self._variables
        if isinstance(value, (list, tuple, dict)):
            items = value.values() if isinstance(value, dict) else value
            if not items or not depth:
                return True
            may_change = replaced or not isinstance(value, tuple)
            numbers: Any = (int, float, str, np.generic) if may_change else ()
            return any(
                isinstance(item, numbers)
                or self._is_state(item, may_change and isinstance(item, tuple), depth - 1)
                for item in items
            )
        if isinstance(value, (keras.metrics.Metric, *script_walk.CONTAINERS)):
            return True
        if isinstance(value, (type, types.ModuleType)) or callable(value):
            return False
        if isinstance(value, enum.Enum):
            return replaced
        if script_walk.is_library(type(value).__module__):
            return False
        changes = script_walk.is_drawn(value) or type(value).__hash__ is None
        return changes or hasattr(value, "__dict__") or replaced


def _is_secret(name: str, text: str) -> bool:
    return redaction.without_secrets([f"{name}={text}"]) != [f"{name}={text}"]


def numbered(pairs: Iterable[Tuple[str, Any]]) -> Dict[str, Any]:
    """Return name -> value; a repeated name gets a number, as in ``Seen``, ``Seen 2``."""
    counts: Dict[str, int] = collections.Counter()
    values = {}
    for name, value in pairs:
        counts[name] += 1
        values[f"{name} {counts[name]}" if counts[name] > 1 else name] = value
    return values


def of_version_0_1(fit: Mapping[str, Any]) -> Dict[str, Any]:
    """Return a checkpoint's state of ``fit`` in today's form, also if version 0.1 wrote it."""
    old = [each for each in fit.get("callbacks", ()) if isinstance(each, dict)]
    if not old:
        return dict(fit)
    state = {
        f"{root}.{name}": json.dumps(value)
        for root, each in numbered((each["class"], each) for each in old).items()
        for name, value in each["state"].items()
    }
    return {**fit, "callbacks": [each["class"] for each in old], "state": state}
