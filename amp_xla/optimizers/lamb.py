"""LAMB on TensorFlow's fused Adam kernel, with Adam's bias correction."""

from __future__ import annotations

import re
from typing import Any, Optional

from amp_xla.backend import tf
from amp_xla.optimizers.adamw import NO_DECAY, AdamW


class LAMB(AdamW):
    """Layer-wise adaptive moments (You et al., arXiv 1904.00962, algorithm 2).

    Each variable moves by ``rate * |w| / |u|`` times ``u``, where u is Adam's bias-corrected
    update plus the weight decay; where either norm is zero the ratio is 1.

    Args:
      learning_rate, beta1, beta2, epsilon, weight_decay, no_decay: as ``AdamW``.
      no_adaptation: regular expression searched in the names of variables whose ratio is 1, as in
        the authors' code for BERT; None adapts all, as the paper's algorithm is written.
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.01,
        no_decay: Optional[str] = NO_DECAY,
        no_adaptation: Optional[str] = NO_DECAY,
        name: str = "LAMB",
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, weight_decay, no_decay, name)
        self._no_adaptation = re.compile(no_adaptation) if no_adaptation else None

    def adapts(self, variable: Any) -> bool:
        """True if the layer's own ratio scales the update of ``variable``."""
        return self._no_adaptation is None or not self._no_adaptation.search(variable.name)

    def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
        before = tf.identity(var.read_value())
        one = tf.ones([], var.dtype.base_dtype)
        rate = tf.cast(self._lr_t, var.dtype.base_dtype)
        power1, power2 = self._get_beta_accumulators()
        # The fused kernel takes the step of rate 1; what it moved by is Adam's update. That costs
        # one pass over memory where separate operations for both moments cost ten.
        with tf.control_dependencies([before]):
            moved = tf.raw_ops.ResourceApplyAdam(
                var=var.handle,
                m=self.get_slot(var, "m").handle,
                v=self.get_slot(var, "v").handle,
                beta1_power=tf.cast(power1, grad.dtype),
                beta2_power=tf.cast(power2, grad.dtype),
                lr=one,
                beta1=tf.cast(self._beta1_t, grad.dtype),
                beta2=tf.cast(self._beta2_t, grad.dtype),
                epsilon=tf.cast(self._epsilon_t, grad.dtype),
                grad=grad,
                use_locking=self._use_locking,
            )
        with tf.control_dependencies([moved]):
            update = before - var.read_value()
        if self.decays(var):
            update += self.weight_decay * before
        if self.adapts(var):
            weight, step = tf.norm(before), tf.norm(update)
            ratio = tf.where(
                tf.logical_and(weight > 0, step > 0), weight / tf.maximum(step, 1e-30), one
            )
            rate *= ratio
        return var.assign(before - rate * update, read_value=False)

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
        # The norm is the whole layer's, and the moments of rows without gradient decay too: the
        # update is dense whatever the gradient was.
        dense = tf.scatter_nd(indices[:, None], grad, tf.shape(var))
        return self._resource_apply_dense(dense, var)

    def _resource_apply_sparse_duplicate_indices(self, grad: Any, var: Any, indices: Any) -> Any:
        return self._resource_apply_sparse(grad, var, indices)  # scatter_nd sums duplicates
