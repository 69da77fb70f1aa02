"""A learning rate per variable."""

from __future__ import annotations

from typing import Any, Callable, Type


def with_rates(rule: Type[Any], factor: Callable[[Any], float]) -> Type[Any]:
    """Return a subclass of an optimizer class whose learning rate differs between variables.

    Weight decay, a share of the learning rate, has the same factor.

    Args:
      rule: ``AdamW``.
      factor: variable -> what to multiply its learning rate with.
    """

    class WithRates(rule):
        _lr_t: Any

        def _prepare(self) -> None:
            super()._prepare()
            self._common_rate = self._lr_t

        def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
            self._lr_t = self._common_rate * factor(var)
            return super()._resource_apply_dense(grad, var)

        def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
            self._lr_t = self._common_rate * factor(var)
            return super()._resource_apply_sparse(grad, var, indices)

    WithRates.__name__ = f"{rule.__name__}WithRates"
    return WithRates
