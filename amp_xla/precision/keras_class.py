"""Makes a ``LossScaleOptimizer`` pass for the class that Keras or ``tf.train`` expects.

Keras takes only its own optimizer classes in ``compile``, and under ``mixed_float16`` wraps
whatever is not its own ``LossScaleOptimizer`` in one, which would scale the loss twice. So the
object that a user gets is of a subclass of both; every method that matters is ours.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from typing import Any, Dict, Optional

from amp_xla import backend
from amp_xla.precision.inner import Inner, KerasInner, NewKerasInner
from amp_xla.precision.tensorflow import tf

NAME = "AmpLossScaleOptimizer"  # Keras keeps "LossScaleOptimizer" for its own when it loads


def concrete(base: type, inner: Inner) -> type:
    """The subclass of ``base`` that the framework behind ``inner`` accepts."""
    return _subclass(base, _expected(inner))


@functools.lru_cache(maxsize=None)
def _subclass(base: type, expected: Optional[type]) -> type:
    if expected is None or issubclass(base, expected):
        return base
    fields: Dict[str, Any] = {
        "__doc__": base.__doc__,
        "__module__": base.__module__,
        # Keras' own would look hyper-parameters up in tables that we do not fill.
        "__getattribute__": object.__getattribute__,
    }
    name = expected.__name__ if getattr(base, "keeps_keras_name", False) else NAME
    return types.new_class(name, (base, expected), {}, lambda body: body.update(fields))


def _expected(inner: Inner) -> Optional[type]:
    cls = type(inner.optimizer)
    if isinstance(inner, (KerasInner, NewKerasInner)):
        if keras_of(inner.optimizer) is None:
            return None
        own = own_class(inner.optimizer)
        name = "LossScaleOptimizerV3" if isinstance(inner, NewKerasInner) else "LossScaleOptimizer"
        return getattr(sys.modules[own.__module__], name, None)
    return tf.train.Optimizer if issubclass(cls, tf.train.Optimizer) else None


def own_class(optimizer: Any) -> type:
    """The ``LossScaleOptimizer`` of the Keras that an optimizer comes from."""
    keras: Any = keras_of(optimizer)
    own = getattr(keras.mixed_precision, "LossScaleOptimizer", None)
    return keras.mixed_precision.experimental.LossScaleOptimizer if own is None else own


def keras_of(optimizer: Any) -> Optional[Any]:
    """The Keras that an optimizer comes from: ``tf.keras`` or ``tf_keras``; None for others.

    Keras 3 is not among them: its ``fit`` speaks another protocol, and its optimizers are
    wrapped for custom loops only.
    """
    roots = [c.__module__.partition(".")[0] for c in type(optimizer).__mro__]
    if "tf_keras" in roots:
        return importlib.import_module("tf_keras")
    if {"tensorflow", "tensorflow_core"} & set(roots) and hasattr(optimizer, "_hyper"):
        return backend.tensorflow().keras
    return None


def let_keras_initialize(keras: Any, variables: Any) -> None:
    """Tells Keras of variables, so that its session initializes them."""
    if keras is None or tf.executing_eagerly():
        return
    backend = sys.modules.get(keras.backend.variable.__module__)
    track = getattr(backend, "track_variable", None)
    for variable in variables:
        if track is not None:
            track(variable)
