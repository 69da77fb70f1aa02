"""Build the model of a user's script for ``inspect`` and ``rehearse``."""

from __future__ import annotations

import difflib
import itertools
import os
import sys
from typing import Any, Iterator, NamedTuple, Optional, Sequence

import numpy as np

from amp_xla.errors import AmpXlaError, DataError
from amp_xla.recipe import recipe_module


class Script(NamedTuple):
    """A user's script, and the name of a function or model in it: ``my_script.py:build_model``.

    Attributes:
      path: path of the script.
      name: the part after the colon.
    """

    path: str
    name: str

    @classmethod
    def of(cls, target: str) -> Optional[Script]:
        """Split ``PATH.py:NAME``; return None for the name of a recipe."""
        path, colon, name = target.rpartition(":")
        return cls(path, name) if colon and path.endswith(".py") else None

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"


class Subject(NamedTuple):
    """The model to examine: a compiled Keras model, or a recipe's job.

    ``batches`` is None if the script returns no batch and ``--batch`` is not given.
    """

    model: Any
    batches: Optional[Iterator[Any]]


def build(script: Script, words: Sequence[str], batch: Optional[str]) -> Subject:
    """Import a script and build its model.

    Args:
      script: its ``name`` is a compiled Keras model, or a function that returns model or
        (model, batch).
      words: ``sys.argv[1:]`` for the script.
      batch: name of an object in the script: a batch as for ``fit``, several batches, or a function
        that returns one of these.

    Raises:
      AmpXlaError: a file or name is missing, or has another type.
    """
    if not os.path.isfile(script.path):
        raise AmpXlaError(f"there is no file {script.path}")
    from amp_xla.backend import keras
    from amp_xla.backend.configuring import current

    path = os.path.abspath(script.path)
    sys.path.insert(0, os.path.dirname(path))
    sys.argv[:] = [path, *words]
    module = recipe_module(path)
    model = _value(module, script)
    batches: Optional[Iterator[Any]] = None
    if isinstance(model, tuple) and len(model) == 2:
        model, returned = model
        batches = _batches(returned, f"the batch from {script}")
    if not isinstance(model, keras.models.Model):
        raise AmpXlaError(
            f"{script} is of type {type(model).__name__}; allowed: a compiled Keras model, a "
            f"function that returns one, or a function that returns (model, batch)"
        )
    if current().settings.precision != "amp":
        raise AmpXlaError(
            f"precision {current().settings.precision}: this command shows what mixed precision "
            f"does; allowed: amp"
        )
    if batch is not None:
        source = Script(script.path, batch.replace(f"{script.path}:", ""))
        batches = _batches(_value(module, source), str(source))
    return Subject(model, batches)


def _value(module: Any, script: Script) -> Any:
    """Return the value of a name in a module; call it if it is a function."""
    if not hasattr(module, script.name):
        names = [name for name in vars(module) if not name.startswith("_")]
        close = difflib.get_close_matches(script.name, names, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise AmpXlaError(f"{script.path} has no {script.name!r}{hint}")
    value = getattr(module, script.name)
    is_function = callable(value) and not hasattr(value, "layers")
    return value() if is_function else value


def _batches(value: Any, source: str) -> Iterator[Any]:
    """Yield batches from one batch, an iterator, a ``Sequence`` or a bert4keras generator."""
    if isinstance(value, (tuple, list, dict, np.ndarray)):
        return itertools.repeat(value if isinstance(value, (tuple, list)) else [value])
    if hasattr(value, "forfit"):
        return iter(value.forfit(random=False))
    if hasattr(value, "__getitem__") and hasattr(value, "__len__"):
        return (value[i] for i in itertools.cycle(range(len(value))))
    if hasattr(value, "__next__"):
        return iter(value)
    raise DataError(
        f"{source} is of type {type(value).__name__}; allowed: a batch as for fit, such as "
        f"(inputs, targets), or a Sequence, generator or bert4keras DataGenerator of batches"
    )
