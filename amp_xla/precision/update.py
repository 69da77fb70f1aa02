"""Judging a step and applying it: one decision, one branch, one move of the loss scale."""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Optional

import numpy as np

from amp_xla.precision import agreement, clipping, replicas
from amp_xla.precision.clipping import Parts
from amp_xla.precision.ledger import Step
from amp_xla.precision.monitor import Monitor
from amp_xla.precision.tensorflow import LossScaleVariables, all_finite, tf


class Rules(NamedTuple):
    """How an optimizer judges and applies; what these mean is said in ``LossScaleOptimizer``."""

    state: LossScaleVariables
    applied_steps: Any
    skipped_steps: Any
    clipnorm: Optional[float]
    count_skipped: bool
    agreement: Optional[Callable[[Any], Any]]
    model_parallel: Callable[[Any], bool]
    monitor: Optional[Monitor]


class Outcome(NamedTuple):
    """What came of a step: the decision, the norm before clipping (lazily), the operation."""

    finite: Any
    norm: clipping.Norm
    operation: Any


def gradients_of(parts: Parts) -> List[Any]:
    """All gradients of all optimizers' pairs."""
    return [g for _, pairs in parts for g, _ in pairs]


def aggregate(step: Step, parts: Parts) -> Parts:
    """Sums over replicas or ranks where the optimizers do so, and judges the sums."""
    reduced = [(inner, inner.aggregate(pairs)) for inner, pairs in parts]
    if any(new is not old for (_, new), (_, old) in zip(reduced, parts)):
        step.tests.append(all_finite(gradients_of(reduced)))
    return reduced


def take(rules: Rules, step: Step, parts: Parts, global_step: Any, more_groups: bool) -> Outcome:
    """Applies one group of a step.

    Args:
      rules: the optimizer's.
      step: judged here if this is its first group.
      parts: optimizers and their pairs of (unscaled gradient, variable).
      global_step: variable to increment when the step is applied, or None.
      more_groups: another group of the same step may follow.
    """
    own = [rules.model_parallel(v) for _, pairs in parts for _, v in pairs]
    total = getattr(rules.agreement, "total", None)
    norm = clipping.global_norm(gradients_of(parts), own, total)
    first = step.finite is None
    if first:
        step.finite = judge(rules, step, parts, norm)
    for inner, pairs in parts:
        inner.prepare([v for _, v in pairs])
    inners = [inner for inner, _ in parts]
    gradients = gradients_of(parts)
    if rules.clipnorm is not None:
        gradients = gradients + [norm()]

    def apply(values: List[Any]) -> List[Any]:
        own = _with_gradients(parts, values)
        clipped = clipping.clip(own, lambda: values[-1], rules.clipnorm)
        return [inner.apply(pairs) for inner, pairs in clipped]

    def branch(each_replica: Callable[..., List[Any]], scalars: List[Any]) -> Any:
        finite, scale = scalars
        again = [inner for inner in inners if inner in step.shared]
        if more_groups:
            step.remember(inners)

        def update() -> Any:
            with tf.control_dependencies(step.rewind(again)):
                done = each_replica(apply)
            counters = [rules.applied_steps] if first else []
            counters += [] if global_step is None else [global_step]
            return after(done, lambda: [c.assign_add(1, read_value=False) for c in counters])

        def skip() -> Any:
            def count() -> List[Any]:
                done = _count_skip(rules, scale) if first else []
                if rules.count_skipped:
                    done += [inner.count_skipped() for inner in inners if inner not in again]
                return done

            return after([], count)

        with tf.control_dependencies(step.reads()):
            operation = tf.cond(finite, update, skip)
        return tf.group(operation, rules.state.adjust(finite, scale)) if first else operation

    if replicas.inside():
        operation = replicas.together(branch, gradients, [step.finite, step.scale])
    else:
        operation = branch(lambda run: run(gradients), [step.finite, step.scale])
    if not tf.executing_eagerly():
        operation = tf.group(operation)
        step.applied.append(operation)
    return Outcome(step.finite, norm, operation)


def _with_gradients(parts: Parts, values: List[Any]) -> Parts:
    """The parts with other gradients, in order."""
    remaining = iter(values)
    return [(inner, [(next(remaining), v) for _, v in pairs]) for inner, pairs in parts]


def _count_skip(rules: Rules, scale: Any) -> List[Any]:
    done = [rules.skipped_steps.assign_add(1, read_value=False)]
    if rules.monitor is not None and not _compiled():
        # Only ever runs in a skipped step, so the host call costs a healthy run nothing.
        monitor = rules.monitor

        def tell(scale: Any, applied: Any) -> Any:
            monitor.skipped(scale, applied)
            return np.int64(0)

        arguments = [scale, rules.applied_steps.read_value()]
        done.append(tf.numpy_function(tell, arguments, tf.int64))
    return done


def _compiled() -> bool:
    """True while XLA's graph of a whole step is built: such a step cannot call the host."""
    from tensorflow.python.ops import control_flow_util

    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.get_default_graph()))


def judge(rules: Rules, step: Step, parts: Parts, norm: clipping.Norm) -> Any:
    """The step's one decision: a boolean scalar, the same on every rank that takes part."""
    tests = step.tests or [all_finite(gradients_of(parts))]
    if clipping.clips_globally(parts, rules.clipnorm):
        # Finite gradients can have an infinite norm, and clipping by it makes NaN.
        tests = tests + [tf.is_finite(norm())]
    finite = tests[0] if len(tests) == 1 else tf.reduce_all(tf.stack(tests))
    finite = agreement.replicas()(finite)
    return finite if rules.agreement is None else rules.agreement(finite)


def after(operations: List[Any], more: Callable[[], List[Any]]) -> Any:
    """Runs ``more`` after the operations; a constant, since both branches must return alike."""
    with tf.control_dependencies([op for op in operations if op is not None]):
        later = more()
    with tf.control_dependencies([op for op in operations + later if op is not None]):
        return tf.constant(True)
