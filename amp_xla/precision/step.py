"""A training step in TensorFlow: scale, unscale, check once; then clip and apply, or skip.

All groups of variables in a step share one decision and one adjustment of the loss scale.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla.precision import agreement, arrays, assigned
from amp_xla.precision.inner import Inner
from amp_xla.precision.loss_scale import LossScaleWarning
from amp_xla.precision.tensorflow import (
    LossScaleVariables,
    Pairs,
    all_finite,
    distinct_rows,
    in_v1_graph,
    nan_gradient_if_not_finite,
    tf,
)

Parts = List[Tuple[Inner, Pairs]]
Norm = Callable[[], Any]


@dataclasses.dataclass(eq=False)
class Step:
    """State of a step while its operations are being built.

    Attributes:
      scale: the float32 scale of the whole step.
      scaled: whether a loss of this step was scaled.
      unscaled: gradients that were unscaled.
      tested: gradients that have been tested; none is tested twice.
      tests: boolean scalars, results of tests that ``finite`` does not include yet.
      finite: boolean scalar, whether all gradients are finite; None before the first group is
        applied.
      variables: variables of the groups applied so far.
      norm: function that builds the global norm of the last group applied.
      applied: operations of the groups applied so far, in order; empty in eager code.
      shared: optimizer -> pairs (variable, value before the step). The variables are those that
        every ``apply_gradients`` of the optimizer advances, such as ``iterations``.
    """

    scale: Any
    scaled: bool = False
    unscaled: List[Any] = dataclasses.field(default_factory=list)
    tested: List[Any] = dataclasses.field(default_factory=list)
    tests: List[Any] = dataclasses.field(default_factory=list)
    finite: Optional[Any] = None
    variables: List[Any] = dataclasses.field(default_factory=list)
    norm: Optional[Norm] = None
    applied: List[Any] = dataclasses.field(default_factory=list)
    shared: Dict[Any, List[Tuple[Any, Any]]] = dataclasses.field(default_factory=dict)

    def test(self, gradients: Sequence[Any]) -> None:
        """Include gradients in the decision whether to skip the step; test none of them twice."""
        known = {id(g) for g in self.tested}
        untested = [g for g in gradients if id(g) not in known]
        if untested:
            self.tested += untested
            self.tests.append(all_finite(untested))


@dataclasses.dataclass(eq=False)
class Steps:
    """Builds an optimizer's steps. It has one unfinished ``Step`` per graph and replica.

    Attributes:
      state: variables of the loss scale.
      agree: function that makes one decision for all ranks (``agreement.py``), or None.
      warn: ``Monitor`` or None.
      ever_scaled: whether any step has scaled a loss.
    """

    state: LossScaleVariables
    applied_steps: Any
    skipped_steps: Any
    global_clipnorm: Optional[float]
    counts_skipped: bool
    agree: Optional[Callable[[Any], Any]]
    model_parallel: Callable[[Any], bool]
    warn: Optional[Monitor]
    ever_scaled: bool = False

    @property
    def loss_scale(self) -> Any:
        """The loss scale, a float32 scalar tensor; in a v1 graph, always the same tensor."""
        if not in_v1_graph():
            return self.state.loss_scale
        scales = self._stored("_amp_xla_scales")
        if self not in scales:
            scales[self] = self.state.loss_scale
        return scales[self]

    def current(self) -> Step:
        """Return the step under construction; begin one if there is none.

        Raises:
          RuntimeError: the variables belong to another graph.
        """
        if in_v1_graph() and getattr(self.applied_steps, "graph", 0) is not tf.get_default_graph():
            raise RuntimeError(
                "this LossScaleOptimizer belongs to another graph: after K.clear_session(), create "
                "it and its inner optimizer again; in another thread, train inside "
                "`with graph.as_default(), session.as_default():`"
            )
        steps, key = self._stored("_amp_xla_steps"), (self, agreement.replica_index())
        if key not in steps:
            steps[key] = Step(self.loss_scale)
        return steps[key]

    def next(self) -> Step:
        """Return the step under construction; begin a new one if it was applied or abandoned.

        Eager code abandons a step if it unscales gradients and does not apply them.
        """
        step = self.current()
        if step.finite is not None or (step.unscaled and tf.executing_eagerly()):
            self.close()
        return self.current()

    def of(self, variables: Sequence[Any]) -> Step:
        """Return the current step, or a new one if the current has updated one of ``variables``."""
        applied = {id(v) for v in self.current().variables}
        if any(id(v) in applied for v in variables):
            self.close()
        step = self.current()
        step.variables += variables
        return step

    def close(self) -> None:
        """End the step under construction."""
        self._stored("_amp_xla_steps").pop((self, agreement.replica_index()), None)

    def _stored(self, name: str) -> Dict[Any, Any]:
        """Return a dictionary stored on the graph, to be freed with it; eagerly, on this object."""
        owner = self if tf.executing_eagerly() else tf.get_default_graph()
        if not hasattr(owner, name):
            setattr(owner, name, {})
        return getattr(owner, name)

    def scale(self, loss: Any) -> Any:
        """Return the scaled float32 loss; this starts a step."""
        step = self.next()
        step.scaled = self.ever_scaled = True
        return self.state.at(step.scale).scale(nan_gradient_if_not_finite(loss))

    def unscale(self, grads: Sequence[Any]) -> List[Any]:
        """Return unscaled float32 gradients; None stays None, sparse gradients stay sparse."""
        step = self.current()
        if step.finite is not None and step.scaled:
            raise RuntimeError(
                "get_unscaled_gradients was called after apply_gradients in the same step: the "
                "gradients applied first were checked without these. Unscale all gradients first, "
                "then apply; or start the next step with get_scaled_loss"
            )
        done = {id(g) for g in step.unscaled if g is not None}
        if step.finite is None and any(id(g) in done for g in tf.nest.flatten(list(grads))):
            raise RuntimeError(
                "get_unscaled_gradients got a gradient that this step has already unscaled; "
                "unscale each gradient once, or start the next step with get_scaled_loss"
            )
        if not step.scaled:  # the user scales the loss, so the step starts here
            step = self.next()
        unscaled = self.state.at(step.scale).unscale(arrays.map_floats(arrays.widen, list(grads)))
        step.unscaled += tf.nest.flatten(unscaled)
        return unscaled

    def apply(
        self, step: Step, parts: Parts, global_step: Any, aggregate: bool, more_groups: bool
    ) -> Any:
        """Apply the gradients of one group of variables if the step is finite.

        The first call in a step decides for all groups: it checks all gradients unscaled so far. A
        later call checks those of its gradients that no earlier call has checked. If one of
        them is not finite, the later call's group and all groups after it are skipped.

        Args:
          step: the step under construction; this call sets its ``finite``, ``norm``, ``applied``.
          parts: optimizers and their pairs of (unscaled gradient, variable).
          global_step: variable to increment when the step is applied, or None.
          aggregate: sum gradients over replicas or ranks, if the optimizers do so.
          more_groups: whether another group of the same step may follow.

        Returns:
          The operation, in a graph.
        """
        if aggregate:
            parts = [(inner, inner.aggregate(pairs)) for inner, pairs in parts]
        step.test([g for _, pairs in parts for g, _ in pairs])
        parts = [(inner, inner.summed(pairs)) for inner, pairs in parts]
        gradients = [g for _, pairs in parts for g, _ in pairs]
        variables = [v for _, pairs in parts for _, v in pairs]
        if self.warn is not None and not in_v1_graph():
            names = (v.name for v in variables)
            self.warn.layer = next((name for name in names if "batch_norm" in name), "")
        local = [self.model_parallel(v) for v in variables]
        norm = global_norm(gradients, local, getattr(self.agree, "total", None))
        step.norm = norm
        first = step.finite is None
        self._decide(step, parts, norm)
        inners = [inner for inner, _ in parts]
        for inner, pairs in parts:
            inner.prepare([v for _, v in pairs])
        if self.global_clipnorm is not None:
            gradients = gradients + [norm()]

        def apply_all(values: List[Any]) -> List[Any]:
            remaining = iter(values)
            paired = [(inner, [(next(remaining), v) for _, v in pairs]) for inner, pairs in parts]
            clipped = clip(paired, values[-1], self.global_clipnorm)
            return assigned.forwarded(lambda: [inner.apply(pairs) for inner, pairs in clipped])

        def branch(each_replica: Callable[..., List[Any]], scalars: List[Any]) -> Any:
            finite, scale = scalars
            repeated = [inner for inner in inners if inner in step.shared]
            if more_groups:
                for inner in inners:
                    if inner not in step.shared:
                        step.shared[inner] = [(v, v.read_value()) for v in inner.shared_state]

            def update() -> Any:
                # An earlier group has advanced these variables, which must advance once per step.
                rewound = [v.assign(old) for inner in repeated for v, old in step.shared[inner]]
                with tf.control_dependencies(rewound):
                    done = each_replica(apply_all)
                counters = [self.applied_steps] if first else []
                counters += [] if global_step is None else [global_step]
                return _after(done, lambda: [c.assign_add(1, read_value=False) for c in counters])

            def skip() -> Any:
                done = self._skipped(scale) if first else []
                if self.counts_skipped:
                    steps = [inner.iterations for inner in inners if inner not in repeated]
                    done += [variable.assign_add(1, read_value=False) for variable in steps]
                return _after([], lambda: done)

            reads = [value for pairs in step.shared.values() for _, value in pairs]
            with tf.control_dependencies(reads + step.applied):
                operation = tf.cond(finite, update, skip)
            return tf.group(operation, self.state.adjust(finite, scale)) if first else operation

        operation = agreement.in_all_replicas(branch, gradients, [step.finite, step.scale])
        if not tf.executing_eagerly():
            operation = tf.group(operation)
            step.applied.append(operation)
        return operation

    def _decide(self, step: Step, parts: Parts, norm: Norm) -> None:
        """Set ``step.finite`` to whether all ``step.tests`` are true on all ranks and replicas."""
        if self.global_clipnorm is not None or any("global_clipnorm" in i.clips for i, _ in parts):
            # Finite gradients can have an infinite norm, and clipping by it makes NaN.
            step.tests.append(tf.is_finite(norm()))
        if not step.tests:
            return  # a later group, tested with the first one
        finite = agreement.replicas_agree(tf.reduce_all(tf.stack(step.tests)))
        finite = finite if self.agree is None else self.agree(finite)
        step.finite = finite if step.finite is None else tf.logical_and(step.finite, finite)
        step.tests = []

    def _skipped(self, scale: Any) -> List[Any]:
        from tensorflow.python.ops import control_flow_util

        done = [self.skipped_steps.assign_add(1, read_value=False)]
        # A graph that XLA compiles as a whole cannot call Python.
        within_xla = control_flow_util.GraphOrParentsInXlaContext(tf.get_default_graph())
        if self.warn is not None and not within_xla:
            # Runs in skipped steps only, so that other steps do not wait for Python.
            arguments = [scale, self.applied_steps.read_value()]
            done.append(tf.numpy_function(self.warn, arguments, tf.int64))
        return done


def global_norm(
    grads: Sequence[Any], local: Sequence[bool], total: Optional[Callable[[Any], Any]]
) -> Norm:
    """Return a function that builds the float32 L2 norm of all gradients at its first call.

    Rows that occur twice in a sparse gradient are summed first, so that its norm equals that of the
    dense gradient. TensorFlow's ``global_norm`` does not sum them, so it can be too small.

    Args:
      grads: unscaled gradients.
      local: for each gradient, whether its variable exists on this rank alone.
      total: function that sums a float32 scalar over ranks, so that all ranks get the same norm.
    """

    @functools.lru_cache(maxsize=None)
    def norm() -> Any:
        dense = [distinct_rows(g).values if arrays.is_sparse(g) else g for g in grads]
        halves = [tf.cast(tf.nn.l2_loss(values), tf.float32) for values in dense]
        if total is not None and any(local):
            mine = [half for half, is_local in zip(halves, local) if is_local]
            halves = [half for half, is_local in zip(halves, local) if not is_local]
            halves.append(total(tf.add_n(mine)))
        return tf.sqrt(2.0 * tf.add_n(halves))  # each is sum(g ** 2) / 2

    return norm


def clip(parts: Parts, norm: Any, limit: Optional[float]) -> Parts:
    """Clip by the global norm, then by each optimizer's own limits; cast to the variables' dtypes.

    Args:
      parts: optimizers and their pairs of (unscaled gradient, variable).
      norm: the global norm of all gradients; not used without ``limit``.
      limit: the largest allowed norm; None leaves only the optimizers' own limits.

    Returns:
      The same parts with gradients in their variables' dtypes.
    """
    factor = None if limit is None else limit / tf.maximum(norm, limit)

    def scaled(values: Any) -> Any:
        return values if factor is None else values * arrays.cast_like(factor, values)

    def narrow(gradient: Any, variable: Any) -> Any:
        dtype = arrays.dtype_name(variable) or "float32"
        return arrays.map_floats(lambda values: arrays.cast(values, dtype), gradient)

    result = []
    for inner, pairs in parts:
        clipped = inner.clip([(arrays.map_floats(scaled, g), v) for g, v in pairs])
        result.append((inner, [(narrow(g, v), v) for g, v in clipped]))
    return result


class Monitor:
    """A function that each skipped step calls, to warn the user of a problem.

    It warns if steps are skipped at the minimum scale, once per streak; if gradients overflow under
    a constant scale; and in eager code, once, if a layer's updates have run in a skipped step.

    Args:
      spec: the loss scale.
      patience: skipped steps in a row at the minimum scale before the warning.

    Attributes:
      layer: outside v1 graphs, name of a BatchNormalization weight; empty if there is none.
    """

    def __init__(self, spec: Any, patience: int) -> None:
        self._minimum, self._patience = getattr(spec, "minimum", None), patience
        self._applied, self._streak, self._count = -1, 0, 0
        self.layer = ""

    def __call__(self, scale: Any, applied_steps: Any) -> Any:
        """Count a skipped step, and warn if necessary."""
        if self._applied != applied_steps:  # a step that was applied ends the streak
            self._applied, self._streak = int(applied_steps), 0
        self._count += 1
        at_minimum = self._minimum is not None and scale <= self._minimum
        self._streak = self._streak + 1 if at_minimum else 0
        if self._count == 1 and self.layer:
            self._warn(
                f"a step was skipped in eager code, but the layer with the weight {self.layer} had "
                f"already updated its moving averages in the forward pass; in graph mode (import "
                f"amp_xla.setup), fit updates them in applied steps only"
            )
        if self._minimum is None and self._count in (1, 10, 100, 1000, 10000):
            advice = 'lower the scale or use loss_scale="dynamic"'
            if scale <= 1:  # scaling is not the cause
                advice = "search for NaN in the data or the model, or lower the learning rate"
            self._warn(
                f"non-finite gradients under the constant loss scale {scale:g}: step skipped, "
                f"{self._count} so far. A few are harmless; if they go on, {advice}"
            )
        elif self._streak == self._patience:
            self._warn(
                f"the loss scale has been at its minimum, {scale:g}, for {self._streak} steps in a "
                f"row and gradients are still not finite, so scaling is not the cause: search for "
                f"NaN in the data or the model, lower the learning rate, or allow a smaller minimum"
            )
        return np.int64(0)

    def _warn(self, message: str) -> None:
        warnings.warn(message, LossScaleWarning, stacklevel=3)


def _after(operations: List[Any], later: Callable[[], List[Any]]) -> Any:
    """Run ``later`` after ``operations``; return a tensor, because ``tf.cond`` needs one."""
    with tf.control_dependencies([op for op in operations if op is not None]):
        last = later()
    with tf.control_dependencies([op for op in operations + last if op is not None]):
        return tf.constant(True)
