"""Precision, optimizer and batches for ``model.fit``; ``precision`` goes before TensorFlow."""

from __future__ import annotations

import dataclasses
import itertools
import os
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Type

from typing_extensions import Literal

from amp_xla.data.batches.protocol import Batch, BatchSource
from amp_xla.data.labelled import Labelled
from amp_xla.errors import UnsupportedError
from amp_xla.training.answers import Answers
from amp_xla.training.checkpoint import Checkpoint


@dataclasses.dataclass(frozen=True)
class PolicyOptions:
    """Keras policy, loss scale and XLA."""

    policy: Optional[Literal["float32", "mixed_float16", "mixed_bfloat16"]] = None
    """Keras policy; none = float32 if AMP_XLA_PRECISION is not amp, else mixed_float16 on a GPU or
    mixed_bfloat16 on a CPU"""
    loss_scale: Optional[str] = None
    """loss scale: a number (1 = off) or dynamic; none = environment variable AMP_XLA_LOSS_SCALE, or
    if that is not set, 1000 in float16 and 1 otherwise"""
    xla: Optional[Literal["off", "on", "no_lazy", "lite"]] = None
    """XLA mode; none = environment variable AMP_XLA_XLA, or off if that is not set"""


def precision(config: PolicyOptions) -> Tuple[Any, Any]:
    """Apply the settings and set the Keras policy; return the policy and the loss scale."""
    from amp_xla import backend
    from amp_xla.backend import configuring
    from amp_xla.settings import Settings, default_loss_scale

    switches = {"xla": config.xla, "loss_scale": config.loss_scale}
    requested = Settings.from_environment(os.environ, **switches).precision
    if config.policy is not None:
        requested = "amp" if config.policy != "float32" else "fp32"
    # The policy replaces the graph rewrite, which is off in tf32.
    resolved = configuring.resolve(
        **switches, precision="tf32" if requested == "amp" else requested
    )
    if backend.kind() == "tf1":
        raise UnsupportedError(
            "RECIPE=keras_classification needs the Keras policies of TensorFlow 2, found 1.15: use "
            "RUNTIME=tf2, or stay here with RECIPE=classification, the same job"
        )
    half = resolved.machine_half
    name = config.policy or (f"mixed_{half}" if requested == "amp" and half else "float32")
    if name == "mixed_float16":  # bert4keras' 1e12 and Keras' 1e-7 do not fit float16
        resolved = configuring.resolve(**switches, precision="tf32", infinity=1e4, epsilon=1e-5)
    from amp_xla.backend import keras  # noqa: F401  # sets graph mode before the policy
    from amp_xla.precision.compat.keras import set_policy

    set_policy(name)
    scale = resolved.settings.loss_scale or default_loss_scale(name.rpartition("_")[2])
    return name, scale


def optimizer(config: Any, steps: int, scale: Any) -> Any:
    """Return bert4keras' Adam with weight decay inside our LossScaleOptimizer."""
    from amp_xla import backend
    from amp_xla.backend import keras
    from amp_xla.precision.compat.keras import LossScaleOptimizer
    from amp_xla.training.optimizers.schedule import warmup_decay

    update = config.update

    class Schedule(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            return warmup_decay(step, update.learning_rate, int(update.warmup * steps), steps)

    optimizers = backend.bert4keras("optimizers")
    adamw = optimizers.extend_with_weight_decay(optimizers.Adam)(
        learning_rate=Schedule(), weight_decay_rate=update.weight_decay,
        exclude_from_weight_decay=["bias", "gamma", "beta", "Norm"],
        global_clipnorm=update.clip_norm or None, name="AdamW",
    )  # fmt: skip
    if scale == "dynamic":
        return LossScaleOptimizer(adamw)
    return LossScaleOptimizer(adamw, dynamic=False, initial_scale=float(scale))


def data_of_fit(data: Labelled) -> Dict[str, Any]:
    """Return the arguments of ``fit`` with the training batches and the dev batches."""
    return {
        "x": _endless(data.batches, train_batch),
        "steps_per_epoch": data.batches.steps_per_epoch(),
        "validation_data": _endless(data.dev_batches, dev_batch),
        "validation_steps": data.dev_batches.steps_per_epoch(),
    }


def _endless(batches: BatchSource, convert: Callable[[Batch], Any]) -> Iterator[Any]:
    """Yield the batches of all epochs, each converted for ``fit``."""
    for epoch in itertools.count():
        yield from map(convert, batches.epoch(epoch))


def dev_batch(batch: Batch) -> Tuple[List[Any], Any]:
    """Return inputs and labels for the validation of ``fit``, without padding rows."""
    rows = batch["weights"] > 0
    return [batch["token_ids"][rows], batch["segment_ids"][rows]], batch["labels"][rows]


def train_batch(batch: Batch) -> Tuple[List[Any], Any, Any]:
    """Return inputs, labels and weights for ``fit``.

    Keras divides the loss by the number of rows, which includes padding rows of weight 0. The
    weights are scaled so that the loss is the mean over the other rows.
    """
    weights = batch["weights"]
    weights = weights * (len(weights) / max(float(weights.sum()), 1e-6))
    return [batch["token_ids"], batch["segment_ids"]], batch["labels"], weights


def predict(kind: Type[Any], checkpoint: Checkpoint, lines: List[str]) -> Answers:
    """Return the label probabilities of each line, a text or two texts separated by a tab.

    Args:
      kind: the recipe's ``Config``.
      checkpoint, lines: as for ``answers.predict``.
    """
    config = checkpoint.config(kind)
    precision(PolicyOptions(checkpoint.identity["data"].get("policy"), xla="off"))
    from amp_xla.tasks.classification import answers

    return answers.predict(config, checkpoint, lines)
