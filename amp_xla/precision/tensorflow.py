"""Loss scales and sums of gradients in variables, for v1 graphs, ``tf.function`` and eager code."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from amp_xla import backend
from amp_xla.precision import arrays, loss_scale

tf: Any = backend.tensorflow().compat.v1

Pairs = List[Tuple[Any, Any]]  # (gradient, variable)

# Replicas must not average or sum the state: each replica computes the same values.
_UNSHARED = {"trainable": False, "use_resource": True, "aggregation": tf.VariableAggregation.NONE}
_KERAS_BACKENDS = tuple(
    f"{root}.backend"
    for root in ("tf_keras.src", "tensorflow.python.keras", "tensorflow_core.python.keras")
)


def state_variable(value: Any, dtype: Any, name: str) -> Any:
    """Create a resource variable for optimizer state: not trainable, never aggregated."""
    with tf.init_scope():
        return keras_initializes(tf.Variable(value, dtype=dtype, name=name, **_UNSHARED))


def keras_initializes(variable: Any) -> Any:
    """Make Keras' session initialize a variable; return the variable."""
    for name in _KERAS_BACKENDS:
        track = getattr(sys.modules.get(name), "track_variable", None)
        if track is not None and not tf.executing_eagerly():
            track(variable)
    return variable


def in_v1_graph() -> bool:
    """Return True if new tensors belong to a graph that sessions run."""
    return not tf.executing_eagerly() and not tf.get_default_graph().building_function


def all_finite(tree: Any) -> Any:
    """Return a boolean scalar, true if all elements of all floating tensors are finite.

    IndexedSlices stay sparse; only their values count. None, integers and empty trees are finite.
    """
    leaves = [leaf for leaf in tf.nest.flatten(tree) if arrays.is_float(leaf)]
    values = [leaf.values if arrays.is_sparse(leaf) else leaf for leaf in leaves]
    tests = [tf.reduce_all(tf.is_finite(each)) for each in values]
    return tf.reduce_all(tf.stack(tests)) if tests else tf.constant(True)


def nan_gradient_if_not_finite(loss: Any) -> Any:
    """Return the loss as a tensor, with a gradient of NaN where the loss is not finite.

    The loss may overflow although all gradients are finite; then all ranks must skip the step, too.
    So the loss is multiplied by a constant: 1 where it is finite, else NaN.
    """
    loss = tf.convert_to_tensor(loss)
    if not arrays.is_float(loss):
        return loss
    one = tf.ones_like(loss)
    return loss * tf.stop_gradient(tf.where(tf.is_finite(loss), one, one * float("nan")))


def as_tensor(gradient: Any) -> Any:
    """Return a gradient; convert Python numbers and half precision to float32."""
    parts = tf.nest.flatten(gradient)
    if parts and all(isinstance(part, (int, float)) for part in parts):
        return tf.convert_to_tensor(gradient, tf.float32)
    half = arrays.dtype_name(gradient) in arrays.HALF
    return arrays.map_floats(arrays.widen, gradient) if half else gradient


def variable_of(tensor: Any) -> Any:
    """Return a variable's operation; ``tensor``: handle or reference, also in a branch or loop."""
    while tensor.op.type.endswith(("Switch", "Enter")) or (  # RefSwitch, too
        tensor.op.type == "Identity" and tensor.dtype == tf.resource
    ):
        tensor = tensor.op.inputs[0]
    return tensor.op


def dense(gradient: Any) -> Any:
    """Make ``IndexedSlices`` with a ``dense_shape`` a dense tensor; leave other gradients as is."""
    if not isinstance(gradient, tf.IndexedSlices) or gradient.dense_shape is None:
        return gradient
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, gradient.dense_shape[0])


def distinct_rows(gradient: Any) -> Any:
    """Return ``IndexedSlices`` with each row once: rows that occurred several times are summed."""
    ids, positions = tf.unique(gradient.indices)
    rows = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(ids))
    return tf.IndexedSlices(rows, ids, gradient.dense_shape)


