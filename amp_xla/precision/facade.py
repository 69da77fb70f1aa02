"""What Keras and checkpoints ask of an optimizer, beyond training with it."""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import Any, Dict, List, Optional, Sequence

from amp_xla import backend
from amp_xla.precision import loss_scale as scales
from amp_xla.precision.keras_class import keras_of
from amp_xla.precision.monitor import LossScaleWarning
from amp_xla.precision.tensorflow import tf

# TensorFlow's base of everything that a tf.train.Checkpoint can hold.
Trackable: Any = next(c for c in tf.Module.__mro__ if c.__name__ == "Trackable")


class Variables(list):
    """A list that may also be called: ``variables`` is a method in some optimizers."""

    def __call__(self) -> Variables:
        return self


class OptimizerFace(Trackable):
    """Delegation of hyper-parameters, configuration, weights; mixed into LossScaleOptimizer.

    Attributes:
      inner: the wrapped optimizer.
    """

    inner: Any

    def __getattr__(self, name: str) -> Any:
        # Only reached for what this class lacks: learning_rate, lr, beta_1, ...
        if name.startswith("_") or "inner" not in vars(self) or not self._hands_on(name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.inner, name)

    def _hands_on(self, name: str) -> bool:
        """Whether an attribute that this class lacks is the inner optimizer's."""
        return hasattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        mine = name.startswith("_") or not vars(self).get("_ready") or name in vars(self)
        declared = hasattr(type(self), name) and name not in ("lr", "learning_rate")
        if mine or declared:
            object.__setattr__(self, name, value)
        elif self._hands_on(name):
            setattr(self.inner, name, value)
        else:
            object.__setattr__(self, name, value)

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's."""
        return self.inner.learning_rate

    @property
    def lr(self) -> Any:
        """The inner optimizer's learning rate by its old name."""
        return self.inner.learning_rate

    @property
    def iterations(self) -> Any:
        """The inner optimizer's step variable; steps applied here where it has none."""
        found = getattr(self.inner, "iterations", None)
        return self.applied_steps if found is None else found

    @iterations.setter
    def iterations(self, variable: Any) -> None:
        self.inner.iterations = variable

    @property
    def state_variables(self) -> List[Any]:
        """Overridden by the optimizer."""
        raise NotImplementedError

    @property
    def variables(self) -> Variables:
        """The inner optimizer's variables, then ``state_variables``."""
        found = getattr(self.inner, "variables", [])
        return Variables(list(found() if callable(found) else found) + self.state_variables)

    @property
    def weights(self) -> List[Any]:
        """As ``variables``; Keras saves and loads these."""
        return list(self.variables)

    def get_weights(self) -> List[Any]:
        """Values of ``weights``, as NumPy arrays; from Keras' session in a graph."""
        return list(self._backend().batch_get_value(self.weights))

    def set_weights(self, values: Sequence[Any]) -> None:
        """Sets ``weights``.

        Raises:
          ValueError: another number of arrays than there are weights.
        """
        if len(values) != len(self.weights):
            raise ValueError(f"{len(values)} arrays for {len(self.weights)} optimizer weights")
        self._backend().batch_set_value(list(zip(self.weights, values)))

    def _backend(self) -> Any:
        keras = keras_of(self.inner)
        return (backend.tensorflow().keras if keras is None else keras).backend

    def get_slot_names(self) -> List[str]:
        """None: the inner optimizer is checkpointed as a child, with its slots."""
        return []

    def get_slot(self, variable: Any, name: str) -> Any:
        """The inner optimizer's slot."""
        return self.inner.get_slot(variable, name)

    def get_config(self) -> Dict[str, Any]:
        """A JSON-able description; functions (groups, agreement, ...) are not in it."""
        config = dict(self._config)
        left_out = sorted(name for name, value in self._functions.items() if value)
        if left_out:
            warnings.warn(
                f"get_config leaves out {', '.join(left_out)}: give them again to from_config",
                LossScaleWarning,
                stacklevel=2,
            )
        cls = type(self.inner)
        described = {"class_name": cls.__name__, "module": cls.__module__}
        config["inner"] = {**described, "config": self.inner.get_config()}
        return config

    @classmethod
    def from_config(
        cls, config: Dict[str, Any], custom_objects: Optional[Dict[str, Any]] = None, **more: Any
    ) -> Any:
        """The optimizer that ``get_config`` described.

        Args:
          config: from ``get_config``.
          custom_objects: classes by name, for inner optimizers that no import finds.
          **more: arguments that are functions.
        """
        config = dict(config)
        inner = config.pop("inner")
        if isinstance(inner, dict):
            inner = class_of(inner, custom_objects or {}).from_config(dict(inner["config"]))
        return cls(inner, scales.from_spec(config.pop("loss_scale")), **config, **more)


def class_of(described: Dict[str, Any], custom_objects: Dict[str, Any]) -> Any:
    """By the user's table, by import, by Keras' table: in that order.

    bert4keras registers an "Adam" of its own in Keras' table, so a name alone can mislead.
    """
    name, module = described["class_name"], described["module"]
    found = custom_objects.get(name) or getattr(importlib.import_module(module), name, None)
    for root in ("tf_keras", "tensorflow"):
        if found is None and root in sys.modules:
            keras = getattr(sys.modules[root], "keras", sys.modules[root])
            found = keras.utils.get_custom_objects().get(name)
    if found is None:
        raise ValueError(f"no optimizer class {name} in {module}; pass it in custom_objects")
    return found
