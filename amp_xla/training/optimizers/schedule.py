"""Learning rates as a function of applied updates; a skipped step does not change them."""

from __future__ import annotations

from typing import Any

from amp_xla.backend import tf


def warmup_decay(
    step: Any, peak: float, warmup_steps: int, total_steps: int, decay: str = "linear"
) -> Any:
    """Build the learning rate: a linear warm-up to ``peak``, then ``decay`` until the end.

    Args:
      step: int64 scalar tensor or variable, number of applied updates. The next update is number
        ``step + 1``, so the first one has a rate above 0.
      peak: highest learning rate.
      warmup_steps: updates until ``peak``.
      total_steps: updates of the whole run, including the warm-up.
      decay: ``linear``, ``cosine`` or ``constant`` (after the warm-up).

    Returns:
      float32 scalar tensor.
    """
    number = tf.cast(tf.convert_to_tensor(step), tf.float32) + 1.0
    warm = number / float(max(warmup_steps, 1))
    # The last update, number total_steps, has a rate above 0.
    span = float(max(total_steps - warmup_steps + 1, 1))
    left = tf.clip_by_value((total_steps + 1.0 - number) / span, 0.0, 1.0)
    if decay == "cosine":
        left = 0.5 * (1.0 + tf.cos(3.141592653589793 * (1.0 - left)))
    elif decay == "constant":
        left = tf.ones_like(left)
    return peak * tf.minimum(1.0, tf.where(number <= warmup_steps, warm, left))
