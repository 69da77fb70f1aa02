"""A training step as one compiled program: cast, scale, differentiate, unscale, check, update.

The state, which includes the loss scale, stays on the devices. The new state reuses the memory of
the old one, which is donated to the step.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, NamedTuple, Tuple

import jax
import jax.numpy as jnp
import optax

from amp_xla.jax import processes
from amp_xla.jax.bert import Classifier, Dropout
from amp_xla.precision import jax as precision
from amp_xla.precision import loss_scale as scales
from amp_xla.precision.policy import Policy
from amp_xla.training.engine import StepResult

Batch = Dict[str, jax.Array]


class State(NamedTuple):
    """Content of a checkpoint: parameters, Optax' state, the loss scale of the next step.

    ``step`` counts all steps, ``applied`` those whose update was applied; both are int32.
    """

    model: Classifier
    optimizer: Any
    loss_scale: Any
    step: jax.Array
    applied: jax.Array


def schedule(peak: float, warmup_steps: int, total_steps: int) -> optax.Schedule:
    """Return a function: number of applied updates -> learning rate; see ``warmup_decay``."""
    last = warmup_steps - 1  # number of applied updates before the one at the peak
    warm_up = optax.linear_schedule(peak / max(warmup_steps, 1), peak, last)
    decay = optax.linear_schedule(peak, 0.0, max(total_steps - last, 1))
    return optax.join_schedules([warm_up, decay], [last])


def adamw(rate: Any, weight_decay: float, clip_norm: float) -> optax.GradientTransformation:
    """Build AdamW as in ``training.optimizers``; norms and biases (vectors) have no decay."""

    def decays(tree: Any) -> Any:
        return jax.tree_util.tree_map(lambda leaf: jnp.ndim(leaf) > 1, tree)

    return optax.chain(
        optax.clip_by_global_norm(clip_norm) if clip_norm else optax.identity(),
        optax.adamw(rate, eps=1e-6, weight_decay=weight_decay, mask=decays),
    )


def start(model: Classifier, optimizer: optax.GradientTransformation, loss_scale: Any) -> State:
    """Return the state before the first step, on all devices."""
    zero = jnp.zeros([], jnp.int32)
    scale = jax.tree_util.tree_map(jnp.asarray, scales.from_spec(loss_scale))
    begin = State(model, optimizer.init(model), scale, zero, zero)
    # Copies, because an array must not be donated twice.
    return State(*processes.put(jax.tree_util.tree_map(lambda leaf: jnp.array(leaf), begin)))


def loss_and_accuracy(
    logits: jax.Array, labels: jax.Array, weights: jax.Array, smoothing: float
) -> Tuple[jax.Array, jax.Array]:
    """Return loss and accuracy, float32 scalars, as in ``amp_xla.models.losses.classification``.

    Rows of weight 0 have no effect.
    """
    targets = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1]), smoothing)
    losses = optax.softmax_cross_entropy(logits.astype(jnp.float32), targets)
    total = jnp.maximum(weights.sum(), 1e-6)
    hits = (logits.argmax(-1) == labels).astype(jnp.float32)
    return (losses * weights).sum() / total, (hits * weights).sum() / total


def training_step(
    optimizer: optax.GradientTransformation,
    rate: Any,
    policy: Policy,
    dropout: Tuple[float, float, bool],
    smoothing: float,
    seed: int,
) -> Any:
    """Build a function (``State``, batch) -> (``State``, ``StepResult``), compiled per shape.

    The state that is passed in is donated, so it cannot be used again.

    Args:
      optimizer: result of ``adamw``.
      rate: result of ``schedule``.
      policy: dtypes of parameters, computation and output.
      dropout: (rate for activations, rate for attention weights, whether cuDNN computes attention).
      smoothing: label smoothing.
      seed: seed of dropout.
    """

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: State, batch: Batch) -> Tuple[State, StepResult]:
        key = jax.random.key_data(jax.random.fold_in(jax.random.key(seed), state.step))

        def loss(model: Classifier) -> Tuple[jax.Array, jax.Array]:
            masks = Dropout(key, *dropout)
            logits = model(batch["token_ids"], batch["segment_ids"], masks)
            return loss_and_accuracy(logits, batch["labels"], batch["weights"], smoothing)

        run = precision.value_and_grad(loss, state.loss_scale, policy, has_aux=True)
        (value, accuracy), grads, finite, _ = run(state.model)
        norm = optax.global_norm(grads)
        finite &= jnp.isfinite(norm)  # clipping divides by it
        loss_scale = state.loss_scale.adjust(finite)
        updates, slots = optimizer.update(grads, state.optimizer, state.model)
        candidate = optax.apply_updates(state.model, updates)
        model, slots = precision.select_tree(
            finite, (candidate, slots), (state.model, state.optimizer)
        )
        applied = state.applied + finite
        scale = jnp.asarray(getattr(state.loss_scale, "loss_scale", 1.0), jnp.float32)
        result = StepResult(  # of arrays, which the engine converts
            value, rate(state.applied), scale, finite, norm, applied, (accuracy,), (), value
        )
        return State(model, slots, loss_scale, state.step + 1, applied), result

    return step


def inference(policy: Policy) -> Any:
    """Build a function (model, batch) -> float32 logits [B, classes], on all devices."""

    @functools.partial(jax.jit, out_shardings=processes.everywhere())
    def infer(model: Classifier, batch: Batch) -> jax.Array:
        model = policy.cast_to_compute(model)
        return model(batch["token_ids"], batch["segment_ids"]).astype(jnp.float32)

    return infer
