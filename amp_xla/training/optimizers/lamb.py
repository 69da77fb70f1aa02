"""LAMB on TensorFlow's fused Adam kernel, with Adam's bias correction."""

from __future__ import annotations

from typing import Any

from amp_xla.backend import tf
from amp_xla.training.optimizers.adamw import PLAIN, AdamW


class LAMB(AdamW):
    """Layer-wise adaptive moments (You et al., arXiv 1904.00962, algorithm 2).

    Each variable moves by ``rate * |w| / |u|`` times ``u``, Adam's bias-corrected update plus the
    weight decay. If ``|w|`` or ``|u|`` is 0, the ratio ``|w| / |u|`` is replaced by 1.

    For layer norms and biases the ratio is always 1, as in the authors' code for BERT. The
    arguments are ``AdamW``'s without ``name``; ``factor`` has no effect.
    """

    def __init__(self, learning_rate: Any = 1e-3, **adamw: Any) -> None:
        super().__init__(learning_rate, name="LAMB", **adamw)

    def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
        old = tf.identity(var.read_value())
        one = tf.ones([], var.dtype.base_dtype)
        rate, self._lr_t = tf.cast(self._lr_t, var.dtype.base_dtype), one
        # The fused kernel makes a step of rate 1, which is Adam's update: one pass over memory,
        # while separate operations for both moments need ten.
        with tf.control_dependencies([old]):
            moved = super(AdamW, self)._resource_apply_dense(grad, var)
        self._lr_t = self._common_rate
        with tf.control_dependencies([moved]):
            update = old - var.read_value()
        if self.decays(var):
            update += self.weight_decay * old
        if not PLAIN.search(var.name):
            weight, step = tf.norm(old), tf.norm(update)
            ratio = tf.where(
                tf.logical_and(weight > 0, step > 0), weight / tf.maximum(step, 1e-30), one
            )
            rate *= ratio
        return var.assign(old - rate * update, read_value=False)

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
        # The norm needs the whole layer, and moments of rows without gradient decay too.
        dense = tf.scatter_nd(indices[:, None], grad, tf.shape(var))
        return self._resource_apply_dense(dense, var)

    def _resource_apply_sparse_duplicate_indices(self, grad: Any, var: Any, indices: Any) -> Any:
        return self._resource_apply_sparse(grad, var, indices)  # scatter_nd sums duplicates
