"""``LossScaleOptimizer``: loss scaling around any TensorFlow optimizer, in any TensorFlow mode.

One step, whoever takes it::

    scale the loss (float32) -> gradients -> unscale (float32) -> reduce over ranks
    -> one decision: is every gradient of every group on every rank finite?
    -> finite: clip, then update; not finite: leave weights, slots and iterations alone
    -> count the step and move the loss scale on, once

``scale_loss`` is the bare form, for scripts that want only the multiplication.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple, Union

from amp_xla.graph.recompute import recompute as recompute_layers
from amp_xla.precision import agreement as agreements
from amp_xla.precision import clipping, keras_class, update
from amp_xla.precision.accumulation import Window
from amp_xla.precision.facade import OptimizerFace, Trackable
from amp_xla.precision.inner import Inner, Pairs, in_order, inner_of
from amp_xla.precision.keras_class import keras_of
from amp_xla.precision.ledger import Step, in_v1_graph
from amp_xla.precision.monitor import Monitor
from amp_xla.precision.reduction import over_ranks
from amp_xla.precision.scaling import Scaling, scale_loss
from amp_xla.precision.tensorflow import (
    LossScaleVariables,
    all_finite,
    state_variable,
    tf,
)

__all__ = ("LossScaleOptimizer", "scale_loss")

Group = Tuple[Callable[[Any], bool], Any]


class LossScaleOptimizer(OptimizerFace):
    """Wraps an optimizer with loss scaling that skips, and counts, non-finite steps.

    Args:
      inner: a ``tf.train`` optimizer, a Keras optimizer (OptimizerV2, bert4keras', the newer
        kind), or anything with ``apply_gradients``.
      loss_scale: a number, ``"dynamic"``, None (no scaling, steps are still judged) or a loss
        scale from ``amp_xla.precision``.
      global_clipnorm: clips gradients to this global L2 norm, after unscaling: those of a step,
        or of one ``apply_gradients`` where a step has several. Clipping asked of ``inner``
        (clipnorm, clipvalue, global_clipnorm) also comes after.
      count_skipped: a skipped step advances ``inner.iterations`` too, as TensorFlow 2.4-2.15's
        optimizer does; off, a skipped step leaves everything of ``inner`` alone.
      groups: pairs (predicate of a variable, optimizer); a variable goes to the first group
        that claims it, else to ``inner``. All groups share one decision.
      agreement: from a boolean scalar, whether this rank's gradients are finite, the decision
        of all ranks; see ``amp_xla.precision.agreement``. ``auto``: Horovod's ranks where it is
        initialized with several, else this rank decides alone, as with None. Replicas of a
        ``tf.distribute`` strategy always agree.
      reduce: gradient -> gradient averaged over ranks, for ``minimize`` and
        ``compute_gradients``; None where ``inner`` reduces or there is one rank.
      model_parallel: predicate of a variable that lives on this rank only: its gradient counts
        in the decision but is not reduced.
      accumulate: micro-batches a step. Each ``minimize`` or ``apply_gradients`` adds one; the
        last of a window updates with the mean of its gradients, judged once. The loss scale is
        constant within a window. Ranks reduce once a window.
      recompute: the backward pass computes bert4keras' transformer layers again instead of
        keeping their activations; by ``minimize`` and ``compute_gradients``, in v1 graphs. See
        ``amp_xla.graph.recompute``.
      warn_after: skipped steps in a row at the minimum scale before a warning; 0 turns that and
        the warning about non-finite steps under a constant scale off. In
        ``tf.function(jit_compile=True)`` there are none: a compiled step cannot call the host.
      applied_steps: int64 variable to count applied steps in; made when None.
      name: prefix of variable names.

    Attributes:
      inner: the wrapped optimizer.
      applied_steps: int64 variable, steps whose update was applied.
      skipped_steps: int64 variable, steps skipped for a non-finite gradient.
      gradients_finite: boolean scalar of the last step built; a tensor in a graph.
      window: the sums of a window, where micro-batches are accumulated; else None.
      gradient_norm: float32 scalar, global L2 norm after unscaling and before clipping, of the
        last step built in a v1 graph. With model-parallel variables the ranks sum it together,
        so all of them must fetch it or none.

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
        agreement: Union[Callable[[Any], Any], str, None] = "auto",
        reduce: Optional[Callable[[Any], Any]] = None,
        model_parallel: Optional[Callable[[Any], bool]] = None,
        accumulate: int = 1,
        recompute: bool = False,
        warn_after: int = 10,
        applied_steps: Optional[Any] = None,
        name: str = "loss_scale_optimizer",
    ) -> None:
        if isinstance(self, tf.train.Optimizer):
            tf.train.Optimizer.__init__(self, False, name)  # it tracks checkpoints its own way
        self.inner = inner
        self.name = name
        self.gradients_finite: Optional[Any] = None
        self.gradient_norm: Optional[Any] = None
        self._groups: List[Tuple[Callable[[Any], bool], Inner]] = [
            (predicate, inner_of(optimizer)) for predicate, optimizer in groups
        ] + [(lambda variable: True, inner_of(inner))]
        self._reduce = reduce
        self._model_parallel = model_parallel or (lambda variable: False)
        agree = agreements.choose(agreement)
        if model_parallel is not None:
            agreements.check_clipping(agree, global_clipnorm, [i.clips for _, i in self._groups])
        self._state = LossScaleVariables.of(loss_scale, name)
        self._scaling = Scaling(self._state)
        self.accumulate = accumulate  # micro-batches a step
        self._recompute = recompute
        self.window = Window(accumulate, name) if accumulate != 1 else None
        if applied_steps is None:
            applied_steps = state_variable(0, tf.int64, name + "/applied_steps")
        self.applied_steps = applied_steps
        self.skipped_steps = state_variable(0, tf.int64, name + "/skipped_steps")
        self._rules = update.Rules(
            self._state,
            self.applied_steps,
            self.skipped_steps,
            global_clipnorm,
            count_skipped,
            agree,
            self._model_parallel,
            Monitor(self._state.spec, warn_after) if warn_after else None,
        )
        self._config = {
            "loss_scale": self._state.spec.spec(),
            "global_clipnorm": global_clipnorm,
            "count_skipped": count_skipped,
            "accumulate": accumulate,
            "recompute": recompute,
            "warn_after": warn_after,
            "name": name,
        }
        self._functions = {
            "groups": groups,
            "agreement": None if agreement == "auto" else agreement,
            "reduce": reduce,
            "model_parallel": model_parallel,
        }
        self._track()

    def __new__(cls, inner: Any, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(keras_class.concrete(cls, inner_of(inner)))

    def _track(self) -> None:
        """Makes checkpoints and Keras' session know what is inside."""
        self._optimizer = self.inner  # under this name Keras' own methods look for it
        self._trackable = tf.Module()  # some bases delegate tracking to it
        for index, (_, inner) in enumerate(self._groups[:-1]):
            self._track_trackable(inner.optimizer, f"group_{index}")
        names = ("inner", "applied_steps", "skipped_steps", "_state")
        for name in names:
            child = getattr(self, name)
            if isinstance(child, Trackable):
                self._track_trackable(child, name.lstrip("_"))
        if self.window is not None:
            self._track_trackable(self.window, "window")
        keras_class.let_keras_initialize(keras_of(self.inner), self.state_variables)
        self._ready = True

    # -- what a step is made of --------------------------------------------------------------

    @property
    def loss_scale(self) -> Any:
        """The scale in force: a float32 scalar tensor; in a v1 graph, the one of this step."""
        return self._scaling.loss_scale

    @property
    def loss_scale_at_start(self) -> Any:
        """The NoOp-, Static- or ``DynamicLossScale`` that this optimizer was built with."""
        return self._state.spec

    @property
    def state_variables(self) -> List[Any]:
        """What a checkpoint must hold beyond ``inner``'s own variables.

        With ``accumulate`` the sums are among them once a step has been built.
        """
        window = [] if self.window is None else self.window.state_variables
        return [self.applied_steps, self.skipped_steps] + self._state.state_variables + window

    def get_scaled_loss(self, loss: Any) -> Any:
        """The loss to differentiate: ``loss * loss_scale`` in float32; starts a step.

        Args:
          loss: a floating tensor, or a function without arguments that returns one.
        """
        if callable(loss):
            return lambda: self.get_scaled_loss(loss())
        return self._scaling.scale(loss)

    def get_unscaled_gradients(self, grads: Iterable[Any]) -> List[Any]:
        """True gradients in float32 (float64 stays); None and sparseness are kept.

        Call it for every group of variables before the first ``apply_gradients`` of the step:
        each call adds its gradients to the step's one decision.

        Raises:
          RuntimeError: the step was already judged, so these gradients would go unjudged.
        """
        step = self._scaling.step
        if step.finite is not None:
            raise RuntimeError(
                "get_unscaled_gradients after apply_gradients in one step: the first group was "
                "judged without these gradients. Unscale every group first, then apply; or start "
                "the next step with get_scaled_loss"
            )
        unscaled = self._scaling.unscale(step, list(grads))
        if self.window is None:
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

        Raises:
          ValueError: ``recompute`` was asked for, and this is no v1 graph.
        """
        if self._recompute and (callable(loss) or tape is not None or not in_v1_graph()):
            raise ValueError("recompute=True takes a loss that is a tensor of a v1 graph")
        step = self._scaling.next_step()
        if callable(loss) or tape is not None or tf.executing_eagerly():
            pairs = self._tape_gradients(loss, var_list, grad_loss, tape)
        else:
            variables = tf.trainable_variables() if var_list is None else list(var_list)
            scaled = self.get_scaled_loss(loss)
            pairs = []
            for inner, part in self._split([(None, v) for v in variables]):
                pairs += inner.gradients(scaled, [v for _, v in part], grad_loss)
            pairs = in_order(pairs, variables)
            if self._recompute:
                recompute_layers(scaled, [g for g, _ in pairs if g is not None])
        unscaled = self._scaling.unscale(step, [g for g, _ in pairs])
        result = list(zip(unscaled, [v for _, v in pairs]))
        if self.window is not None:
            return result  # reduced and judged once, at the window's end
        result = self._reduced(result)
        step.tests.append(all_finite([g for g, _ in result]))
        return result

    def _tape_gradients(self, loss: Any, var_list: Any, grad_loss: Any, tape: Any) -> Pairs:
        tape = tf.GradientTape() if tape is None else tape
        with tape:
            value = loss() if callable(loss) else loss
            scaled = self.get_scaled_loss(value)
        variables = var_list() if callable(var_list) else var_list
        variables = list(tape.watched_variables() if variables is None else variables)
        parts = self._split([(None, v) for v in variables])
        if len(parts) == 1:
            return parts[0][0].tape_gradients(tape, scaled, variables, grad_loss)
        # One pass through the tape for all groups: it may not be persistent.
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
          In a v1 graph the operation; in tf.function and eagerly, where it is done already, the
          decision: a boolean scalar tensor.

        Raises:
          ValueError: no gradient at all.
        """
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        if not pairs:
            raise ValueError("no gradients: the loss reaches none of the variables")
        with tf.name_scope(name or self.name):
            step = self._scaling.step
            self._scaling.ledger.check_unscaled(step)
            if self.window is not None:
                return self._accumulate(step, pairs, global_step, experimental_aggregate_gradients)
            # Gradients that were neither scaled nor unscaled here come as one whole step.
            announced = step.scaled or step.unscaled
            outcome = self._take(
                step, pairs, global_step, experimental_aggregate_gradients, more_groups=announced
            )
            if not announced:
                self._scaling.ledger.close()
            self.gradients_finite = outcome.finite
            self.gradient_norm = outcome.norm() if in_v1_graph() else None
            return outcome.operation if in_v1_graph() else outcome.finite

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
        self._scaling.ledger.close()  # what was unscaled before and not applied is not this step's
        pairs = self.compute_gradients(loss, var_list, grad_loss, tape)
        try:
            more = {} if global_step is None else {"global_step": global_step}
            return self.apply_gradients(pairs, name=name, **more)
        finally:
            self._scaling.ledger.close()

    def build(self, var_list: Sequence[Any]) -> None:
        """Makes the optimizers' variables now.

        Needed before the first of several ``apply_gradients`` of one step with a Keras optimizer
        of TensorFlow 2.11 or later.
        """
        for inner, part in self._split([(None, v) for v in var_list]):
            inner.prepare([v for _, v in part])

    def get_gradients(self, loss: Any, params: Sequence[Any]) -> List[Any]:
        """Keras' name for unscaled gradients in a graph."""
        return [g for g, _ in self.compute_gradients(loss, params)]

    def get_updates(self, loss: Any, params: Sequence[Any]) -> List[Any]:
        """Keras' name for ``minimize`` in a graph, for ``model.fit``."""
        return [self.minimize(loss, params)]

    def _take(
        self, step: Step, pairs: Pairs, global_step: Any, aggregate: bool, more_groups: bool
    ) -> update.Outcome:
        parts = self._split(pairs)
        parts = update.aggregate(step, parts) if aggregate else parts
        return update.take(self._rules, step, parts, global_step, more_groups)

    def _accumulate(self, step: Step, pairs: Pairs, global_step: Any, aggregate: bool) -> Any:
        """Adds a micro-batch; the last of a window is the step, judged once for all of it."""
        if step.finite is not None:
            raise RuntimeError("accumulate takes all variable groups in one apply_gradients")
        scale = step.scale
        for inner, part in self._split(pairs):
            inner.prepare([v for _, v in part])

        def at_end(means: Pairs) -> Any:
            window = Step(scale)
            outcome = self._take(window, self._reduced(means), global_step, aggregate, False)
            with tf.control_dependencies([] if outcome.operation is None else [outcome.operation]):
                return tf.identity(outcome.finite), tf.identity(outcome.norm())

        assert self.window is not None
        finite, norm = self.window.add(pairs, at_end, lambda: (tf.constant(True), tf.constant(0.0)))
        step.finite = self.gradients_finite = finite
        self.gradient_norm = norm
        return tf.group(finite, norm) if in_v1_graph() else finite

    def _reduced(self, pairs: Pairs) -> Pairs:
        return (
            pairs if self._reduce is None else over_ranks(pairs, self._reduce, self._model_parallel)
        )

    def _split(self, pairs: Pairs) -> clipping.Parts:
        """Pairs by optimizer: each goes to the first group that claims its variable."""
        parts: clipping.Parts = [(inner, []) for _, inner in self._groups]
        for gradient, variable in pairs:
            claims = (i for i, (claims, _) in enumerate(self._groups) if claims(variable))
            parts[next(claims)][1].append((gradient, variable))
        return [(inner, part) for inner, part in parts if part]
