"""The part of ``LossScaleOptimizer`` for Keras and checkpoints: class, attributes, weights, config.

Keras' ``compile`` accepts only Keras' optimizer classes. Under ``mixed_float16`` it also wraps each
optimizer that is not Keras' ``LossScaleOptimizer``, so the loss would be scaled twice. Users
therefore get an object whose class also inherits from Keras' class; its methods are this package's.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import sys
import warnings
from typing import Any, Dict, List, Optional, Sequence

from amp_xla import backend
from amp_xla.precision.inner import Inner, KerasInner, NewKerasInner
from amp_xla.precision.loss_scale import LossScaleWarning
from amp_xla.precision.tensorflow import tf

NAME = "AmpLossScaleOptimizer"  # Keras loads "LossScaleOptimizer" as its own
# TensorFlow's base class of everything that a tf.train.Checkpoint can hold.
Trackable: Any = next(c for c in tf.Module.__mro__ if c.__name__ == "Trackable")


def concrete(base: type, inner: Inner) -> type:
    """Return a subclass of ``base`` that the framework of ``inner`` accepts as its optimizer."""
    expected: Optional[type] = None
    if isinstance(inner, (KerasInner, NewKerasInner)) and keras_of(inner.optimizer) is not None:
        module = sys.modules[own_class(inner.optimizer).__module__]
        name = "LossScaleOptimizerV3" if isinstance(inner, NewKerasInner) else "LossScaleOptimizer"
        expected = getattr(module, name, None)
    elif isinstance(inner.optimizer, tf.train.Optimizer):
        expected = tf.train.Optimizer
    return _subclass(base, expected)


@functools.lru_cache(maxsize=None)
def _subclass(base: type, expected: Optional[type]) -> type:
    if expected is None or issubclass(base, expected):
        return base
    fields: Dict[str, Any] = {
        "__doc__": base.__doc__,
        "__module__": base.__module__,
        # Keras' own looks up hyper-parameters in tables that are empty here.
        "__getattribute__": object.__getattribute__,
    }
    name = expected.__name__ if getattr(base, "keeps_keras_name", False) else NAME
    return type(name, (base, expected), fields)


def own_class(optimizer: Any) -> type:
    """Return Keras' class ``LossScaleOptimizer``, from the Keras package of ``optimizer``."""
    keras: Any = keras_of(optimizer)
    module = keras.mixed_precision
    return getattr(module, "LossScaleOptimizer", None) or module.experimental.LossScaleOptimizer


def keras_of(optimizer: Any) -> Optional[Any]:
    """Return the Keras of an optimizer: ``tf.keras`` or ``tf_keras``; None for other optimizers.

    Optimizers of Keras 3 also give None: Keras 3's ``fit`` calls other methods, so a wrapped
    optimizer works in custom training loops only.
    """
    roots = [c.__module__.partition(".")[0] for c in type(optimizer).__mro__]
    if "tf_keras" in roots:
        return importlib.import_module("tf_keras")
    if {"tensorflow", "tensorflow_core"} & set(roots) and hasattr(optimizer, "_hyper"):
        return backend.tensorflow().keras
    return None


class Variables(list):
    """A list that may also be called: ``variables`` is a method in some optimizers."""

    def __call__(self) -> Variables:
        return self


