"""Converts policies to and from Keras' policies, on TensorFlow 1.15 and 2.x.

Keras policies change layers while they are built; the graph rewrite changes the finished graph.
Together they would convert a model twice, so a policy is refused if the rewrite is on.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Optional, Union

from amp_xla import backend
from amp_xla.errors import SettingsError
from amp_xla.precision.policy import Policy, PolicyRules, get_policy
from amp_xla.precision.tensorflow import tf
from amp_xla.settings import flags


def to_keras(policy: Union[Policy, str]) -> Any:
    """Return a policy as a Keras policy object, for the argument ``dtype`` of a layer.

    Args:
      policy: a policy with one dtype for params and compute, or with float32 params and
        half-precision compute. Its output dtype must be its compute dtype.

    Raises:
      ValueError: the policy has other dtypes.
    """
    params, compute, output = get_policy(policy).names
    if output != compute:
        raise ValueError(
            f"'{policy}' has output {output}, but Keras layers output their compute dtype, "
            f"{compute}; give the last layer dtype='{output}' instead"
        )
    if params == compute:
        name = params
    elif params == "float32" and compute in ("float16", "bfloat16"):
        name = f"mixed_{compute}"
    else:
        raise ValueError(
            f"Keras has no policy with {params} variables and {compute} compute; allowed: one "
            f"dtype for both, or float32 variables with float16 or bfloat16 compute"
        )
    module = _module()
    if not hasattr(module, "set_global_policy"):  # TensorFlow 1.15
        from tensorflow.python.keras.engine import base_layer_utils

        base_layer_utils.enable_v2_dtype_behavior()
        # With a loss scale, Keras' compile would wrap the optimizer in its own class.
        return module.Policy(name, loss_scale=None)
    return module.Policy(name)


def from_keras(policy: Any) -> Policy:
    """Return the ``Policy`` equal to a Keras policy, which may be given by its name."""
    if isinstance(policy, str):
        return get_policy(policy)
    compute = policy.compute_dtype
    return Policy(policy.variable_dtype or compute, compute, compute)


def set_policy(policy: Union[Policy, str]) -> Any:
    """Make a policy the default of layers built from now on; return it as a Keras policy.

    Raises:
      SettingsError: the graph rewrite is on, and the policy computes in half precision.
      ValueError: Keras has no such policy; see ``to_keras``.
    """
    keras_policy = to_keras(policy)
    switch = graph_rewrite()
    if switch is not None and keras_policy.compute_dtype in ("float16", "bfloat16"):
        raise SettingsError(
            f"policy '{keras_policy.name}' and the graph rewrite ({switch}) would both convert the "
            f"model; use one: for the policy, set AMP_XLA_PRECISION=fp32 and unset {switch}"
        )
    (getattr(_module(), "set_global_policy", None) or _module().set_policy)(keras_policy)
    return keras_policy


def with_rules(model: Any, rules: PolicyRules) -> Any:
    """Return a copy of a model, with its weights, in which each layer has the policy for its name.

    Nested models are copied, too. Example: softmax, norms and logits in float32::

        with_rules(model, PolicyRules("mixed_float16", [("softmax|norm|logits", "float32")]))
    """
    keras = backend.tensorflow().keras

    def clone(layer: Any) -> Any:
        if isinstance(layer, keras.Model):
            return with_rules(layer, rules)
        policy = to_keras(rules.policy_for(layer.name))
        cloned = type(layer).from_config({**layer.get_config(), "dtype": policy})
        # Layers that a layer creates inside it, as in bert4keras, use the global policy.
        vars(cloned)["build"] = _module().policy_scope(policy)(cloned.build)
        return cloned

    copy = keras.models.clone_model(model, clone_function=clone)
    copy.set_weights(model.get_weights())
    return copy


def graph_rewrite() -> Optional[str]:
    """Return the name of the setting that has turned the graph rewrite on, or None."""
    for name in (flags.FULL_AMP, flags.GRAPH_REWRITE):
        if os.environ.get(name, "").lower() in ("1", "true"):
            return name
    options = tf.config.optimizer.get_experimental_options()
    for name in backend.REWRITES:
        if options.get(name):
            return f"the optimizer option {name}"
    return None


def _module() -> Any:
    """Return the module in which Keras defines ``Policy``; 1.15 does not export all of it."""
    # Not tf.compat.v1.keras, which has no policies on TensorFlow 2.
    exported = backend.tensorflow().keras.mixed_precision
    policy = getattr(exported, "Policy", None) or exported.experimental.Policy
    return sys.modules[policy.__module__]


def global_policy() -> Any:
    """Return Keras' global policy, the default of layers built from now on."""
    return _module().global_policy()