class LossScaleVariables(tf.Module):
    """A loss scale whose state is in variables.

    ``tf.train.Checkpoint`` saves it as ``scale_variable`` and ``counter``.

    Args:
      spec: a loss scale from ``amp_xla.precision``, a number, ``"dynamic"`` or None.
      name: prefix of the variables' names.
    """

    def __init__(self, spec: Any, name: str = "loss_scale_state") -> None:
        super().__init__()
        self.spec = loss_scale.from_spec(spec)
        self.dynamic = isinstance(self.spec, loss_scale.DynamicLossScale)
        self.scale_variable: Optional[Any] = None
        self.counter: Optional[Any] = None
        if self.dynamic:
            start, count = self.spec.loss_scale, int(self.spec.counter)
            self.scale_variable = state_variable(start, tf.float32, name + "/loss_scale")
            # int64, as in Keras' checkpoints.
            self.counter = state_variable(count, tf.int64, name + "/finite_steps")

    @property
    def state_variables(self) -> List[Any]:
        """Variables of a checkpoint: [scale float32, counter int64] if dynamic, else []."""
        return [self.scale_variable, self.counter] if self.dynamic else []

    @property
    def loss_scale(self) -> Any:
        """The current scale, read at each access: a float32 scalar tensor."""
        if self.scale_variable is None:
            return tf.constant(float(self.spec.loss_scale), tf.float32)
        return self.scale_variable.read_value()

    def at(self, scale: Any) -> Any:
        """Return a ``StaticLossScale`` of ``scale``; if loss scaling is off, ``NoOpLossScale``."""
        no_scaling = isinstance(self.spec, loss_scale.NoOpLossScale)
        return self.spec if no_scaling else loss_scale.StaticLossScale(scale)

    def adjust(self, grads_finite: Any, scale: Any) -> Any:
        """Assign the next state.

        Args:
          grads_finite: boolean scalar tensor, the same on every replica.
          scale: the scale of this step.

        Returns:
          In a v1 graph the operation that assigns.
        """
        if self.scale_variable is None or self.counter is None:
            return tf.no_op()
        counter = tf.cast(self.counter.read_value(), tf.int32)
        following = self.spec.replace(scale, counter).adjust(tf.convert_to_tensor(grads_finite))
        # The old state must be read before the new one is written.
        with tf.control_dependencies([scale, counter]):
            return tf.group(
                self.scale_variable.assign(following.loss_scale),
                self.counter.assign(tf.cast(following.counter, tf.int64)),
            )


