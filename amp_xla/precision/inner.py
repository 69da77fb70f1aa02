"""One interface to every kind of TensorFlow optimizer that a loss scale can wrap.

``inner_of(optimizer)`` chooses by what the object can do, not by TensorFlow's version.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, Dict, List, Sequence

from amp_xla.errors import UnsupportedError
from amp_xla.precision import arrays
from amp_xla.precision.tensorflow import Pairs, dense, in_v1_graph, tf

CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")
KERAS = ("tensorflow", "tensorflow_core", "tf_keras", "keras")


class Inner:
    """Interface to a ``tf.train`` optimizer, or to any other object with ``apply_gradients``.

    Attributes:
      optimizer: the user's object.
      clipping: name of the Keras method by which the optimizer's ``apply_gradients`` clips.
      aggregation: name of the Keras method that sums gradients over replicas.
      aggregated: keyword arguments that stop ``apply_gradients`` from summing gradients again.
    """

    clipping = ""
    aggregation = ""
    aggregated: ClassVar[Dict[str, bool]] = {}

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    @property
    def iterations(self) -> Any:
        """The optimizer's step variable, or None; Keras' optimizers always have one."""
        steps = getattr(self.optimizer, "iterations", None)
        if steps is not None and not hasattr(steps, "read_value"):
            steps = getattr(steps, "value", None)  # Keras 3 wraps TensorFlow's variables
        return steps

    @property
    def shared_state(self) -> List[Any]:
        """Variables that each ``apply_gradients`` call advances."""
        slots = getattr(self.optimizer, "_non_slot_dict", {})
        variables = [v for v in slots.values() if hasattr(v, "read_value")]
        return variables + ([self.iterations] if self.iterations is not None else [])

    @property
    def clips(self) -> Dict[str, float]:
        """The clipping limits that the optimizer has: clipnorm, clipvalue, global_clipnorm."""
        values = {name: getattr(self.optimizer, name, None) for name in CLIPS}
        return {name: float(value) for name, value in values.items() if value}

    def gradients(self, loss: Any, variables: Sequence[Any], tape: Any = None) -> Pairs:
        """Return pairs (gradient, variable), reduced over ranks if the optimizer does so.

        Args:
          loss: tensor of a graph, or one that ``tape`` recorded.
        """
        compute = getattr(self.optimizer, "compute_gradients", None)
        if compute is None or tape is not None:
            return derived(loss, variables, tape)
        return list(compute(loss, var_list=variables))

    def aggregate(self, pairs: Pairs) -> Pairs:
        """Sum gradients over replicas or ranks now, if Keras' ``apply_gradients`` would do so."""
        keras = [c for c in type(self.optimizer).__mro__ if _is_of_keras(c)]
        if not any(self.aggregation in vars(c) for c in keras):
            return pairs
        custom = getattr(self.optimizer, "gradient_aggregator", None)  # a user's function
        by_keras = is_keras_own(self.optimizer, self.aggregation)
        if by_keras and not tf.distribute.has_strategy() and (not custom or _is_of_keras(custom)):
            return pairs  # one replica: nothing to sum
        return list(getattr(self.optimizer, self.aggregation)(pairs))

    def summed(self, pairs: Pairs) -> Pairs:
        """Make sparse gradients dense if the optimizer is bert4keras' and does not clip.

        Such an optimizer makes them dense itself, but searches for distinct rows first. The number
        of distinct rows differs between batches, so XLA would compile the whole update again for
        each number. An optimizer that clips needs sparse gradients.
        """
        owner = _owner(self.optimizer, "_resource_apply_sparse")
        if self.clips or owner is None or not owner.__module__.startswith("bert4keras"):
            return pairs
        return [(dense(gradient), variable) for gradient, variable in pairs]

    def prepare(self, variables: Sequence[Any]) -> None:
        """Create the optimizer's variables now, because a branch of the graph cannot do so."""
        create = getattr(self.optimizer, "_create_slots", None)
        build = getattr(self.optimizer, "build", None)
        with tf.init_scope():
            if create is not None:
                create(list(variables))
            elif build is not None and not getattr(self.optimizer, "built", False):
                build(list(variables))

    def clip(self, pairs: Pairs) -> Pairs:
        """Clip unscaled gradients by the optimizer's own limits; keep the gradients' dtypes."""
        clip = getattr(type(self.optimizer), self.clipping, None)  # ``apply`` hides the instance's
        if clip is not None:
            return list(clip(self.optimizer, pairs))
        clips = self.clips

        def one(values: Any) -> Any:
            if "clipnorm" in clips:
                values = tf.clip_by_norm(values, clips["clipnorm"])
            if "clipvalue" in clips:
                values = tf.clip_by_value(values, -clips["clipvalue"], clips["clipvalue"])
            return values

        return [(arrays.map_floats(one, gradient), variable) for gradient, variable in pairs]

    def apply(self, pairs: Pairs) -> Any:
        """Apply gradients that are already clipped and summed over replicas and ranks."""
        known = {n: v for n, v in self.aggregated.items() if _takes(self.optimizer, n)}
        fields = vars(self.optimizer) if self.clipping else {}
        fields[self.clipping] = lambda gradients: gradients  # ``clip`` has clipped them
        try:
            return self.optimizer.apply_gradients(pairs, **known)
        finally:
            fields.pop(self.clipping, None)  # once for all replicas


