"""One face for every kind of TensorFlow optimizer that a loss scale can wrap.

``inner_of(optimizer)`` looks at what the object can do, not at which TensorFlow this is.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from amp_xla.precision.tensorflow import tf

Pairs = List[Tuple[Any, Any]]

CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")


class Inner:
    """Anything with ``apply_gradients``: a ``tf.train`` optimizer or a look-alike.

    Attributes:
      optimizer: the user's object.
    """

    # The optimizer clips in its own apply_gradients, hence after unscaling.
    clips_itself = False

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    @property
    def iterations(self) -> Optional[Any]:
        """The optimizer's own step variable, where it has one."""
        found = getattr(self.optimizer, "iterations", None)
        if found is not None and not hasattr(found, "read_value"):
            found = getattr(found, "value", None)  # Keras 3 keeps TensorFlow's in its own
        return found

    @property
    def shared_state(self) -> List[Any]:
        """Variables that every ``apply_gradients`` moves on, whatever it applies."""
        slots = getattr(self.optimizer, "_non_slot_dict", {})
        found = [v for v in slots.values() if hasattr(v, "read_value")]
        return found + ([self.iterations] if self.iterations is not None else [])

    @property
    def clips(self) -> Dict[str, float]:
        """The clipping asked of the optimizer: any of clipnorm, clipvalue, global_clipnorm."""
        found = {name: getattr(self.optimizer, name, None) for name in CLIPS}
        return {name: float(value) for name, value in found.items() if value}

    def gradients(self, loss: Any, variables: Sequence[Any], grad_loss: Any = None) -> Pairs:
        """Pairs of gradients of a graph tensor; reduced over ranks if the optimizer does so."""
        compute = getattr(self.optimizer, "compute_gradients", None)
        if compute is None:
            return graph_gradients(loss, variables, grad_loss)
        extra = {} if grad_loss is None else {"grad_loss": grad_loss}
        return list(compute(loss, var_list=variables, **extra))

    def tape_gradients(
        self, tape: Any, loss: Any, variables: Sequence[Any], grad_loss: Any = None
    ) -> Pairs:
        """Pairs of gradients of what a tape recorded; reduced over ranks if the optimizer does."""
        return list(zip(tape.gradient(loss, list(variables), grad_loss), variables))

    def aggregate(self, pairs: Pairs) -> Pairs:
        """What the optimizer would do over replicas or ranks before it applies."""
        return pairs

    def prepare(self, variables: Sequence[Any]) -> None:
        """Makes the optimizer's variables, so that none is born inside a branch."""
        create = getattr(self.optimizer, "_create_slots", None)
        build = getattr(self.optimizer, "build", None)
        with tf.init_scope():
            if create is not None:
                create(list(variables))
            elif build is not None and not getattr(self.optimizer, "built", False):
                build(list(variables))

    def apply(self, pairs: Pairs) -> Any:
        """Applies float gradients as they are."""
        return self.optimizer.apply_gradients(pairs)

    def count_skipped(self) -> Any:
        """Advances the optimizer's own step without an update."""
        if self.iterations is None:
            return tf.no_op()
        return self.iterations.assign_add(1, read_value=False)


class KerasInner(Inner):
    """A Keras OptimizerV2 (bert4keras' too)."""

    @property
    def clips_itself(self) -> bool:  # type: ignore[override]
        return hasattr(self.optimizer, "_transform_gradients")

    @property
    def shared_state(self) -> List[Any]:
        return [self.iterations]

    def gradients(self, loss: Any, variables: Sequence[Any], grad_loss: Any = None) -> Pairs:
        if _is_keras_own(self.optimizer, "get_gradients"):
            return graph_gradients(loss, variables, grad_loss)
        with self._without_clipping():  # Horovod's reduces here, with its own clipping before
            return list(zip(self.optimizer.get_gradients(loss, list(variables)), variables))

    def tape_gradients(
        self, tape: Any, loss: Any, variables: Sequence[Any], grad_loss: Any = None
    ) -> Pairs:
        if _is_keras_own(self.optimizer, "_compute_gradients"):
            return super().tape_gradients(tape, loss, variables, grad_loss)
        with self._without_clipping():
            return list(self.optimizer._compute_gradients(loss, variables, grad_loss, tape=tape))

    @contextlib.contextmanager
    def _without_clipping(self) -> Iterator[None]:
        # TensorFlow 1.15 tests for the attribute, so it has to go, not to be None.
        fields = vars(self.optimizer)
        kept = {name: fields.pop(name) for name in CLIPS if fields.get(name) is not None}
        try:
            yield
        finally:
            fields.update(kept)

    def aggregate(self, pairs: Pairs) -> Pairs:
        return _aggregate(self.optimizer, "_aggregate_gradients", pairs)

    def prepare(self, variables: Sequence[Any]) -> None:
        optimizer = self.optimizer
        with tf.init_scope():
            _ = optimizer.iterations
            if hasattr(optimizer, "_create_all_weights"):
                optimizer._create_all_weights(list(variables))
            else:
                optimizer._create_hypers()
                optimizer._create_slots(list(variables))

    def apply(self, pairs: Pairs) -> Any:
        if _takes(self.optimizer, "apply_gradients", "experimental_aggregate_gradients"):
            return self.optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)
        return self.optimizer.apply_gradients(pairs)