class OptimizerFacade(Trackable):
    """Hyper-parameters, configuration and weights of ``LossScaleOptimizer``.

    Attributes:
      inner: the wrapped optimizer.
    """

    inner_field = "inner"  # of the configuration
    inner: Any
    applied_steps: Any
    _config: Dict[str, Any]
    _functions: Dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        # Called only for attributes that this class does not have, such as beta_1.
        if name.startswith("_") or "inner" not in vars(self) or not self._delegated(name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.inner, name)

    def _delegated(self, name: str) -> bool:
        """Return whether an attribute that this class lacks is read from the inner optimizer."""
        return hasattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        mine = name.startswith("_") or not vars(self).get("_ready") or name in vars(self)
        declared = hasattr(type(self), name) and name not in ("lr", "learning_rate")
        if mine or declared or not self._delegated(name):
            object.__setattr__(self, name, value)
        else:
            setattr(self.inner, name, value)

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's learning rate."""
        return self.inner.learning_rate

    lr = learning_rate  # its old name

    @property
    def iterations(self) -> Any:
        """The inner optimizer's step variable, or ``applied_steps`` if it has none."""
        steps = getattr(self.inner, "iterations", None)
        return self.applied_steps if steps is None else steps

    @iterations.setter
    def iterations(self, variable: Any) -> None:
        self.inner.iterations = variable

    @property
    def variables(self) -> Variables:
        """The inner optimizer's variables, then ``state_variables``."""
        variables = getattr(self.inner, "variables", [])
        return Variables(
            list(variables() if callable(variables) else variables) + self.state_variables
        )

    @property
    def weights(self) -> List[Any]:
        """The same as ``variables``; Keras saves and loads these."""
        return list(self.variables)

    def get_weights(self) -> List[Any]:
        """Return the values of ``weights`` as NumPy arrays; in graphs, from Keras' session."""
        return list(self._keras_backend().batch_get_value(self.weights))

    def set_weights(self, values: Sequence[Any]) -> None:
        """Set ``weights``.

        Raises:
          ValueError: the numbers of arrays and weights differ.
        """
        if len(values) != len(self.weights):
            raise ValueError(f"{len(values)} arrays for {len(self.weights)} optimizer weights")
        self._keras_backend().batch_set_value(list(zip(self.weights, values)))

    def _keras_backend(self) -> Any:
        keras = keras_of(self.inner)
        return (backend.tensorflow().keras if keras is None else keras).backend

    def get_slot_names(self) -> List[str]:
        """Return an empty list: checkpoints hold the inner optimizer as a child, with its slots."""
        return []

    def get_slot(self, variable: Any, name: str) -> Any:
        """Return the inner optimizer's slot."""
        return self.inner.get_slot(variable, name)

    def get_config(self) -> Dict[str, Any]:
        """Return a configuration for JSON. Leave out functions, e.g. ``groups``, with a warning."""
        left_out = sorted(name for name, value in self._functions.items() if value)
        if left_out:
            warnings.warn(
                f"get_config leaves out {', '.join(left_out)}: pass them again to from_config",
                LossScaleWarning,
                stacklevel=2,
            )
        return {**self._config, "inner": described(self.inner)}

    @classmethod
    def from_config(
        cls, config: Dict[str, Any], custom_objects: Optional[Dict[str, Any]] = None, **more: Any
    ) -> Any:
        """Return the optimizer that ``get_config`` described.

        Args:
          config: result of ``get_config``. The class in ``compat.keras`` also reads the config of
            Keras' own ``LossScaleOptimizer``.
          custom_objects: classes by name, for inner optimizers that no import finds.
          **more: the functions that ``get_config`` left out.
        """
        config = dict(config)
        inner = restored(config.pop(cls.inner_field), custom_objects)
        return cls(inner, **config, **more)


def described(optimizer: Any) -> Dict[str, Any]:
    """Return an optimizer as Keras serializes it, plus the name of its module.

    TensorFlow 1.15's Keras writes the class name alone, and bert4keras' optimizers share names
    with Keras'.
    """
    cls = type(optimizer)
    if keras_of(optimizer) is None:
        description = {"class_name": cls.__name__, "config": optimizer.get_config()}
    else:
        description = dict(backend.tensorflow().keras.optimizers.serialize(optimizer))
    description.setdefault("module", cls.__module__)
    return description


def restored(description: Any, custom_objects: Optional[Dict[str, Any]] = None) -> Any:
    """Build an optimizer from the result of ``described`` or of Keras' ``serialize``."""
    if not isinstance(description, dict):
        return description  # Keras allows an object here
    description = copy.deepcopy(description)  # Keras changes its argument
    keras = backend.tensorflow().keras
    module = str(description.get("module") or "")
    if module.partition(".")[0] in ("", "keras", "tf_keras"):
        return keras.optimizers.deserialize(description, custom_objects=custom_objects)
    # bert4keras registers an "Adam" in Keras' table, so the name alone can mislead.
    name, cls = description["class_name"], None
    with contextlib.suppress(ImportError):
        cls = getattr(importlib.import_module(module), name, None)
    cls = cls or {**(custom_objects or {}), **keras.utils.get_custom_objects()}.get(name)
    if cls is None:
        raise ValueError(f"no optimizer class {name} in {module}; pass it in custom_objects")
    return cls.from_config(dict(description["config"]))