class KerasInner(Inner):
    """Interface to a Keras OptimizerV2, including bert4keras' optimizers."""

    clipping = "_transform_gradients"  # 1.15 clips where it computes gradients
    aggregation, aggregated = "_aggregate_gradients", {"experimental_aggregate_gradients": False}

    def gradients(self, loss: Any, variables: Sequence[Any], tape: Any = None) -> Pairs:
        if is_keras_own(self.optimizer, "get_gradients" if tape is None else "_compute_gradients"):
            return derived(loss, variables, tape)
        # Horovod's would clip before it reduces. TensorFlow 1.15 tests whether an attribute exists,
        # so None would not do.
        fields = vars(self.optimizer)
        removed = {name: fields.pop(name) for name in CLIPS if fields.get(name) is not None}
        try:
            if tape is not None:
                return list(self.optimizer._compute_gradients(loss, variables, tape=tape))
            return list(zip(self.optimizer.get_gradients(loss, list(variables)), variables))
        finally:
            fields.update(removed)

    def prepare(self, variables: Sequence[Any]) -> None:
        optimizer = self.optimizer
        with tf.init_scope():
            _ = optimizer.iterations
            if hasattr(optimizer, "_create_all_weights"):
                optimizer._create_all_weights(list(variables))
            else:
                optimizer._create_hypers()
                optimizer._create_slots(list(variables))


class NewKerasInner(Inner):
    """Interface to an optimizer of Keras' newer kind, which exists from TensorFlow 2.11 on."""

    clipping = "_clip_gradients"
    aggregation, aggregated = "aggregate_gradients", {"skip_gradients_aggregation": True}

    def gradients(self, loss: Any, variables: Sequence[Any], tape: Any = None) -> Pairs:
        if tape is None or is_keras_own(self.optimizer, "compute_gradients"):
            return derived(loss, variables, tape)
        return list(self.optimizer.compute_gradients(loss, variables, tape))

    def clip(self, pairs: Pairs) -> Pairs:
        gradients, variables = zip(*pairs)
        clipped = type(self.optimizer)._clip_gradients(self.optimizer, list(gradients))
        return list(zip(clipped, variables))

    def prepare(self, variables: Sequence[Any]) -> None:
        super().prepare(variables)
        key = getattr(self.optimizer, "_var_key", None)
        known = getattr(self.optimizer, "_index_dict", None)
        unknown = [v.name for v in variables if key and known and key(v) not in known]
        if unknown:
            raise ValueError(
                f"{type(self.optimizer).__name__} was built without {', '.join(unknown)}: Keras' "
                f"optimizers need all variables before the first gradients are applied; call "
                f"build(all variables) on the LossScaleOptimizer once, before the first step"
            )


def inner_of(optimizer: Any) -> Inner:
    """Return the interface to an optimizer.

    Raises:
      TypeError: it is a class, or has no ``apply_gradients``.
      UnsupportedError: it is one of Keras' newer optimizers in graph mode.
      ValueError: it scales the loss or accumulates gradients itself.
    """
    if isinstance(optimizer, type):
        name = optimizer.__name__
        raise TypeError(f"optimizer is the class {name}; allowed: an instance, e.g. {name}(1e-3)")
    name = type(optimizer).__name__
    if hasattr(optimizer, "get_unscaled_gradients"):
        raise ValueError(f"{name} already scales the loss; pass its inner optimizer instead")
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
            f"would make its sums NaN for good (0 * NaN is NaN); remove bert4keras' "
            f"extend_with_gradient_accumulation and pass accumulate={steps} here"
        )
    if not hasattr(optimizer, "apply_gradients"):
        raise TypeError(f"{optimizer!r} is not an optimizer: it has no apply_gradients")
    if hasattr(optimizer, "_hyper") and hasattr(optimizer, "_resource_apply_dense"):
        return KerasInner(optimizer)
    if hasattr(optimizer, "update_step") and hasattr(optimizer, "build"):
        if in_v1_graph():  # Keras would create the updates and run none of them
            raise UnsupportedError(
                f"{name} is one of Keras' newer optimizers. They do not train in graph mode, which "
                f"`import amp_xla.setup` turns on; allowed: optimizers of keras.optimizers.legacy, "
                f"of bert4keras (weight decay: extend_with_weight_decay), of tf.compat.v1.train; "
                f"or remove that import and train in eager mode"
            )
        return NewKerasInner(optimizer)
    return Inner(optimizer)


def derived(loss: Any, variables: Sequence[Any], tape: Any = None) -> Pairs:
    """Return pairs (gradient, variable); (None, variable) if the loss does not use the variable."""
    if tape is None:
        return list(zip(tf.gradients(loss, list(variables)), variables))
    return list(zip(tape.gradient(loss, list(variables)), variables))


def _takes(optimizer: Any, argument: str) -> bool:
    """Return whether ``apply_gradients`` of the class or a base class has this argument."""
    name = "apply_gradients"
    functions = (vars(c)[name] for c in type(optimizer).__mro__ if name in vars(c))
    return any(argument in inspect.signature(function).parameters for function in functions)


def is_keras_own(optimizer: Any, method: str) -> bool:
    """Return False if a wrapper such as Horovod's, not Keras, defines a method of an optimizer."""
    owner = _owner(optimizer, method)
    return owner is None or _is_of_keras(owner)


def _owner(optimizer: Any, method: str) -> Any:
    """Return the class that defines a method of an optimizer, or None."""
    return next((c for c in type(optimizer).__mro__ if method in vars(c)), None)


def _is_of_keras(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] in KERAS
