"""Scaling losses, unscaling gradients: the bare form, and one with a ledger of the step."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence

from amp_xla.precision.ledger import Ledger, Step
from amp_xla.precision.loss_scale import StaticLossScale
from amp_xla.precision.tensorflow import LossScaleVariables, tf


def scale_loss(loss: Any, scale: Any = 1000.0) -> Any:
    """``loss * scale`` in float32, and nothing else: the raw form, for any training script.

    Gradients, clipping thresholds and the optimizer's epsilon then see numbers ``scale`` times
    larger: Adam and LAMB hardly notice (their epsilon shrinks by the same factor), SGD's
    learning rate grows by it. ``LossScaleOptimizer`` has none of these effects.

    Args:
      loss: floating tensor of any shape, or a function ``(y_true, y_pred) -> loss`` as Keras
        takes it.
      scale: positive finite number.

    Raises:
      ValueError: the scale is not a positive finite number.
    """
    static = StaticLossScale(scale)
    if callable(loss):
        function: Callable[..., Any] = loss

        def scaled(*args: Any, **kwargs: Any) -> Any:
            return static.scale(function(*args, **kwargs))

        scaled.__name__ = getattr(loss, "__name__", "loss")
        return scaled
    return static.scale(loss)


class Scaling:
    """Scales and unscales with one read of the scale a step, and notes in a ledger that it did.

    Attributes:
      state: the loss scale's variables.
      ledger: the step of every graph.
    """

    def __init__(self, state: LossScaleVariables) -> None:
        self.state = state
        self.ledger = Ledger()

    @property
    def loss_scale(self) -> Any:
        """float32 scalar tensor; in a v1 graph the one that the whole step uses."""
        return self.ledger.scale(lambda: self.state.loss_scale)

    @property
    def step(self) -> Step:
        """The step that is open, or a new one."""
        return self.ledger.step(lambda: self.loss_scale)

    def next_step(self) -> Step:
        """The step that is open, or a new one if it was judged already."""
        return self.ledger.next_step(lambda: self.loss_scale)

    def scale(self, loss: Any) -> Any:
        """The scaled float32 loss; starts a step."""
        step = self.next_step()
        step.scaled = True
        scaled = self.state.at(step.scale).scale(tf.convert_to_tensor(loss))
        self.ledger.scaled(loss, scaled)
        return scaled

    def unscale(self, step: Step, grads: Sequence[Any]) -> List[Any]:
        """float32 gradients; None and sparseness are kept."""
        step.unscaled = True
        unscaled = [self.state.at(step.scale).unscale(g) for g in grads]
        for before, after in zip(grads, unscaled):
            self.ledger.unscaled(before, after)
        return unscaled
