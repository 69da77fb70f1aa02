"""State of the other callbacks of ``fit``: attributes that are numbers, texts, lists or dicts.

Attributes hold, for example, EarlyStopping's patience and an evaluator's best score. A checkpoint
has those that changed since ``fit`` began.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional, Sequence, Set

import numpy as np

from amp_xla.backend import keras
from amp_xla.process.progress import note

_KERAS = ("model", "params", "validation_data", "_chief_worker_only", "_supports_tf_logs")
_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_LARGEST = 1 << 16  # characters of JSON in an attribute


class Others:
    """All callbacks of ``fit`` except ``Run``.

    Args:
      callbacks: the callbacks, after Keras has called ``on_train_begin`` of each.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._callbacks = list(callbacks)
        self._initial = [_attributes(callback) for callback in callbacks]
        self._arrays = [_arrays(callback) for callback in callbacks]

    @property
    def early_stopped(self) -> bool:
        """True if an EarlyStopping callback has ended the run."""
        stopping = [c for c in self._callbacks if isinstance(c, keras.callbacks.EarlyStopping)]
        return any(callback.stopped_epoch > 0 for callback in stopping)

    def silence(self) -> None:
        """Do not call the callbacks for batches, until ``rejoin``: these were trained before."""
        # The hooks of a LambdaCallback are attributes of the object.
        self._hooks = [
            {hook: vars(callback)[hook] for hook in _BATCH_HOOKS if hook in vars(callback)}
            for callback in self._callbacks
        ]
        for callback in self._callbacks:
            vars(callback).update(dict.fromkeys(_BATCH_HOOKS, lambda batch, logs=None: None))

    def rejoin(self, states: Any) -> None:
        """Call the callbacks for batches again; restore the ``states`` of a checkpoint."""
        for callback, hooks in zip(self._callbacks, self._hooks):
            for hook in _BATCH_HOOKS:
                delattr(callback, hook)
            vars(callback).update(hooks)
        self.restore(states)

    def state(self) -> List[Dict[str, Any]]:
        """Return class and state of each callback for JSON; None = the callback has new arrays."""
        states = []
        for callback, initial, arrays in zip(self._callbacks, self._initial, self._arrays):
            changed: Optional[Dict[str, Any]] = {
                name: json.loads(text)
                for name, text in _attributes(callback).items()
                if initial.get(name) != text
            }
            if _arrays(callback) - arrays:
                changed = None
            states.append({"class": type(callback).__name__, "state": changed})
        return states

    def restore(self, states: Any) -> None:
        """Restore the result of ``state``, by class and order; report callbacks with arrays."""
        left = list(states)
        for callback, initial in zip(self._callbacks, self._initial):
            name = type(callback).__name__
            saved = next((state for state in left if state["class"] == name), None)
            if saved is None:
                continue
            left.remove(saved)
            if saved["state"] is None:
                note(f"{name} is not restored: it holds arrays, which checkpoints do not save")
                continue
            for attribute, value in saved["state"].items():
                if attribute in initial:
                    setattr(callback, attribute, value)


def _attributes(callback: Any) -> Dict[str, str]:
    """Return name -> JSON of each attribute that JSON can hold."""
    texts = {}
    for name, value in vars(callback).items():
        if name in _KERAS:
            continue
        try:
            text = json.dumps(value, default=_plain)
        except (TypeError, ValueError):
            continue
        if len(text) <= _LARGEST:
            texts[name] = text
    return texts


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError


def _arrays(callback: Any) -> Set[str]:
    """Return the names of attributes that are arrays or lists of arrays."""
    return {
        name
        for name, value in vars(callback).items()
        for each in (value if isinstance(value, (list, tuple)) else [value])
        if isinstance(each, np.ndarray)
    }
