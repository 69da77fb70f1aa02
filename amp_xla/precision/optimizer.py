"""``LossScaleOptimizer``: loss scaling around any TensorFlow optimizer, in any TensorFlow mode.

One step, whoever takes it::

    scale the loss (float32) -> gradients -> unscale (float32) -> reduce over ranks
    -> one decision: is every gradient of every group on every rank finite?
    -> finite: clip, then update; not finite: leave weights, slots and iterations alone
    -> count the step and move the loss scale on, once

``scale_loss`` is the bare form, for scripts that want only the multiplication.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

from amp_xla.precision import arrays, clipping, loss_scale
from amp_xla.precision.inner import Inner, Pairs, inner_of
from amp_xla.precision.step import Ledger, Step, in_v1_graph
from amp_xla.precision.tensorflow import (
    LossScaleVariables,
    all_finite,
    state_variable,
    tf,
)

Group = Tuple[Callable[[Any], bool], Any]


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
    static = loss_scale.StaticLossScale(scale)
    if callable(loss):

        def scaled(*args: Any, **kwargs: Any) -> Any:
            return static.scale(loss(*args, **kwargs))

        scaled.__name__ = getattr(loss, "__name__", "loss")
        return scaled
    return static.scale(loss)


class LossScaleOptimizer:
    """Wraps an optimizer with loss scaling that skips, and counts, non-finite steps.

    Args:
      inner: a ``tf.train`` optimizer, a Keras optimizer (OptimizerV2, bert4keras', the newer
        kind, or one with only ``get_updates``), or anything with ``apply_gradients``.
      loss_scale: a number, ``"dynamic"``, None (no scaling, steps are still judged) or a loss
        scale from ``amp_xla.precision``.
      global_clipnorm: clips the gradients of a step to this global L2 norm, after unscaling.
        Clipping asked of ``inner`` (clipnorm, clipvalue, global_clipnorm) also comes after.
      count_skipped: a skipped step advances ``inner.iterations`` too, as TensorFlow 2.4-2.15's
        optimizer does; off, a skipped step leaves everything of ``inner`` alone.
      groups: pairs (predicate of a variable, optimizer); a variable goes to the first group
        that claims it, else to ``inner``. All groups share one decision.
      agreement: from a boolean scalar, whether this rank's gradients are finite, the decision
        of all ranks; see ``amp_xla.precision.agreement``. None: this rank decides alone.
      reduce: gradient -> gradient averaged over ranks, for ``minimize`` and
        ``compute_gradients``; None where ``inner`` reduces or there is one rank.
      model_parallel: predicate of a variable that lives on this rank only: its gradient counts
        in the decision but is not reduced.
      applied_steps: int64 variable to count applied steps in; made when None.
      name: prefix of variable names.

    Attributes:
      inner: the optimizer that was wrapped.
      applied_steps: int64 variable, steps whose update was applied.
      skipped_steps: int64 variable, steps skipped for a non-finite gradient.
      gradients_finite: boolean scalar of the last step built; a tensor in a graph.
      gradient_norm: float32 scalar, global L2 norm after unscaling and before clipping, of the
        last step built in a v1 graph.

    Raises:
      TypeError: ``inner`` is not an optimizer.
      ValueError: ``inner`` scales the loss or accumulates gradients itself.
    """

    def __init__(
        self,
        inner: Any,
        loss_scale: Any = "dynamic",
        global_clipnorm: Optional[float] = None,
        count_skipped: bool = False,
        groups: Sequence[Group] = (),
        agreement: Optional[Callable[[Any], Any]] = None,
        reduce: Optional[Callable[[Any], Any]] = None,
        model_parallel: Optional[Callable[[Any], bool]] = None,
        applied_steps: Optional[Any] = None,
        name: str = "loss_scale_optimizer",
    ) -> None:
        self.inner = inner
        self.name = name
        self.count_skipped = count_skipped
        self.gradients_finite: Optional[Any] = None
        self.gradient_norm: Optional[Any] = None
        self._clipnorm = global_clipnorm
        self._groups: List[Tuple[Callable[[Any], bool], Inner]] = [
            (predicate, inner_of(optimizer)) for predicate, optimizer in groups
        ] + [(lambda variable: True, inner_of(inner))]
        self._agreement = agreement
        self._reduce = reduce
        self._model_parallel = model_parallel or (lambda variable: False)
        self._ledger = Ledger()
        self._state = LossScaleVariables(loss_scale, name)
        if applied_steps is None:
            applied_steps = state_variable(0, tf.int64, name + "/applied_steps")
        self.applied_steps = applied_steps
        self.skipped_steps = state_variable(0, tf.int64, name + "/skipped_steps")

    # -- what a step is made of --------------------------------------------------------------

    @property
    def loss_scale(self) -> Any:
        """The scale in force: a float32 scalar tensor; in a v1 graph, the one of this step."""
        return self._ledger.scale(lambda: self._state.loss_scale)

    @property
    def state_variables(self) -> List[Any]:
        """What a checkpoint must hold beyond ``inner``'s own variables."""
        return [self.applied_steps, self.skipped_steps] + self._state.state_variables

    def get_scaled_loss(self, loss: Any) -> Any:
        """The loss to differentiate: ``loss * loss_scale`` in float32; starts a step.

        Args:
          loss: a floating tensor, or a function without arguments that returns one.
        """
        if callable(loss):
            return lambda: self.get_scaled_loss(loss())
        step = self._ledger.next_step(lambda: self.loss_scale)
        step.scaled = True
        scaled = self._state.at(step.scale).scale(tf.convert_to_tensor(loss))
        self._ledger.scaled(loss, scaled)
        return scaled

    def get_unscaled_gradients(self, grads: Iterable[Any]) -> List[Any]:
        """True gradients in float32 (float64 stays); None and sparseness are kept.

        Call it for every group of variables before the first ``apply_gradients`` of the step:
        each call adds its gradients to the step's one decision.

        Raises:
          RuntimeError: the step was already judged, so these gradients would go unjudged.
        """
        step = self._ledger.step(lambda: self.loss_scale)
        if step.finite is not None:
            raise RuntimeError(
                "get_unscaled_gradients after apply_gradients in one step: the first group was "
                "judged without these gradients. Unscale every group first, then apply; or start "
                "the next step with get_scaled_loss"
            )
        return self._unscale(step, list(grads))

    def _unscale(self, step: Step, grads: Sequence[Any]) -> List[Any]:
        unscaled = [self._state.at(step.scale).unscale(g) for g in grads]
        for before, after in zip(grads, unscaled):
            self._ledger.unscaled(before, after)
        step.tests.append(all_finite(unscaled))
        return unscaled

    def compute_gradients(
        self,
        loss: Any,
        var_list: Optional[Sequence[Any]] = None,
        grad_loss: Optional[Any] = None,
        tape: Optional[Any] = None,
    ) -> Pairs:
        """Pairs (unscaled float32 gradient, variable), reduced over ranks.

        Args:
          loss: unscaled; a tensor in a graph or under ``tape``, else a function.
          var_list: variables; None means the graph's trainable variables.
          grad_loss: gradient of whatever is above the loss, unscaled.
          tape: a ``tf.GradientTape`` that has recorded a loss tensor.
        """
        step = self._ledger.next_step(lambda: self.loss_scale)
        if callable(loss) or tape is not None or tf.executing_eagerly():
            pairs = self._tape_gradients(loss, var_list, grad_loss, tape)
        else:
            variables = tf.trainable_variables() if var_list is None else list(var_list)
            scaled = self.get_scaled_loss(loss)
            pairs = []
            for inner, part in self._split([(None, v) for v in variables]):
                pairs += inner.gradients(scaled, [v for _, v in part], grad_loss)
            pairs = _in_order(pairs, variables)
        variables = [v for _, v in pairs]
        unscaled = [self._state.at(step.scale).unscale(g) for g, _ in pairs]
        for (before, _), after in zip(pairs, unscaled):
            self._ledger.unscaled(before, after)
        if self._reduce is not None:
            unscaled = [
                g if g is None or self._model_parallel(v) else self._reduce(g)
                for g, v in zip(unscaled, variables)
            ]
        step.tests.append(all_finite(unscaled))
        return list(zip(unscaled, variables))

    def _tape_gradients(self, loss: Any, var_list: Any, grad_loss: Any, tape: Any) -> Pairs:
        tape = tf.GradientTape() if tape is None else tape
        with tape:
            value = loss() if callable(loss) else loss
            scaled = self.get_scaled_loss(value)
        variables = var_list() if callable(var_list) else var_list
        variables = list(tape.watched_variables() if variables is None else variables)
        return list(zip(tape.gradient(scaled, variables, grad_loss), variables))

    def apply_gradients(
        self,
        grads_and_vars: Iterable[Tuple[Any, Any]],
        global_step: Optional[Any] = None,
        name: Optional[str] = None,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        """Applies unscaled gradients if the step is finite; moves counters and scale on, once.

        Args:
          grads_and_vars: pairs; None gradients are dropped.
          global_step: variable to increment when the step is applied.
          name: of the operation.
          experimental_aggregate_gradients: False where the gradients of this call must not be
            summed over replicas (model-parallel variables).

        Returns:
          An operation in a graph, None eagerly.

        Raises:
          ValueError: no gradient at all.
        """
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        if not pairs:
            raise ValueError("no gradients: the loss reaches none of the variables")
        with tf.name_scope(name or self.name):
            step = self._ledger.step(lambda: self.loss_scale)
            parts = self._split(pairs)
            if experimental_aggregate_gradients:
                parts = self._aggregate(step, parts)
            return self._apply(step, parts, global_step, more_groups=True)

    def minimize(
        self,
        loss: Any,
        var_list: Optional[Sequence[Any]] = None,
        global_step: Optional[Any] = None,
        grad_loss: Optional[Any] = None,
        name: Optional[str] = None,
        tape: Optional[Any] = None,
    ) -> Any:
        """One training step; arguments as in ``compute_gradients`` and ``apply_gradients``."""
        pairs = self.compute_gradients(loss, var_list, grad_loss, tape)
        try:
            return self.apply_gradients(pairs, global_step, name)
        finally:
            self._ledger.close()

    def get_gradients(self, loss: Any, params: Sequence[Any]) -> List[Any]:
        """Keras' name for unscaled gradients in a graph."""
        return [g for g, _ in self.compute_gradients(loss, params)]

    def get_updates(self, loss: Any, params: Sequence[Any]) -> List[Any]:
        """Keras' name for ``minimize`` in a graph; what ``model.fit`` calls there."""
        return [self.minimize(loss, params)]

    # -- the decision ------------------------------------------------------------------------

    def _split(self, pairs: Pairs) -> List[Tuple[Inner, Pairs]]:
        """Pairs by optimizer: each goes to the first group that claims its variable."""
        parts: List[Tuple[Inner, Pairs]] = [(inner, []) for _, inner in self._groups]
        for gradient, variable in pairs:
            claims = (i for i, (claims, _) in enumerate(self._groups) if claims(variable))
            parts[next(claims)][1].append((gradient, variable))
        return [(inner, part) for inner, part in parts if part]

    def _apply(
        self, step: Step, parts: clipping.Parts, global_step: Any, more_groups: bool
    ) -> Any:
        norm = clipping.global_norm([g for _, part in parts for g, _ in part])
        first = step.finite is None
        if first:
            self._judge(step, parts, norm)
        for inner, part in parts:
            inner.prepare([v for _, v in part])
        again = [inner for inner, _ in parts if inner in step.shared]
        if more_groups:
            step.remember([inner for inner, _ in parts])

        def update() -> Any:
            with tf.control_dependencies(step.rewind(again)):
                clipped = clipping.clip(parts, norm, self._clipnorm)
                done = [inner.apply(part) for inner, part in clipped]
            counters = [self.applied_steps] if first else []
            counters += [] if global_step is None else [global_step]
            return _after(done, lambda: [c.assign_add(1, read_value=False) for c in counters])

        def skip() -> Any:
            def count() -> List[Any]:
                done = [self.skipped_steps.assign_add(1, read_value=False)] if first else []
                if self.count_skipped:
                    done += [inner.count_skipped() for inner, _ in parts if inner not in again]
                return done

            return _after([], count)

        with tf.control_dependencies(step.reads()):
            operation = tf.cond(step.finite, update, skip)
        moved = self._state.adjust(step.finite, step.scale) if first else tf.no_op()
        if tf.executing_eagerly():
            return None
        step.applied.append(tf.group(operation, moved))
        return step.applied[-1]

    def _aggregate(self, step: Step, parts: clipping.Parts) -> clipping.Parts:
        """Sums over replicas or ranks where the optimizers do so, and judges the sums."""
        reduced = [(inner, inner.aggregate(part)) for inner, part in parts]
        if any(new is not old for (_, new), (_, old) in zip(reduced, parts)):
            step.tests.append(all_finite([g for _, part in reduced for g, _ in part]))
        return reduced

    def _judge(self, step: Step, parts: clipping.Parts, norm: clipping.Norm) -> None:
        """Takes the step's one decision."""
        tests = step.tests or [all_finite([g for _, part in parts for g, _ in part])]
        if clipping.clips_globally(parts, self._clipnorm):
            # Finite gradients can have an infinite norm, and clipping by it makes NaN.
            tests = tests + [tf.is_finite(norm())]
        finite = tests[0] if len(tests) == 1 else tf.reduce_all(tf.stack(tests))
        step.finite = finite if self._agreement is None else self._agreement(finite)
        self.gradients_finite = step.finite
        self.gradient_norm = norm() if in_v1_graph() else None


def _after(operations: List[Any], more: Callable[[], List[Any]]) -> Any:
    """Runs ``more`` after the operations; a constant, since both branches must return alike."""
    with tf.control_dependencies([op for op in operations if op is not None]):
        later = more()
    with tf.control_dependencies([op for op in operations + later if op is not None]):
        return tf.constant(True)


def _in_order(pairs: Pairs, variables: Sequence[Any]) -> Pairs:
    """Pairs in the order of the variables, matched by variable."""
    where = {id(v): g for g, v in pairs}
    return [(where.get(id(v)), v) for v in variables]
