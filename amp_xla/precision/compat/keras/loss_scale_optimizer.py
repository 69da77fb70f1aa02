"""A drop-in for Keras' ``mixed_precision.LossScaleOptimizer``, with its arguments and files.

``amp_xla.precision.optimizer`` scales, checks and skips; docs/precision.md lists the differences
from Keras' class.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

from amp_xla.precision import agreement, facade, optimizer
from amp_xla.precision.facade import Trackable, Variables
from amp_xla.precision.inner import CLIPS, KerasInner, NewKerasInner, inner_of
from amp_xla.precision.loss_scale import (
    DEFAULT_GROWTH_INTERVAL,
    DEFAULT_INITIAL,
    DynamicLossScale,
    LossScaleWarning,
    StaticLossScale,
    whole_number,
)
from amp_xla.precision.tensorflow import LossScaleVariables, tf

DELEGATED = ("lr", "learning_rate", *CLIPS)


class LossScaleOptimizer(optimizer.LossScaleOptimizer):
    """A Keras optimizer with loss scaling, like Keras' class of this name.

    Args:
      inner_optimizer: a Keras optimizer of the legacy kind, as in TensorFlow 1.15 and bert4keras,
        or of the kind new in TensorFlow 2.11. Keras 3's are refused.
      dynamic: True adapts the scale during training; False keeps ``initial_scale``.
      initial_scale: the first scale; None, allowed only with ``dynamic``, means 2**15.
      dynamic_growth_steps: finite steps in a row before the scale doubles; 2000 if None.

    Attributes:
      applied_steps, skipped_steps: int64 variables, which checkpoints do not contain. All other
        attributes are as in Keras.

    Raises:
      TypeError: the optimizer is not Keras' or is a LossScaleOptimizer; ``dynamic`` is no bool.
      UnsupportedError: an optimizer of the new kind in graph mode.
      ValueError: the arguments contradict each other or are out of range, the optimizer is wrapped
        already or accumulates gradients, or the strategy in scope is not supported.
    """

    keeps_keras_name = counts_skipped = True
    inner_field = "inner_optimizer"

    def __new__(cls, inner_optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        _check_inner(inner_optimizer)
        return super().__new__(cls, inner_optimizer)

    def __init__(
        self,
        inner_optimizer: Any,
        dynamic: bool = True,
        initial_scale: Optional[float] = None,
        dynamic_growth_steps: Optional[int] = None,
    ) -> None:
        spec = loss_scale_of(dynamic, initial_scale, dynamic_growth_steps)
        agreement.check_strategy()
        if getattr(inner_optimizer, "_is_wrapped_by_loss_scale_optimizer", False):
            raise ValueError(
                '"inner_optimizer" is already wrapped by a LossScaleOptimizer. An optimizer can '
                "only be wrapped once: its checkpoints hold one loss scale"
            )
        super().__init__(inner_optimizer, spec)
        inner_optimizer._is_wrapped_by_loss_scale_optimizer = True

    def _track(self) -> None:
        """Make checkpoints equal to those of Keras' class in this version of TensorFlow."""
        self._optimizer = self.inner  # Keras' own methods look for it under this name
        if not self._delegates:
            self._track_trackable(self.inner, "base_optimizer")
            self._track_trackable(_KerasState(self._state), "loss_scale")
            return
        # Checkpoints treat this object as the inner optimizer, with a loss scale as a child.
        self._trackable = self.inner
        if hasattr(self.inner, "_hyper"):
            keras = sys.modules[facade.own_class(self.inner).__module__]
            old = keras.FakeOptimizerForRestoration(self.inner)
            self._track_trackable(old, "base_optimizer")
        if self.dynamic:
            self._track_trackable(_KerasState(self._state), "loss_scale")

    @property
    def _delegates(self) -> bool:
        """True if checkpoints treat this class like the inner optimizer: from TensorFlow 2.4 on."""
        return any(c.__name__ == "DelegatingTrackableMixin" for c in type(self).__mro__)

    inner_optimizer = property(lambda self: self.inner)
    dynamic = property(lambda self: self._state.dynamic)
    initial_scale = property(lambda self: float(self._state.spec.loss_scale))
    dynamic_counter = property(lambda self: self._state.counter)
    dynamic_growth_steps = property(
        lambda self: self._state.spec.growth_interval if self.dynamic else None
    )

    def _delegated(self, name: str) -> bool:
        hyper = getattr(self.inner, "_hyper", {})
        return name in hyper or (name in DELEGATED and hasattr(self.inner, name))

    @property
    def variables(self) -> Variables:
        """The inner optimizer's variables; as in Keras, weight files contain no loss scale."""
        variables = self.inner.variables
        return Variables(variables() if callable(variables) else variables)

    def get_slot_names(self) -> List[str]:
        """Return the inner optimizer's slot names, for checkpoints.

        The list is empty for a newer optimizer, and on TensorFlow 1.15, where checkpoints hold the
        inner optimizer as a child with its slots.
        """
        if not self._delegates:
            return []
        return list(getattr(self.inner, "get_slot_names", list)())

    def get_config(self) -> Dict[str, Any]:
        """Return a configuration that Keras' class reads, too, from TensorFlow 2.4 on."""
        return {
            "inner_optimizer": facade.described(self.inner),
            "dynamic": self.dynamic,
            "initial_scale": self.initial_scale,
            "dynamic_growth_steps": self.dynamic_growth_steps,
        }

    def apply_gradients(  # type: ignore[override]
        self,
        grads_and_vars: Iterable[Tuple[Any, Any]],
        name: Union[str, bool, None] = None,
        experimental_aggregate_gradients: bool = True,
        skip_gradients_aggregation: bool = False,
    ) -> Any:
        """Apply unscaled gradients if all are finite, and adjust the scale.

        Args:
          grads_and_vars: pairs; None gradients are dropped.
          name: name of the operation. A bool is taken as ``skip_gradients_aggregation``, which is
            the second argument of Keras' newer optimizers.
          experimental_aggregate_gradients: False if gradients are already summed over replicas.
          skip_gradients_aggregation: True if gradients are already summed over replicas; newer
            optimizers have this argument instead.

        Raises:
          ValueError: all gradients are None; the strategy in scope is not supported; or the call is
            in the scope of a strategy but outside its replicas.
        """
        if isinstance(name, bool):
            skip_gradients_aggregation, name = name, None
        if tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context():
            raise ValueError(
                "apply_gradients() must be called in a replica context: inside strategy.run"
            )
        agreement.check_strategy()
        if not self._steps.ever_scaled:
            warnings.warn(
                "apply_gradients() was called, but get_scaled_loss() was never called: gradients "
                "are not protected from underflow; scale the loss, and unscale its gradients by "
                "get_unscaled_gradients()",
                LossScaleWarning,
                stacklevel=2,
            )
        return super().apply_gradients(
            grads_and_vars,
            name=name,
            experimental_aggregate_gradients=experimental_aggregate_gradients
            and not skip_gradients_aggregation,
        )