class Window:
    """Sums of unscaled float32 gradients over micro-batches, in variables.

    A window of micro-batches is one step, with one finite check. It updates the variables that got
    a gradient in any of its micro-batches. A window that is skipped restores the variables given to
    ``keep``. Sparse gradients are summed in dense variables.

    Zeros are assigned to the sums after each window. (bert4keras multiplies them by 0: after one
    infinite micro-batch they are NaN forever.) So checkpoints between windows need not contain
    the sums.

    Args:
      steps: micro-batches per update.
      name: prefix of variable names.
    """

    def __init__(self, steps: int, name: str) -> None:
        self.steps = loss_scale.whole_number("accumulate", steps, 1, "micro-batches")
        self._prefix = name
        self._sums: Dict[int, Tuple[Any, Any]] = {}  # id of a variable -> it and its sum
        self._kept: Dict[int, Tuple[Any, Any]] = {}  # it and its value before the window
        # Kinds of micro-batches, by the ids of the variables that get a gradient: the variables and
        # whether a tf.function has it. Then how often each ran; empty if a v1 graph has one kind.
        self._kinds: Dict[Tuple[int, ...], Tuple[List[Any], bool]] = {}
        self._runs: List[Any] = []
        self._built: List[Tuple[Callable[[], Any], Any]] = []  # in a v1 graph, with the results
        self.micro_step = state_variable(0, tf.int64, name + "/micro_step")
        self._copied = state_variable(0, tf.int64, name + "/copied")  # of ``_kept``, in this window

    @property
    def state_variables(self) -> List[Any]:
        """Counts (int64), sums, copies of ``keep``'s variables: all set to zero after a window."""
        return [self.micro_step, self._copied, *self._runs, *self._arrays]

    @property
    def _arrays(self) -> List[Any]:
        return [array for _, array in [*self._sums.values(), *self._kept.values()]]

    def keep(self, variables: Sequence[Any]) -> None:
        """Register variables that layers of a v1 graph update; a skipped window restores them."""
        new = [v for v in variables if id(v) not in self._kept]
        for variable in new:
            dtype = variable.dtype.base_dtype
            self._kept[id(variable)] = variable, self._zeros(variable, dtype, "start")
        if new:
            self._rebuild()

    def add(self, pairs: Pairs, at_end: Callable[[Pairs], Any]) -> Any:
        """Add the gradients of a micro-batch to the sums; call ``at_end`` if it is a window's last.

        Args:
          pairs: unscaled gradients and variables.
          at_end: function from pairs (mean gradient, variable) to (finite, norm).

        Returns:
          The result of ``at_end``, or (True, 0) if the micro-batch is not the last of a window.

        Raises:
          ValueError: a variable is new, and a ``tf.function`` that was traced earlier lacks it.
        """
        variables = [v for _, v in pairs]
        kind = tuple(sorted(map(id, variables)))
        new = kind not in self._kinds
        if new:
            self._register(kind, variables)
        number = list(self._kinds).index(kind)
        result = self._micro_batch(number, pairs, at_end)
        if not in_v1_graph():
            return result
        if new:
            self._rebuild()
        waits = list(tf.get_default_graph()._current_control_dependencies())

        def again() -> Any:
            with tf.control_dependencies(None), tf.control_dependencies(waits):
                return self._micro_batch(number, pairs, at_end)

        result = tf.nest.map_structure(tf.identity, result)
        self._built.append((again, result))
        return result

    def _rebuild(self) -> None:
        """Build the operations of each micro-batch again, so that they cover new variables.

        The results that were returned earlier are redirected to the new operations.
        """
        for build, results in self._built:
            for old, replacement in zip(results, build()):
                old.op._update_input(0, replacement)

    def _register(self, kind: Tuple[int, ...], variables: List[Any]) -> None:
        for others, traced in self._kinds.values():
            late = [v.name for v in variables if id(v) not in map(id, others)]
            if traced and late:
                raise ValueError(
                    f"accumulate: a tf.function traced before does not update {', '.join(late)}; "
                    f"pass all variables to each apply_gradients, with zero gradients for those "
                    f'that a micro-batch does not use (unconnected_gradients="zero")'
                )
        self._kinds[kind] = (variables, not tf.executing_eagerly() and not in_v1_graph())
        if len(self._kinds) > 1 or not in_v1_graph():
            for number in range(len(self._runs), len(self._kinds)):
                name = f"{self._prefix}/runs_{number}"
                self._runs.append(state_variable([0], tf.int64, name))

    def _micro_batch(self, number: int, pairs: Pairs, at_end: Callable[[Pairs], Any]) -> Any:
        added = [_add(self._sum_of(v), g) for g, v in pairs]
        if self._runs:
            added.append(self._runs[number].assign_add([1], read_value=False))
        with tf.control_dependencies([op for op in added if op is not None]):
            count = self.micro_step.read_value() + 1
            runs = [variable.read_value()[0] for variable in self._runs]
            copied = self._copied.read_value() >= len(self._kept)
        if runs and in_v1_graph():
            text = "accumulate: build all train operations before a session runs one of them"
            whole = tf.debugging.Assert(tf.equal(tf.add_n(runs), count), [text])
            with tf.control_dependencies([whole]):
                count = tf.identity(count)

        def update(variables: List[Any], others: List[Tuple[Any, Any]]) -> Any:
            if not others:
                means = [self._sum_of(v).read_value() / float(self.steps) for v in variables]
                return at_end(list(zip(means, variables)))
            (other, ran), *rest = others
            more = [v for v in other if id(v) not in map(id, variables)]
            if not more:
                return update(variables, rest)
            return tf.cond(
                ran > 0, lambda: update(variables + more, rest), lambda: update(variables, rest)
            )

        def end() -> Any:
            kinds = [variables for variables, _ in self._kinds.values()]
            result = update([v for _, v in pairs], list(zip(kinds, runs)))
            skipped = tf.logical_and(tf.logical_not(result[0]), copied)
            restored = _assign(skipped, list(self._kept.values()))
            with tf.control_dependencies([*tf.nest.flatten(result), *restored]):
                empty = [array.assign(tf.zeros_like(array)) for array in self._arrays]
                empty += [variable.assign([0]) for variable in self._runs]
                empty += [self.micro_step.assign(0), self._copied.assign(0)]
            return _wait(empty, result)

        def go_on() -> Any:
            copies = [(copy, variable) for variable, copy in self._kept.values()]
            done = _assign(tf.logical_not(copied), copies)
            with tf.control_dependencies(done):
                counts = [self.micro_step.assign(count), self._copied.assign(len(copies))]
            return _wait(counts, (tf.constant(True), tf.constant(0.0)))

        return tf.cond(count >= self.steps, end, go_on)

    def _sum_of(self, variable: Any) -> Any:
        if id(variable) not in self._sums:
            self._sums[id(variable)] = variable, self._zeros(variable, tf.float32, "sum")
        return self._sums[id(variable)][1]

    def _zeros(self, variable: Any, dtype: Any, label: str) -> Any:
        name = variable.name.partition(":")[0].replace("/", "_")
        with tf.init_scope():
            start = tf.zeros(variable.shape, dtype)
            return state_variable(start, dtype, f"{self._prefix}/{label}_{name}")


def _add(total: Any, gradient: Any) -> Any:
    if arrays.is_sparse(gradient):
        return total.scatter_add(arrays.map_floats(lambda x: tf.cast(x, tf.float32), gradient))
    return total.assign_add(tf.cast(gradient, tf.float32), read_value=False)


def _assign(condition: Any, pairs: Pairs) -> List[Any]:
    """If the condition is true, assign to each pair's first variable the value of its second."""
    if not pairs:
        return []

    def assign() -> Any:
        # Without a copy, a variable that is not a resource would share its memory.
        values = [(to, tf.raw_ops.DeepCopy(x=source.read_value())) for to, source in pairs]
        return _wait([to.assign(value) for to, value in values], tf.constant(True))

    return [tf.cond(condition, assign, lambda: tf.constant(False))]


def _wait(operations: List[Any], result: Any) -> Any:
    with tf.control_dependencies([op for op in operations if op is not None]):
        return tf.nest.map_structure(tf.identity, result)
