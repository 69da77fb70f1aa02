"""Loss scaling as an Optax transformation that wraps another one."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import optax

from amp_xla.precision import loss_scale as scales
from amp_xla.precision.jax import all_finite


class LossScaledState(NamedTuple):
    """State of ``loss_scaled``.

    Attributes:
      inner: the wrapped optimizer's state, which skipped steps do not change.
      loss_scale: scale of the next step; ``state.loss_scale.scale(loss)`` scales with it.
      applied_steps, skipped_steps: int32 scalars.
      finite: boolean scalar, the last step's decision.
    """

    inner: Any
    loss_scale: Any
    applied_steps: jax.Array
    skipped_steps: jax.Array
    finite: jax.Array


def loss_scaled(
    optimizer: optax.GradientTransformation,
    loss_scale: Any = "dynamic",
    axis_name: Optional[str] = None,
) -> optax.GradientTransformationExtraArgs:
    """Build a transformation of scaled gradients: unscale, check, apply or skip the step.

    Only gradients are checked: a step with finite gradients is applied, even if the loss is not
    finite. ``value_and_grad`` checks the loss, too.

    Clipping belongs inside: ``loss_scaled(optax.chain(optax.clip_by_global_norm(1.0), adam))``.

    Args:
      optimizer: any Optax transformation.
      loss_scale: a loss scale, a number or ``"dynamic"``.
      axis_name: mapped axis whose devices make one decision; the caller averages gradients over it.
    """
    first = scales.from_spec(loss_scale)
    inner = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> LossScaledState:
        def zero() -> jax.Array:
            return jnp.zeros([], jnp.int32)

        start = jax.tree_util.tree_map(jnp.asarray, first)
        return LossScaledState(inner.init(params), start, zero(), zero(), jnp.array(True))

    def update(
        grads: Any, state: LossScaledState, params: Optional[Any] = None, **extra: Any
    ) -> Any:
        grads = state.loss_scale.unscale(grads)
        finite = all_finite(grads)
        if axis_name is not None:
            finite = jax.lax.pmin(finite.astype(jnp.int32), axis_name).astype(jnp.bool_)

        def apply(_: None) -> Any:
            return inner.update(grads, state.inner, params, **extra)

        shapes = jax.eval_shape(apply, None)[0]

        def skip(_: None) -> Any:
            still = jax.tree_util.tree_map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
            return still, state.inner

        updates, after = jax.lax.cond(finite, apply, skip, None)
        applied = finite.astype(jnp.int32)
        return updates, LossScaledState(
            after,
            state.loss_scale.adjust(finite),
            state.applied_steps + applied,
            state.skipped_steps + 1 - applied,
            finite,
        )

    return optax.GradientTransformationExtraArgs(init, update)
