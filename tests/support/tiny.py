"""A training job small enough to be killed a hundred times, with everything in it that has state.

Dropout, AdamW, a dynamic loss scale that grows and overflows, accumulation over two
micro-batches, bucketed batches, evaluations that promote a best checkpoint.
"""

import dataclasses
import functools
from typing import Tuple

import numpy as np
from typing_extensions import Annotated

from amp_xla.config import MAY_CHANGE, within
from amp_xla.training.options import LoopOptions, PrecisionOptions, RunOptions
from amp_xla.training.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Config:
    """The tiny job."""

    epochs: int = 3
    batch_size: int = 4
    seed: int = 3
    learning_rate: float = 0.02
    hidden: int = 16
    accumulate: int = 2
    samples: int = 29
    overflow_at: Tuple[int, ...] = (3, 12)
    """steps whose loss is infinite"""
    overflow_from: int = 10**9
    """all steps from here on are infinite"""
    first_scale: float = 64.0
    """where the dynamic scale starts"""
    minimum: float = 1.0
    nonfinite_limit: int = 20
    log_every: Annotated[int, within(at_least=1), MAY_CHANGE] = 3
    patience: int = 0
    nan_evaluations: bool = False
    """each evaluation's loss is NaN"""
    precision_options: PrecisionOptions = PrecisionOptions(precision="fp32")
    run: RunOptions = RunOptions()


def options(config):
    names = ("epochs", "log_every", "patience", "nonfinite_limit")
    values = {name: getattr(config, name) for name in names}
    return LoopOptions(monitor="loss", higher_is_better=False, **values)


def corpus(count, seed):
    """Sequences of 3 to 12 of 40 tokens; the label says which half of them is in the majority."""
    from amp_xla.data.text.tokenizer import Encoded

    random = np.random.RandomState(seed)
    lengths = random.randint(3, 13, count)
    tokens = random.randint(1, 41, lengths.sum()).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    labels = [int((tokens[a:b] > 20).mean() > 0.5) for a, b in zip(offsets, offsets[1:])]
    return Encoded(tokens, offsets, lengths.astype(np.int32)), np.array(labels, np.int32)


def build_model(config):
    from amp_xla.backend import keras

    tokens = keras.layers.Input((None,), dtype="int32")
    x = keras.layers.Embedding(41, config.hidden)(tokens)
    x = keras.layers.Dropout(0.2, name="Drop")(x)
    x = keras.layers.Dense(config.hidden, activation="tanh")(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.models.Model(tokens, keras.layers.Dense(2, name="Logits")(x))


def build(config, context):
    from amp_xla.backend import tf
    from amp_xla.data.batches.buckets import Batches
    from amp_xla.data.text.labels import Labels
    from amp_xla.models import dropout, losses
    from amp_xla.precision import DynamicLossScale
    from amp_xla.precision.optimizer import LossScaleOptimizer
    from amp_xla.training.evaluation import classification
    from amp_xla.training.optimizers.adamw import AdamW
    from amp_xla.training.optimizers.schedule import warmup_decay
    from amp_xla.training.step import Inference, TrainStep

    encoded, labels = corpus(config.samples, 1)
    batches = Batches(encoded, labels, [8, 12], config.batch_size, seed=config.seed)
    batches = context.share(batches)
    dev = Batches(*corpus(12, 2), [12], 4, shuffle=False)

    model = build_model(config)
    (tokens,) = model.inputs
    inputs = {
        "token_ids": tokens,
        "labels": tf.placeholder(tf.int32, [None]),
        "weights": tf.placeholder(tf.float32, [None]),
    }
    loss, accuracy = losses.classification(inputs["labels"], model.output, inputs["weights"])
    number = context.step_input // config.accumulate
    hit = tf.reduce_any(tf.equal(number, list(config.overflow_at)))
    hit = tf.logical_or(hit, number >= config.overflow_from)
    loss = loss * tf.where(hit, float("inf"), 1.0)
    with dropout.inference():
        logits = model(tokens)
    dev_loss = losses.cross_entropy(inputs["labels"], logits)
    if config.nan_evaluations:
        dev_loss *= float("nan")
    infer = Inference(inputs, {"logits": logits, "loss": dev_loss})
    evaluate = functools.partial(classification, infer, dev, 2)

    applied = tf.get_variable(
        "applied_steps", (), tf.int64, trainable=False, initializer=tf.zeros_initializer()
    )
    total = config.epochs * batches.steps_per_epoch()
    rate = warmup_decay(applied, config.learning_rate, 2, total)
    optimizer = LossScaleOptimizer(
        AdamW(rate),
        DynamicLossScale(config.first_scale, growth_interval=3, minimum=config.minimum),
        global_clipnorm=1.0,
        accumulate=config.accumulate,
        applied_steps=applied,
        warn_after=0,
    )
    step = TrainStep(
        inputs, loss, optimizer, model.trainable_weights, {"accuracy": accuracy}, learning_rate=rate
    )

    identity = {"train": f"{config.samples} random sequences"}
    assets = {
        "vocab.txt": "\n".join(map(str, range(41))).encode(),
        "labels.json": Labels(("low", "high")).encoded(),
    }
    return context.job(model, step, batches, evaluate, assets, identity)


recipe = Recipe(Config, build, options)
