"""The optimizer of a recipe: schedule, update rule and loss scaling."""

from __future__ import annotations

from typing import Any, Callable, Optional, Tuple, Type

from amp_xla.backend import tf
from amp_xla.optimizers.adamw import AdamW
from amp_xla.optimizers.schedule import warmup_decay
from amp_xla.precision.optimizer import LossScaleOptimizer


def scheduled(
    peak: float,
    total_steps: int,
    warmup: float,
    loss_scale: Any,
    decay: str = "linear",
    rule: Type[Any] = AdamW,
    weight_decay: float = 0.01,
    clip_norm: Optional[float] = None,
    accumulate: int = 1,
    recompute: bool = False,
    reduction: Optional[Any] = None,
    sharded: Optional[Callable[[Any], bool]] = None,
    sharded_rule: Optional[Callable[[Any], Any]] = None,
) -> Tuple[LossScaleOptimizer, Any]:
    """Build an optimizer with loss scaling; clipping uses unscaled gradients.

    Args:
      peak: highest learning rate.
      total_steps: updates of the whole run.
      warmup: share of updates before the peak, 0 to 1.
      loss_scale: ``Precision.loss_scale``: a number, or ``dynamic``.
      decay: ``linear``, ``cosine`` or ``constant``.
      rule: ``AdamW`` or ``LAMB``.
      weight_decay: decoupled, not on norms and biases.
      clip_norm: global gradient norm to clip to; 0 or None = no clipping.
      accumulate: micro-batches per update.
      recompute: compute transformer layers again in the backward pass.
      reduction: ``Reduction`` over ranks; None = one rank.
      sharded: predicate for variables of which this rank has only some rows.
      sharded_rule: learning rate -> the optimizer of those variables.

    Returns:
      The optimizer, and its learning rate as a float32 scalar tensor.
    """
    applied = tf.get_variable(
        "applied_steps", (), tf.int64, trainable=False, initializer=tf.zeros_initializer()
    )
    rate = warmup_decay(applied, peak, int(warmup * total_steps), total_steps, decay)
    optimizer = LossScaleOptimizer(
        rule(rate, weight_decay=weight_decay),
        loss_scale,
        global_clipnorm=clip_norm or None,
        groups=[(sharded, sharded_rule(rate))] if sharded and sharded_rule else [],
        # Sharded gradients differ between ranks; the decision to skip must not.
        agreement="auto" if sharded else None,
        model_parallel=sharded,
        reduce=reduction,
        accumulate=accumulate,
        recompute=recompute,
        applied_steps=applied,
    )
    if reduction is not None:
        reduction.loss_scale = lambda: optimizer.loss_scale
    return optimizer, rate