class _KerasState(Trackable):
    """The variables of a loss scale, under their names in Keras' checkpoints."""

    def __init__(self, state: LossScaleVariables) -> None:
        if state.dynamic:
            self._track_trackable(state.scale_variable, "current_loss_scale")
            self._track_trackable(state.counter, "good_steps")


def _check_inner(optimizer: Any) -> None:
    """Raise TypeError for optimizers that Keras' class refuses, and for those of Keras 3."""
    if hasattr(optimizer, "get_unscaled_gradients"):
        raise TypeError(
            f"LossScaleOptimizer cannot wrap another LossScaleOptimizer, but got: {optimizer}"
        )
    roots = {c.__module__.partition(".")[0] for c in type(optimizer).__mro__}
    if "keras" in roots and facade.keras_of(optimizer) is None:
        raise TypeError(
            f'"inner_optimizer" is {type(optimizer).__name__} of Keras 3, whose fit is not '
            "supported here; use keras.mixed_precision.LossScaleOptimizer, or tf_keras' optimizers"
        )
    known = hasattr(optimizer, "apply_gradients") and isinstance(
        inner_of(optimizer), (KerasInner, NewKerasInner)
    )
    if not known:
        raise TypeError(
            f'"inner_optimizer" must be an instance of `tf.keras.optimizers.Optimizer` or '
            f"`tf.keras.optimizers.experimental.Optimizer`, but got: {optimizer}"
        )


def loss_scale_of(
    dynamic: Any = True, initial_scale: Optional[float] = None, dynamic_growth_steps: Any = None
) -> Union[DynamicLossScale, StaticLossScale]:
    """Return the loss scale that Keras' arguments describe.

    Raises:
      TypeError: ``dynamic`` is not a bool.
      ValueError: the arguments contradict each other or are out of range.
    """
    if not isinstance(dynamic, bool):
        raise TypeError(
            f'"dynamic" argument to LossScaleOptimizer.__init__ must be a bool, but got: '
            f"{dynamic!r}; a constant scale is dynamic=False, initial_scale=1024"
        )
    if dynamic:
        initial = DEFAULT_INITIAL if initial_scale is None else float(initial_scale)
        steps = DEFAULT_GROWTH_INTERVAL if dynamic_growth_steps is None else dynamic_growth_steps
        steps = whole_number("dynamic_growth_steps", steps, 1, "steps")
        return DynamicLossScale(initial, growth_interval=steps, minimum=min(1.0, initial))
    if initial_scale is None:
        raise ValueError('"initial_scale" must be specified if "dynamic" is False')
    if dynamic_growth_steps is not None:
        raise ValueError(
            f'"dynamic_growth_steps" must be None if "dynamic" is False, but got: '
            f"{dynamic_growth_steps}"
        )
    return StaticLossScale(float(initial_scale))


LossScaleOptimizerV3 = LossScaleOptimizer  # the name in .keras files with a newer optimizer

# For load_model(..., custom_objects=CUSTOM_OBJECTS). Older files (HDF5, SavedModel) name the
# drop-in as Keras does, and Keras looks its own names up in lower case.
CUSTOM_OBJECTS: Dict[str, Any] = {
    facade.NAME: optimizer.LossScaleOptimizer,
    **{
        name: LossScaleOptimizer
        for known in ("LossScaleOptimizer", "LossScaleOptimizerV3")
        for name in (known, known.lower())
    },
}
