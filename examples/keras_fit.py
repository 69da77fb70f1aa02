"""The example of Keras' mixed precision guide: model.fit under a policy, on TensorFlow 2.x.

    ./amp-xla python examples/keras_fit.py --policy mixed_float16

The guide's model (784-4096-4096-10, batches of 8192) trains on made-up digits: patterns with noise.
"""

from __future__ import annotations

import argparse
import os
import resource
import time

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # Keras 2, which LossScaleOptimizer wraps
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from amp_xla.precision.compat.keras import LossScaleOptimizer, set_policy


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="mixed_float16",
                        choices=["float32", "mixed_float16", "mixed_bfloat16"])  # fmt: skip
    parser.add_argument("--width", type=int, default=4096, help="units of both hidden layers")
    parser.add_argument("--batch", type=int, default=8192, help="samples per step")
    parser.add_argument("--samples", type=int, default=60_000, help="training samples")
    parser.add_argument("--epochs", type=int, default=5, help="2 or more: the first is not timed")
    return parser.parse_args()


def digits(samples, seed):
    """Return images, float32 [samples, 784], and their labels 0 to 9."""
    patterns = np.random.RandomState(0).rand(10, 784)
    random = np.random.RandomState(seed)
    labels = random.randint(0, 10, samples)
    images = patterns[labels] * 0.5 + random.rand(samples, 784) * 0.5
    return images.astype(np.float32), labels


def build(width):
    inputs = tf.keras.Input(shape=(784,), name="digits")
    x = tf.keras.layers.Dense(width, activation="relu", name="dense_1")(inputs)
    x = tf.keras.layers.Dense(width, activation="relu", name="dense_2")(x)
    x = tf.keras.layers.Dense(10, name="dense_logits")(x)
    # The last layer computes in float32, because a softmax in half precision is inaccurate.
    outputs = tf.keras.layers.Activation("softmax", dtype="float32", name="predictions")(x)
    return tf.keras.Model(inputs, outputs)


def main():
    args = options()
    policy = set_policy(args.policy)
    print(f"{policy.name}: compute {policy.compute_dtype}, variables {policy.variable_dtype}")
    tf.random.set_seed(1)
    model = build(args.width)
    optimizer = tf.keras.optimizers.legacy.RMSprop(3e-4 if args.width < 1024 else 1e-4)
    if policy.compute_dtype == "float16":
        optimizer = LossScaleOptimizer(optimizer)
    model.compile(loss="sparse_categorical_crossentropy", optimizer=optimizer, metrics=["accuracy"])
    images, labels = digits(args.samples, 1)
    model.fit(images, labels, args.batch, verbose=2)  # the first epoch builds the graph
    began = time.perf_counter()
    model.fit(images, labels, args.batch, args.epochs, verbose=2, initial_epoch=1)
    seconds = (time.perf_counter() - began) / ((args.epochs - 1) * -(-args.samples // args.batch))
    _, accuracy = model.evaluate(*digits(10_000, 2), batch_size=args.batch, verbose=0)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{1e3 * seconds:.0f} ms/step, {memory:.1f} GB resident, test accuracy {accuracy:.4f}")
    if policy.compute_dtype == "float16":
        print(f"loss scale {float(optimizer.loss_scale):g}")


if __name__ == "__main__":
    main()
