"""Loss scaling in JAX: the loss scales as pytrees, one call for scaled gradients, Optax.

Nothing here calls back to the host: a step compiles into one program.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, NamedTuple, Tuple, TypeVar, Union

import jax
import jax.numpy as jnp

from amp_xla.precision.arrays import map_floats, widen
from amp_xla.precision.loss_scale import (
    DynamicLossScale,
    LossScale,
    NoOpLossScale,
    StaticLossScale,
    from_spec,
)
from amp_xla.precision.policy import Policy, PolicyRules, get_policy

__all__ = (
    "DynamicLossScale",
    "Gradients",
    "LossScale",
    "NoOpLossScale",
    "StaticLossScale",
    "all_finite",
    "select_tree",
    "value_and_grad",
)

T = TypeVar("T")
Axis = Union[str, Tuple[str, ...], None]


def register(cls: type, leaves: Tuple[str, ...] = (), meta: Tuple[str, ...] = ()) -> None:
    """Make a class a pytree: JAX traces its attributes ``leaves``; those in ``meta`` are static."""

    def flatten(value: Any) -> Any:
        keys = (jax.tree_util.GetAttrKey(name) for name in leaves)
        children = tuple(zip(keys, (getattr(value, name) for name in leaves)))
        return children, tuple(getattr(value, name) for name in meta)

    def unflatten(static: Tuple[Any, ...], children: Any) -> Any:
        # Without __init__: JAX also builds pytrees of placeholders, which fail its checks.
        new: Any = object.__new__(cls)
        for name, child in zip(leaves + meta, (*children, *static)):
            object.__setattr__(new, name, child)
        return new

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)


register(NoOpLossScale)
register(StaticLossScale, ("loss_scale",))
register(
    DynamicLossScale,
    ("loss_scale", "counter"),
    ("growth_interval", "growth_factor", "backoff_factor", "minimum", "maximum"),
)


def all_finite(tree: Any) -> jax.Array:
    """Return a boolean scalar, True if all elements of all floating or complex leaves are finite.

    An empty tree is finite; integers, PRNG keys and None count as finite.
    """
    tests = [
        jnp.all(jnp.isfinite(leaf))
        for leaf in jax.tree_util.tree_leaves(tree)
        if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
    ]
    return jnp.stack(tests).all() if tests else jnp.array(True)


def select_tree(pred: jax.Array, a: T, b: T) -> T:
    """Return the tree ``a`` if ``pred`` is true, else ``b``; both are computed.

    Raises:
      AssertionError: ``pred`` is not a boolean scalar.
    """
    if jnp.ndim(pred) != 0 or jnp.result_type(pred) != jnp.bool_:
        raise AssertionError(f"expected boolean scalar, got {jax.typeof(pred)}")
    return jax.tree_util.tree_map(functools.partial(jnp.where, pred), a, b)


class Gradients(NamedTuple):
    """Result of ``value_and_grad``.

    Attributes:
      value: the unscaled loss, float32; with ``has_aux`` the pair (loss, aux).
      grads: unscaled float32 gradients, averaged over ``axis_name``.
      finite: boolean scalar, True if loss and gradients are finite; the same on every device of
        ``axis_name``. Apply the gradients only if it is True.
      loss_scale: loss scale of the next step.
    """

    value: Any
    grads: Any
    finite: jax.Array
    loss_scale: Any


def value_and_grad(
    fn: Callable[..., Any],
    loss_scale: Any,
    policy: Union[Policy, str, PolicyRules, None] = None,
    has_aux: bool = False,
    axis_name: Axis = None,
    argnums: Union[int, Tuple[int, ...]] = 0,
) -> Callable[..., Gradients]:
    """Build ``jax.value_and_grad`` with loss scaling, casting and agreement between devices.

    Args:
      fn: function that returns the loss, or (loss, aux) with ``has_aux``.
      loss_scale: a Python number, or this step's loss scale, which must be an argument of the
        function that ``jit`` compiles, because its value changes.
      policy: floating arguments are cast to its compute dtype, and aux to its output dtype;
        ``PolicyRules`` cast each parameter by its path. None casts nothing. Gradients have the
        dtype of their parameters, but float32 for parameters in half precision.
      has_aux: as in ``jax.value_and_grad``.
      axis_name: mapped axis of data parallelism (``pmap``, ``shard_map``, ``vmap``). Gradients
        and loss are averaged over it, and its devices make one decision.
      argnums: as in ``jax.value_and_grad``.

    Returns:
      A function of ``fn``'s arguments that returns ``Gradients``.
    """
    loss_scale = from_spec(loss_scale)
    rules = policy if isinstance(policy, PolicyRules) or policy is None else get_policy(policy)

    def scaled(*args: Any, **kwargs: Any) -> Any:
        if rules is not None:
            # Each by itself: a path such as ``encoder/scale`` starts inside the argument.
            args = tuple(map(rules.cast_to_compute, args))
            kwargs = {name: rules.cast_to_compute(value) for name, value in kwargs.items()}
        result = fn(*args, **kwargs)
        loss, aux = result if has_aux else (result, None)
        if isinstance(rules, Policy):
            aux = rules.cast_to_output(aux)
        return loss_scale.scale(widen(loss)), (widen(loss), aux)

    differentiate = jax.value_and_grad(scaled, argnums=argnums, has_aux=True)

    def wrapped(*args: Any, **kwargs: Any) -> Gradients:
        if axis_name is not None:
            args = _vary(args, axis_name)
        (_, (loss, aux)), grads = differentiate(*args, **kwargs)
        grads = loss_scale.unscale(map_floats(widen, grads))
        finite = all_finite((loss, grads))
        if axis_name is not None:
            loss = jax.lax.pmean(loss, axis_name)
            grads = jax.lax.pmean(grads, axis_name)
            # A sum of finite gradients may still overflow, equally on every device.
            finite = jnp.logical_and(finite, all_finite(grads))
            finite = jax.lax.pmin(finite.astype(jnp.int32), axis_name).astype(jnp.bool_)
        value = (loss, aux) if has_aux else loss
        return Gradients(value, grads, finite, loss_scale.adjust(finite))

    return wrapped


def _vary(tree: Any, axis_name: Axis) -> Any:
    """Mark replicated arguments as varying per device for ``shard_map``.

    Otherwise ``shard_map`` would sum the gradients over devices before they are unscaled.
    """
    names = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    manual = jax.sharding.get_abstract_mesh().manual_axes  # others are vmap's: nothing replicated

    def vary(leaf: Any) -> Any:
        varying = jax.typeof(leaf).manual_axis_type.varying
        missing = tuple(name for name in names if name in manual and name not in varying)
        return jax.lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree_util.tree_map(vary, tree)
