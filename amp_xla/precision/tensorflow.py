"""Loss scales for TensorFlow, in resource variables: v1 graphs, tf.function and eagerly."""

from __future__ import annotations

from typing import Any, List, Optional

from amp_xla import backend
from amp_xla.precision import arrays, loss_scale

tf: Any = backend.tensorflow().compat.v1
Module: Any = tf.Module

# The scale must never be averaged or summed over replicas: every replica computes the same one.
_UNSHARED = {"trainable": False, "use_resource": True, "aggregation": tf.VariableAggregation.NONE}


def state_variable(value: Any, dtype: Any, name: str) -> Any:
    """A resource variable for optimizer state: not trainable, never aggregated."""
    with tf.init_scope():
        return tf.Variable(value, dtype=dtype, name=name, **_UNSHARED)


def all_finite(tree: Any) -> Any:
    """A boolean scalar: every element of every floating tensor in a tree is finite.

    IndexedSlices are judged by their values and stay sparse; None and integers count as finite.
    An empty tree is finite.
    """
    tests: List[Any] = []
    for leaf in flatten(tree):
        if leaf is None or not arrays.is_float(leaf):
            continue
        values = leaf.values if arrays.is_sparse(leaf) else tf.convert_to_tensor(leaf)
        tests.append(tf.reduce_all(tf.is_finite(values)))
    if not tests:
        return tf.constant(True)
    return tests[0] if len(tests) == 1 else tf.reduce_all(tf.stack(tests))


def flatten(tree: Any) -> List[Any]:
    """Leaves of nested dicts, lists and tuples; IndexedSlices are leaves."""
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in flatten(tree[key])]
    if isinstance(tree, (list, tuple)) and not arrays.is_sparse(tree):
        return [leaf for part in tree for leaf in flatten(part)]
    return [tree]


class LossScaleVariables(Module):
    """A loss scale whose state lives in variables, with jmp's verbs.

    ``adjust`` assigns instead of returning a new state. Checkpointed by ``tf.train.Checkpoint``
    as ``scale`` and ``counter``, by ``tf.train.Saver`` through ``variables``.

    Args:
      spec: a loss scale from ``amp_xla.precision``, a number, ``"dynamic"`` or None.
      name: prefix of the variables' names.
      counter_dtype: of the counter's variable; Keras' checkpoints hold an int64.
    """

    def __init__(
        self, spec: Any, name: str = "loss_scale_state", counter_dtype: Any = tf.int32
    ) -> None:
        super().__init__()
        self.spec = loss_scale.from_spec(spec)
        self.dynamic = isinstance(self.spec, loss_scale.DynamicLossScale)
        self._constant = None if self.dynamic else float(self.spec.loss_scale)
        self.scale_variable: Optional[Any] = None
        self.counter: Optional[Any] = None
        if self.dynamic:
            self.scale_variable = state_variable(
                self.spec.loss_scale, tf.float32, name + "/loss_scale"
            )
            self.counter = state_variable(
                int(self.spec.counter), counter_dtype, name + "/finite_steps"
            )

    @classmethod
    def of(cls, spec: Any, name: str) -> LossScaleVariables:
        """The variables of a loss scale, or these where they are made already."""
        return spec if isinstance(spec, LossScaleVariables) else cls(spec, name)

    @property
    def state_variables(self) -> List[Any]:
        """What a checkpoint must hold: [scale float32, counter int32] when dynamic, else []."""
        return [self.scale_variable, self.counter] if self.dynamic else []

    @property
    def loss_scale(self) -> Any:
        """The scale in force now: a float32 scalar tensor, read afresh."""
        if self.scale_variable is None:
            return tf.constant(self._constant, tf.float32)
        return self.scale_variable.read_value()

    def at(self, scale: Any) -> Any:
        """The immutable value whose scale is the given tensor (one read serves a whole step)."""
        if isinstance(self.spec, loss_scale.NoOpLossScale):
            return self.spec
        if self.scale_variable is None:
            return loss_scale.StaticLossScale(scale)
        return self.spec.replace(scale, self.counter)

    def scale(self, tree: Any) -> Any:
        """Scales floating leaves in float32; see ``LossScale.scale``."""
        return self.at(self.loss_scale).scale(tree)

    def unscale(self, tree: Any) -> Any:
        """Unscales floating leaves in float32; see ``LossScale.unscale``."""
        return self.at(self.loss_scale).unscale(tree)

    def adjust(self, grads_finite: Any, scale: Optional[Any] = None) -> Any:
        """Moves to the next state.

        Args:
          grads_finite: boolean scalar tensor, the same on every replica.
          scale: the read that this step scaled with; None reads now.

        Returns:
          An operation (v1 graph) that does it; in tf.function and eagerly it is done.
        """
        if self.scale_variable is None or self.counter is None:
            return tf.no_op()
        scale = self.loss_scale if scale is None else scale
        counter = tf.cast(self.counter.read_value(), tf.int32)
        now = self.spec.replace(scale, counter).adjust(tf.convert_to_tensor(grads_finite))
        # Readers of the old state must not race the writers of the new one.
        with tf.control_dependencies([scale, counter]):
            return tf.group(
                self.scale_variable.assign(now.loss_scale),
                self.counter.assign(tf.cast(now.counter, self.counter.dtype)),
            )
