"""AdamW on TensorFlow's fused Adam kernel, with the papers' bias correction and epsilon."""

from __future__ import annotations

import re
from typing import Any, Optional

from amp_xla.backend import tf

# Names of norms' gains and offsets and of biases in bert4keras, Keras and Google's BERT.
NO_DECAY = r"(bias|gamma|beta|LayerNorm|Norm/)"


class AdamW(tf.train.AdamOptimizer):
    """Adam with decoupled weight decay (Loshchilov & Hutter, arXiv 1711.05101).

    Dense gradients take one fused kernel per variable; IndexedSlices stay sparse up to the update.
    ``epsilon`` is added to the bias-corrected root, as in the paper; TensorFlow's Adam adds it to
    the uncorrected one, so its early steps are smaller.

    Args:
      learning_rate: float or float32 scalar tensor (a schedule).
      beta1, beta2, epsilon: as in arXiv 1412.6980.
      weight_decay: share of the weight that an update subtracts, times the learning rate.
      no_decay: regular expression for names of variables without decay.
    """

    def __init__(
        self,
        learning_rate: Any = 1e-4,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.01,
        no_decay: Optional[str] = NO_DECAY,
        name: str = "AdamW",
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, name=name)
        self.weight_decay = weight_decay
        self._no_decay = re.compile(no_decay) if no_decay else None

    @property
    def learning_rate(self) -> Any:
        """The given rate, a float or a tensor."""
        return self._lr

    def decays(self, variable: Any) -> bool:
        """Return True if weight decay applies to ``variable``."""
        excluded = self._no_decay is not None and self._no_decay.search(variable.name)
        return bool(self.weight_decay) and not excluded

    def _prepare(self) -> None:
        super()._prepare()
        _, beta2_power = self._get_beta_accumulators()
        # sqrt(v_hat) + eps == (sqrt(v) + eps * sqrt(1 - beta2**t)) / sqrt(1 - beta2**t)
        self._epsilon_t = self._epsilon * tf.sqrt(1.0 - beta2_power)

    def _decay(self, variable: Any) -> Any:
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
