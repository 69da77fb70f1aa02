"""Mends or refuses optimizers of bert4keras that compute something else than they say."""

from __future__ import annotations

import functools
from typing import Any, List, Optional

from amp_xla import backend
from amp_xla.errors import UnsupportedError


@functools.lru_cache(maxsize=None)
def mend() -> None:
    """Replace functions of ``bert4keras.optimizers``, for scripts that import them from now on."""
    module: Any = backend.bert4keras("optimizers")
    for kind, replacement in (
        ("lookahead", _refused), ("exponential_moving_average", _averaged_once)
    ):  # fmt: skip
        name = f"extend_with_{kind}"
        new = replacement(getattr(module, name))
        setattr(module, name, new)
        setattr(module, f"{name}_v2", new)


def _refused(extend: Any) -> Any:
    @functools.wraps(extend)
    def refuse(BaseOptimizer: Any, name: Optional[str] = None) -> Any:
        version = ".".join(map(str, backend.bert4keras_version()))
        raise UnsupportedError(
            f"extend_with_lookahead of bert4keras {version} starts its slow weights at 0, so the "
            f"first step would halve all weights; remove it (for averaged weights use "
            f"extend_with_exponential_moving_average)"
        )

    return refuse


def _averaged_once(extend: Any) -> Any:
    """Average embeddings once per step.

    bert4keras 0.11.5 averages them twice with its own optimizers, whose sparse update calls the
    dense one. No version averages them with Keras' SGD, which has another method.
    """

    @functools.wraps(extend)
    def averaging(BaseOptimizer: Any, name: Optional[str] = None) -> Any:
        cls = extend(BaseOptimizer, name)
        dense = cls._resource_apply_dense
        averaged: List[Any] = []

        def apply_dense(self: Any, grad: Any, var: Any) -> Any:
            averaged.append(var)
            return dense(self, grad, var)

        def apply_sparse(self: Any, grad: Any, var: Any, indices: Any, **state: Any) -> Any:
            averaged.clear()
            update = super(cls, self)._resource_apply_sparse_duplicate_indices
            operation = update(grad, var, indices, **state)
            if averaged:
                return operation
            average, momentum = self.get_slot(var, "ema"), self.ema_momentum
            with backend.tf.control_dependencies([operation]):
                return backend.K.update(average, average * momentum + var * (1.0 - momentum))

        cls._resource_apply_dense = apply_dense
        cls._resource_apply_sparse_duplicate_indices = apply_sparse
        del cls._resource_apply_sparse
        return cls

    return averaging
