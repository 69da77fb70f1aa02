"""AdamW on TensorFlow's fused Adam kernel, with the papers' bias correction and epsilon."""

from __future__ import annotations

import re
from typing import Any

from amp_xla.backend import tf

# Names of biases, and of gains and offsets of norms, in bert4keras, Keras and Google's BERT.
PLAIN = re.compile(r"(bias|gamma|beta|LayerNorm|Norm/)")


class AdamW(tf.train.AdamOptimizer):
    """Adam with decoupled weight decay (Loshchilov & Hutter, arXiv 1711.05101).

    Dense gradients take one fused kernel per variable; IndexedSlices stay sparse up to the update.
    ``epsilon`` is added to the root of the bias-corrected second moment, as in the paper.
    TensorFlow's Adam adds it before the bias correction, so that its early steps are smaller.

    Args:
      learning_rate: float or float32 scalar tensor (a schedule).
      weight_decay: an update also subtracts learning rate * ``weight_decay`` * weight, except from
        norms and biases.
      factor: function from a variable to the factor of its learning rate; None = 1.
      adam: ``beta1``, ``beta2``, ``epsilon`` (default: 1e-6) and ``name``, as in TensorFlow's Adam.
    """

    _lr_t: Any

    def __init__(
        self, learning_rate: Any = 1e-4, weight_decay: float = 0.01, factor: Any = None, **adam: Any
    ) -> None:
        super().__init__(learning_rate, **{"epsilon": 1e-6, "name": "AdamW", **adam})
        self.weight_decay, self._factor = weight_decay, factor

    @property
    def learning_rate(self) -> Any:
        """The constructor's learning rate, a float or a tensor."""
        return self._lr

    def decays(self, variable: Any) -> bool:
        """Return True if weight decay applies to ``variable``."""
        return bool(self.weight_decay) and not PLAIN.search(variable.name)

    def _prepare(self) -> None:
        super()._prepare()
        self._common_rate = self._lr_t
        _, beta2_power = self._get_beta_accumulators()
        # sqrt(v_hat) + eps == (sqrt(v) + eps * sqrt(1 - beta2**t)) / sqrt(1 - beta2**t)
        self._epsilon_t = self._epsilon * tf.sqrt(1.0 - beta2_power)

    def _decay(self, variable: Any) -> Any:
        """Set the learning rate for a variable; return the operation of its weight decay."""
        if self._factor is not None:
            self._lr_t = self._common_rate * self._factor(variable)
        if not self.decays(variable):
            return tf.no_op()
        rate = tf.cast(self._lr_t, variable.dtype.base_dtype) * self.weight_decay
        return variable.assign_sub(rate * variable.read_value(), read_value=False)

    def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
        with tf.control_dependencies([self._decay(var)]):
            return super()._resource_apply_dense(grad, var)

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
        with tf.control_dependencies([self._decay(var)]):
            return super()._resource_apply_sparse(grad, var, indices)
