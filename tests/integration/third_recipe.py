"""Majority: which half of 40 words has the majority in a text, from the mean of their vectors.

A recipe that this project has never heard of: its fields, its file and its folder are its own. The
test puts this file elsewhere and does with it what can be done with a recipe.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, List, Optional, Tuple

import numpy as np
from typing_extensions import Annotated

from amp_xla.config import MAY_CHANGE, parse, within
from amp_xla.process.exits import exit_code
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.options import (
    Intervals,
    PrecisionOptions,
    RunOptions,
    Seed,
    TransformerUpdateOptions,
)


@dataclasses.dataclass(frozen=True)
class Config:
    """Tell the majority."""

    breadth: Annotated[int, within(at_least=1)] = 16
    """size of a word's vector"""
    rows: Annotated[int, within(at_least=1)] = 8
    """texts a step"""
    passes: Annotated[int, within(at_least=1)] = 3
    """over the data"""
    colour: Annotated[str, MAY_CHANGE] = "red"
    """of nothing"""
    start: Seed = 1
    """decides everything"""
    update: TransformerUpdateOptions = TransformerUpdateOptions(learning_rate=0.02, clip_norm=5.0)
    precision_options: PrecisionOptions = PrecisionOptions()
    intervals: Intervals = Intervals(log_every=2)
    run: RunOptions = RunOptions()


def encode(texts: List[List[int]]) -> Any:
    from amp_xla.data.text.tokenizer import Encoded

    lengths = np.array([len(text) for text in texts], np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Encoded(np.concatenate(texts).astype(np.int32), offsets, lengths)


def texts(count: int, seed: int) -> Tuple[List[List[int]], Any]:
    draw = np.random.RandomState(seed)
    made = [list(draw.randint(1, 41, draw.randint(3, 9))) for _ in range(count)]
    return made, np.array([np.mean(np.array(text) > 20) > 0.5 for text in made], np.int32)


def network(config: Config) -> Any:
    from amp_xla.backend import keras

    words = keras.layers.Input((None,), dtype="int32")
    x = keras.layers.Embedding(41, config.breadth)(words)
    x = keras.layers.Dense(config.breadth, activation="tanh", name="Mix")(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.models.Model(words, keras.layers.Dense(2, name="Logits")(x))


def build(config: Config, resume_from: Optional[Checkpoint] = None) -> Any:
    resolved = config.precision_options.resolve()
    from amp_xla.backend import tf
    from amp_xla.data.batches.buckets import Batches
    from amp_xla.models import losses
    from amp_xla.training import job
    from amp_xla.training.evaluation import Classification
    from amp_xla.training.step import Inference, TrainStep

    job.seed_everything(config.start)
    train, labels = texts(40, 1)
    batches = Batches(encode(train), labels, [8], config.rows, seed=config.start)
    dev, dev_labels = texts(12, 2)
    model = network(config)
    inputs = {
        "token_ids": model.inputs[0],
        "labels": tf.placeholder(tf.int32, [None]),
        "weights": tf.placeholder(tf.float32, [None]),
    }
    loss, accuracy = losses.classification(inputs["labels"], model.output, inputs["weights"])
    each = losses.cross_entropy(inputs["labels"], model.output)
    infer = Inference(inputs, {"logits": model.output, "loss": each})
    optimizer, rate = config.update.scheduled(
        config.passes * batches.steps_per_epoch(), resolved.loss_scale
    )
    step = TrainStep(
        inputs, None, loss, optimizer, model.trainable_weights, rate, {"accuracy": accuracy}
    )
    evaluate = Classification(infer, batches.like(encode(dev), dev_labels), 2)
    return job.Job(model, step, batches, evaluate, {}, resolved)


def main(argv: Optional[List[str]] = None) -> int:
    config = parse(Config, argv, "majority")
    from amp_xla.training.launch import train

    return train("majority", config, build, config.intervals.loop(epochs=config.passes))


def predict(saved: Checkpoint, lines: List[str]) -> Tuple[List[str], np.ndarray]:
    """A line is numbers from 1 to 40 with spaces between."""
    config = saved.config(Config)
    config.precision_options.resolve()
    from amp_xla.backend import tf
    from amp_xla.data.batches.buckets import Batches
    from amp_xla.training.step import Inference
    from amp_xla.training.variables import restore_weights

    model = network(config)
    restore_weights(saved, model.weights)
    infer = Inference({"token_ids": model.inputs[0]}, {"chances": tf.nn.softmax(model.output)})
    encoded = encode([[int(word) for word in line.split()] for line in lines])
    batches = Batches(encoded, None, [8], 1, shuffle=False).epoch(0)
    return ["low", "high"], np.concatenate([infer(batch)["chances"] for batch in batches])


if __name__ == "__main__":
    sys.exit(exit_code(main))