class NewKerasInner(Inner):
    """The Keras optimizer of TensorFlow 2.11 and later."""

    clips_itself = True

    @property
    def shared_state(self) -> List[Any]:
        return [self.iterations]

    def gradients(self, loss: Any, variables: Sequence[Any], grad_loss: Any = None) -> Pairs:
        return graph_gradients(loss, variables, grad_loss)

    def tape_gradients(
        self, tape: Any, loss: Any, variables: Sequence[Any], grad_loss: Any = None
    ) -> Pairs:
        if grad_loss is not None or _is_keras_own(self.optimizer, "compute_gradients"):
            return super().tape_gradients(tape, loss, variables, grad_loss)
        return list(self.optimizer.compute_gradients(loss, variables, tape))

    def prepare(self, variables: Sequence[Any]) -> None:
        super().prepare(variables)
        key = getattr(self.optimizer, "_var_key", None)
        known = getattr(self.optimizer, "_index_dict", None)
        unknown = [v.name for v in variables if key and known and key(v) not in known]
        if unknown:
            raise ValueError(
                f"{type(self.optimizer).__name__} was built without {', '.join(unknown)}: Keras' "
                f"optimizers must know all variables before the first group is applied; call "
                f"build(all variables) on the LossScaleOptimizer once, before the first step"
            )

    def aggregate(self, pairs: Pairs) -> Pairs:
        return _aggregate(self.optimizer, "aggregate_gradients", pairs)

    def apply(self, pairs: Pairs) -> Any:
        if _takes(self.optimizer, "apply_gradients", "skip_gradients_aggregation"):
            return self.optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)
        return self.optimizer.apply_gradients(pairs)


def inner_of(optimizer: Any) -> Inner:
    """The face that fits an optimizer.

    Raises:
      TypeError: it has no ``apply_gradients``.
      ValueError: it would scale the loss, or accumulate gradients, a second time.
    """
    _refuse_known_traps(optimizer)
    if hasattr(optimizer, "apply_gradients"):
        if hasattr(optimizer, "_hyper") and hasattr(optimizer, "_resource_apply_dense"):
            return KerasInner(optimizer)
        if hasattr(optimizer, "update_step") and hasattr(optimizer, "build"):
            return NewKerasInner(optimizer)
        return Inner(optimizer)
    raise TypeError(f"{optimizer!r} is not an optimizer: it has no apply_gradients")


def _refuse_known_traps(optimizer: Any) -> None:
    name = type(optimizer).__name__
    if hasattr(optimizer, "get_unscaled_gradients"):
        raise ValueError(f"{name} already scales the loss; wrap the optimizer inside it instead")
    scaling = getattr(optimizer, "doing_loss_scaling", None)  # NVIDIA's TensorFlow 1.15
    if callable(scaling) and scaling():
        raise ValueError(
            f"{name} already scales the loss, because TF_ENABLE_AUTO_MIXED_PRECISION or "
            f"TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING is set; use "
            f"TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE=1 alone"
        )
    steps = getattr(optimizer, "grad_accum_steps", None)
    if steps is not None:
        raise ValueError(
            f"{name} accumulates {steps} micro-batches itself, and one non-finite micro-batch "
            f"would poison its sums for good (0 * NaN is NaN); take bert4keras' "
            f"extend_with_gradient_accumulation away and pass accumulate={steps} here"
        )


def graph_gradients(loss: Any, variables: Sequence[Any], grad_loss: Any = None) -> Pairs:
    """``tf.gradients`` as pairs; a variable that the loss does not reach has None."""
    return list(zip(tf.gradients(loss, list(variables), grad_ys=grad_loss), variables))


def _takes(optimizer: Any, method: str, argument: str) -> bool:
    """True where a class of the optimizer names the argument; wrappers pass on what they get."""
    found = (vars(c)[method] for c in type(optimizer).__mro__ if method in vars(c))
    return any(argument in inspect.signature(function).parameters for function in found)


KERAS = ("tensorflow", "tensorflow_core", "tf_keras", "keras")


def _is_keras_own(optimizer: Any, method: str) -> bool:
    """True where Keras defines the method, False where a wrapper such as Horovod's does."""
    owner = next((c for c in type(optimizer).__mro__ if method in vars(c)), None)
    return owner is None or _is_of_keras(owner)


def _is_of_keras(found: Any) -> bool:
    """True for a class or function of Keras or TensorFlow."""
    return str(getattr(found, "__module__", "")).partition(".")[0] in KERAS


def _aggregate(optimizer: Any, method: str, pairs: Pairs) -> Pairs:
    """Calls the method where Keras itself would, before it applies."""
    keras = [c for c in type(optimizer).__mro__ if _is_of_keras(c)]
    if not any(method in vars(c) for c in keras):
        return pairs
    asked = getattr(optimizer, "gradient_aggregator", None)  # a user's own function sums
    own = _is_keras_own(optimizer, method) and (asked is None or _is_of_keras(asked))
    if own and not tf.distribute.has_strategy():
        return pairs  # one replica: nothing to sum
    return list(getattr(optimizer, method)(pairs))


def in_order(pairs: Pairs, variables: Sequence[Any]) -> Pairs:
    """Pairs in the order of the variables, matched by variable."""
    where = {id(v): g for g, v in pairs}
    return [(where.get(id(v)), v) for v in variables]
