"""Configurations of Keras' ``LossScaleOptimizer``, of all its ages, and of what it wraps."""

from __future__ import annotations

import copy
from typing import Any, Dict, Optional

from amp_xla import backend
from amp_xla.precision.facade import class_of


def described(optimizer: Any) -> Dict[str, Any]:
    """A wrapped optimizer as Keras serializes it, with its module, by which it is found again.

    TensorFlow 1.15's Keras writes the bare class name, and bert4keras has optimizers of the same
    names as Keras'.
    """
    found = dict(backend.tensorflow().keras.optimizers.serialize(optimizer))
    found.setdefault("module", type(optimizer).__module__)
    return found


def restored(found: Any, custom_objects: Optional[Dict[str, Any]] = None) -> Any:
    """The optimizer that ``described`` or Keras' own ``serialize`` described."""
    if not isinstance(found, dict):
        return found  # made already: Keras allows it
    found = copy.deepcopy(found)  # Keras changes what it is given
    module = str(found.get("module") or "")
    if module and module.partition(".")[0] not in ("keras", "tf_keras"):
        try:
            cls = class_of(found, {})  # its module knows best: Keras hands on a whole table
        except (ImportError, ValueError):
            cls = class_of(found, custom_objects or {})
        return cls.from_config(dict(found["config"]))
    keras = backend.tensorflow().keras
    return keras.optimizers.deserialize(found, custom_objects=custom_objects)


def of_today(config: Dict[str, Any]) -> Dict[str, Any]:
    """A configuration from TensorFlow 2.3 or before, which held a loss scale object, as now.

    Raises:
      ValueError: that loss scale is one that Keras has given up since.
    """
    config = dict(config)
    if "loss_scale" not in config:
        return config
    scale = config.pop("loss_scale")
    kind, fields = scale["class_name"], scale["config"]
    config["inner_optimizer"] = config.pop("optimizer")
    if kind == "FixedLossScale":
        config.update(dynamic=False, initial_scale=fields["loss_scale_value"])
    elif kind == "DynamicLossScale" and fields["multiplier"] == 2:
        config.update(
            initial_scale=fields["initial_loss_scale"],
            dynamic_growth_steps=fields["increment_period"],
        )
    else:
        raise ValueError(
            f"the configuration's loss scale is {kind} with {fields}; allowed: FixedLossScale, or "
            f"DynamicLossScale whose multiplier is 2"
        )
    return config
