"""``LossScaleOptimizer``: loss scaling around any TensorFlow optimizer, in any TensorFlow mode.

One step::

    scale the loss (float32) -> gradients -> unscale (float32) -> reduce over ranks
    -> one decision: are all gradients of all groups on all ranks finite?
    -> finite: clip, then update; else: leave weights, slots and iterations alone
    -> count the step and adjust the loss scale, once

``step.py`` has the decision and the update, ``inner.py`` the kinds of optimizers.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple, Union

from amp_xla.graph.recompute import recompute as recompute_layers
from amp_xla.precision import agreement as agreements
from amp_xla.precision import facade
from amp_xla.precision.facade import OptimizerFacade, Trackable
from amp_xla.precision.inner import Inner, NewKerasInner, derived, inner_of
from amp_xla.precision.loss_scale import LossScaleWarning, check_scale, scale_loss, whole_number
from amp_xla.precision.step import Monitor, Parts, Step, Steps
from amp_xla.precision.tensorflow import (
    LossScaleVariables,
    Pairs,
    Window,
    as_tensor,
    in_v1_graph,
    keras_initializes,
    state_variable,
    tf,
)
from amp_xla.precision.updates import Updates, apart, if_applied

__all__ = ("LossScaleOptimizer", "scale_loss")

Group = Tuple[Callable[[Any], bool], Any]


class LossScaleOptimizer(OptimizerFacade):
    """An optimizer with loss scaling. It skips and counts steps with a non-finite gradient.

    Args:
      inner: a ``tf.train`` optimizer, a Keras optimizer (OptimizerV2, bert4keras', the newer
        kind), or anything with ``apply_gradients``.
      loss_scale: a number, ``"dynamic"``, None (no scaling, steps are still checked) or a loss
        scale from ``amp_xla.precision``.
      global_clipnorm: maximum global L2 norm of the unscaled gradients of a step (of each
        ``apply_gradients`` if a step has several). ``inner`` clips afterwards.
      groups: pairs (predicate, optimizer). A variable belongs to the first group whose predicate is
        true for it, or to ``inner`` if there is none. All groups share one decision.
      agreement: function that gets a boolean scalar, true if this rank's gradients are finite, and
        returns one that is true if those of all ranks are; see ``amp_xla.precision.agreement``.
        None: each rank decides alone. ``auto``: Horovod's agreement if Horovod has several ranks,
        else None. Replicas of a ``tf.distribute`` strategy always agree.
      reduce: function from a gradient to its mean over ranks, or a ``Reduction``; for ``minimize``
        and ``compute_gradients``. None if ``inner`` reduces or there is one rank.
      model_parallel: predicate that is true for a variable that exists on this rank alone. Its
        gradient counts in the decision and is not reduced.
      accumulate: micro-batches per update. Each ``minimize`` or ``apply_gradients`` adds one; the
        last one of a window reduces the mean gradient over ranks, checks it and updates. The loss
        scale is constant within a window. Recipes save between windows. The ``Run`` of a script
        may save within a window; its checkpoint then contains the sums of this window.
      recompute: compute bert4keras' transformer layers again in the backward pass, in v1 graphs;
        see ``amp_xla.graph.recompute``.
      warn_after: number of successive skipped steps at the minimum scale before a warning; 0 turns
        off all warnings of skipped steps. ``tf.function(jit_compile=True)`` never gives them.
      applied_steps: int64 variable that counts applied steps; None creates it.
      name: prefix of variable names.

    Attributes:
      inner: the wrapped optimizer.
      applied_steps: int64 variable, steps whose update was applied.
      skipped_steps: int64 variable, steps skipped for a non-finite gradient.
      gradients_finite: decision of the last step built, a boolean scalar; a tensor in a graph.
      gradients: pairs (unscaled gradient, variable) of the last step built in a v1 graph.
      window: ``Window`` with the sums of ``accumulate``; None if ``accumulate`` is 1.
      gradient_norm: float32 scalar, global L2 norm after unscaling and before clipping, of the
        last step built in a v1 graph. With model-parallel variables it includes a sum over
        ranks, so either all ranks must fetch it or none.

    Raises:
      TypeError: ``inner`` is not an optimizer.
      UnsupportedError: ``inner`` is one of Keras' newer optimizers, in graph mode.
      ValueError: it scales the loss or accumulates gradients already, or a value is out of range.
    """

    counts_skipped = False  # whether skipped steps advance ``inner.iterations``, as in Keras

    def __init__(
        self,
        inner: Any,
        loss_scale: Any = "dynamic",
        global_clipnorm: Optional[float] = None,
        groups: Sequence[Group] = (),
        agreement: Union[Callable[[Any], Any], str, None] = "auto",
        reduce: Optional[Callable[..., Any]] = None,
        model_parallel: Optional[Callable[[Any], bool]] = None,
        accumulate: int = 1,
        recompute: bool = False,
        warn_after: int = 10,
        applied_steps: Optional[Any] = None,
        name: str = "loss_scale_optimizer",
    ) -> None:
        if isinstance(self, tf.train.Optimizer):
            tf.train.Optimizer.__init__(self, False, name)  # needed by its checkpoints
        self.inner = inner
        self.name = name
        self.gradients: Any = None
        self.gradients_finite: Optional[Any] = None
        self.gradient_norm: Optional[Any] = None
        self._groups: List[Tuple[Callable[[Any], bool], Inner]] = [
            (predicate, inner_of(optimizer)) for predicate, optimizer in groups
        ] + [(lambda variable: True, inner_of(inner))]
        self._reduce = reduce
        agree = agreements.choose(agreement)
        if model_parallel is not None:
            agreements.check_clipping(agree, global_clipnorm, [i.clips for _, i in self._groups])
        self._state = LossScaleVariables(loss_scale, name)
        self._recompute = recompute
        self.accumulate = accumulate  # read by the loop, and by checkpoints
        self.window = Window(accumulate, name) if accumulate != 1 else None
        if applied_steps is None:
            applied_steps = state_variable(0, tf.int64, name + "/applied_steps")
        self.applied_steps = keras_initializes(applied_steps)
        self.skipped_steps = state_variable(0, tf.int64, name + "/skipped_steps")
        if global_clipnorm is not None:
            check_scale("global_clipnorm", global_clipnorm)
        warn_after = whole_number("warn_after", warn_after, 0, "steps")
        self._steps = Steps(
            self._state, self.applied_steps, self.skipped_steps, global_clipnorm,
            self.counts_skipped, agree, model_parallel or (lambda variable: False),
            Monitor(self._state.spec, warn_after) if warn_after else None,
        )  # fmt: skip
        self._config = {
            "loss_scale": self._state.spec.spec(),
            "global_clipnorm": global_clipnorm,
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
        self._ready = True

    def __new__(cls, inner: Any, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(facade.concrete(cls, inner_of(inner)))

    def _track(self) -> None:
        """Register the objects that checkpoints hold, each with a name."""
        self._optimizer = self.inner  # Keras' own methods look for it under this name
        self._trackable = tf.Module()  # some base classes track this instead of self
        children = {f"group_{i}": inner.optimizer for i, (_, inner) in enumerate(self._groups[:-1])}
        children.update(inner=self.inner, state=self._state)
        children.update(applied_steps=self.applied_steps, skipped_steps=self.skipped_steps)
        if isinstance(self._groups[-1][1], NewKerasInner):  # for SavedModels
            children.update(_iterations=self.inner.iterations, _variables=self.inner._variables)
        for name, child in children.items():
            if isinstance(child, Trackable):
                self._track_trackable(child, name)

    @property
    def loss_scale(self) -> Any:
        """The current scale, a float32 scalar tensor; in a v1 graph, always the same tensor."""
        return self._steps.loss_scale

    @property
    def loss_scale_at_start(self) -> Any:
        """The loss-scale object (see ``loss_scale.py``) that this optimizer was built with."""
        return self._state.spec

    @property
    def state_variables(self) -> List[Any]:
        """Variables that a checkpoint holds in addition to ``inner``'s."""
        return [self.applied_steps, self.skipped_steps, *self._state.state_variables]

    def get_scaled_loss(self, loss: Any) -> Any:
        """Return the loss to differentiate, ``loss * loss_scale`` in float32; this starts a step.

        Args:
          loss: a floating tensor, or a function without arguments that returns one; the result is
            of the same kind.
        """
        if callable(loss):
            return lambda: self.get_scaled_loss(loss())
        return self._steps.scale(loss)

    def get_unscaled_gradients(self, grads: Iterable[Any]) -> List[Any]:
        """Return unscaled gradients in float32; float64 stays float64, and None stays None.

        Sparse gradients stay sparse. Call this method for every group of variables before the first
        ``apply_gradients`` of the step: each call adds its gradients to the step's one decision.

        Raises:
          RuntimeError: the step has already been checked without these gradients, or has already
            unscaled one of them.
        """
        unscaled = self._steps.unscale([as_tensor(g) for g in grads])
        if self.window is None:
            self._steps.current().test(unscaled)
        return unscaled

    @apart()
    def compute_gradients(
        self,
        loss: Any,
        var_list: Optional[Sequence[Any]] = None,
        grad_loss: Optional[Any] = None,
        tape: Optional[Any] = None,
    ) -> Pairs:
        """Return pairs (unscaled float32 gradient, variable), reduced unless they are accumulated.

        Args:
          loss: unscaled loss: a tensor in a graph or with ``tape``; otherwise a function.
          var_list: variables; None means the graph's trainable ones, or all that the tape watched.
          grad_loss: gradient with respect to the loss, unscaled.
          tape: a ``tf.GradientTape`` that has recorded a loss tensor.

        Raises:
          ValueError: ``recompute`` outside a v1 graph.
        """
        if self._recompute and (callable(loss) or tape is not None or not in_v1_graph()):
            raise ValueError("recompute=True needs a loss that is a tensor of a v1 graph")
        if isinstance(grad_loss, tf.GradientTape):  # as in Keras' newer optimizers
            grad_loss, tape = None, grad_loss
        if tape is None and (callable(loss) or tf.executing_eagerly()):
            tape = tf.GradientTape()
        with contextlib.nullcontext() if tape is None else tape:
            scaled = self.get_scaled_loss(loss() if callable(loss) else loss)
            scaled = scaled if grad_loss is None else scaled * grad_loss
        if var_list is None:
            var_list = tf.trainable_variables() if tape is None else tape.watched_variables()
        variables = list(var_list() if callable(var_list) else var_list)
        parts = self._split([(None, v) for v in variables])
        if tape is None or len(parts) == 1:
            each = [inner.gradients(scaled, [v for _, v in part], tape) for inner, part in parts]
        else:  # one pass through the tape for all groups: it may not be persistent
            each = [derived(scaled, variables, tape)]
        gradients = {id(variable): gradient for part in each for gradient, variable in part}
        pairs = [(gradients.get(id(v)), v) for v in variables]
        if self._recompute:
            recompute_layers(scaled, [g for g, _ in pairs if g is not None])
        unscaled = self._steps.unscale([g for g, _ in pairs])
        result = list(zip(unscaled, [v for _, v in pairs]))
        self.gradients = result if in_v1_graph() else None
        if self.window is not None:
            return result  # reduced and checked once, at the window's end
        step = self._steps.current()
        result = self._reduced(result, step)
        step.test([g for g, _ in result])
        return result

    def apply_gradients(
        self,
        grads_and_vars: Iterable[Tuple[Any, Any]],
        global_step: Optional[Any] = None,
        name: Optional[str] = None,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        """Apply unscaled gradients if all are finite; once per step, adjust the scale and counters.

        Args:
          grads_and_vars: pairs; None gradients are dropped.
          global_step: variable to increment when the step is applied.
          name: name of the operation.
          experimental_aggregate_gradients: False for model-parallel variables, whose gradients must
            not be summed over replicas.

        Returns:
          In a v1 graph the operation; elsewhere the decision, a boolean scalar tensor.

        Raises:
          ValueError: all gradients are None, or the strategy in scope excludes ``accumulate``.
          RuntimeError: a second call in one step, with ``accumulate``.
        """
        aggregate = experimental_aggregate_gradients
        with apart() as updates, tf.name_scope(name or self.name):
            pairs = self._averaged(list(grads_and_vars), aggregate)
            pairs = [(as_tensor(g), v) for g, v in pairs if g is not None]
            if not pairs:
                raise ValueError("no gradients: the loss depends on none of the variables")
            step = self._steps.of([v for _, v in pairs])
            if step.scaled and not step.unscaled:
                warnings.warn(
                    "gradients of a scaled loss are being applied and were never unscaled; pass "
                    "them through get_unscaled_gradients first",
                    LossScaleWarning,
                    stacklevel=2,
                )
            # Gradients that were neither scaled nor unscaled here are one whole step.
            several = step.scaled or bool(step.unscaled)
            if not several:
                self._steps.close()
            updates = [] if step.finite is not None else updates  # they go with the first group
            if self.window is not None:
                self._accumulate(step, pairs, global_step, aggregate)
                operation = tf.group(step.finite, self.gradient_norm)
            else:
                operation = self._steps.apply(
                    step, self._split(pairs), global_step, aggregate, more_groups=several
                )
                self.gradient_norm = step.norm() if step.norm and in_v1_graph() else None
            self.gradients_finite = step.finite
            if not in_v1_graph():
                return step.finite
            return tf.group(operation, *if_applied(updates, step.finite, pairs, self.window))

    def minimize(
        self,
        loss: Any,
        var_list: Optional[Sequence[Any]] = None,
        grad_loss: Optional[Any] = None,
        name: Optional[str] = None,
        tape: Optional[Any] = None,
        global_step: Optional[Any] = None,
    ) -> Any:
        """Take one training step; see ``compute_gradients`` and ``apply_gradients``."""
        self._steps.close()  # drops gradients that were unscaled and never applied
        pairs = self.compute_gradients(loss, var_list, grad_loss, tape)
        try:
            extra = {} if global_step is None else {"global_step": global_step}
            return self.apply_gradients(pairs, name=name, **extra)
        finally:
            self._steps.close()

    def build(self, var_list: Sequence[Any]) -> None:
        """Create the optimizers' variables now.

        With a Keras optimizer of TensorFlow 2.11 or later this is needed if a step calls
        ``apply_gradients`` several times; call it before the first of these calls.
        """
        for inner, part in self._split([(None, v) for v in var_list]):
            inner.prepare([v for _, v in part])

    def get_gradients(self, loss: Any, params: Sequence[Any]) -> List[Any]:
        """Return unscaled gradients in a graph; Keras calls this method."""
        return [g for g, _ in self.compute_gradients(loss, params)]

    def get_updates(self, loss: Any, params: Sequence[Any]) -> List[Any]:
        """Return a list with the operation of ``minimize``; Keras' ``model.fit`` calls this method.

        Keras adds updates of layers to the list; ``if_applied`` says when they run.
        """
        operation = self.minimize(loss, params)
        finite, pairs = self.gradients_finite, self.gradients
        return Updates([operation], lambda others: if_applied(others, finite, pairs, self.window))

    def _accumulate(self, step: Step, pairs: Pairs, global_step: Any, aggregate: bool) -> None:
        """Add a micro-batch; the last one of a window checks and applies the whole step."""
        if step.finite is not None:
            raise RuntimeError("accumulate needs all variable groups in one apply_gradients")
        strategy = type(tf.distribute.get_strategy()).__name__
        if tf.distribute.has_strategy() and not strategy.startswith("OneDevice"):
            raise ValueError(
                f"accumulate={self.accumulate} under {strategy} is not possible; "
                f"allowed: 1, or several ranks of Horovod without a strategy (docs/ranks.md)"
            )
        self.build([v for _, v in pairs])

        def at_end(means: Pairs) -> Any:
            whole = Step(step.scale)
            parts = self._split(self._reduced(means, whole))
            operation = self._steps.apply(whole, parts, global_step, aggregate, False)
            assert whole.norm is not None
            with tf.control_dependencies([] if operation is None else [operation]):
                return tf.identity(whole.finite), tf.identity(whole.norm())

        assert self.window is not None
        step.finite, self.gradient_norm = self.window.add(pairs, at_end)

    def _averaged(self, pairs: Pairs, aggregate: bool) -> Pairs:
        return pairs

    def _reduced(self, pairs: Pairs, step: Step) -> Pairs:
        if self._reduce is None:
            return pairs
        return agreements.over_ranks(pairs, self._reduce, self._steps.model_parallel, step.scale)

    def _split(self, pairs: Pairs) -> Parts:
        """Return each optimizer's pairs; the first predicate that accepts a variable decides."""
        parts: Parts = [(inner, []) for _, inner in self._groups]
        for gradient, variable in pairs:
            claims = (i for i, (claims, _) in enumerate(self._groups) if claims(variable))
            parts[next(claims)][1].append((gradient, variable))
        return [(inner, part) for inner, part in parts if part]


AmpLossScaleOptimizer = LossScaleOptimizer  # the name in Keras' .keras files
