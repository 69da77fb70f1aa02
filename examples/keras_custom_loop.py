"""Keras' mixed precision guide as a script: a custom training loop, TensorFlow 2.x.

python examples/keras_custom_loop.py --policy mixed_float16
"""

from __future__ import annotations

import resource
import time

from keras_fit import build, device, digits, options

from amp_xla.precision.compat.keras import LossScaleOptimizer, set_policy

import tensorflow as tf  # isort: skip  # behind what chooses Keras 2


def main():
    args = options()
    policy = set_policy(args.policy)
    print(f"{policy.name}: compute {policy.compute_dtype}, variables {policy.variable_dtype}")
    print(device())
    tf.random.set_seed(1)
    model = build(args.width)
    optimizer = tf.keras.optimizers.legacy.RMSprop(3e-4 if args.width < 1024 else 1e-4)
    # Without half precision it scales by 1, and the loop stays one.
    dynamic = policy.compute_dtype == "float16"
    optimizer = LossScaleOptimizer(optimizer, dynamic, None if dynamic else 1)
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy()
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
    train = tf.data.Dataset.from_tensor_slices(digits(args.samples, 1)).shuffle(10_000, seed=1)
    test = tf.data.Dataset.from_tensor_slices(digits(10_000, 2)).batch(args.batch)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_object(y, model(x))
            scaled_loss = optimizer.get_scaled_loss(loss)
        scaled_gradients = tape.gradient(scaled_loss, model.trainable_variables)
        gradients = optimizer.get_unscaled_gradients(scaled_gradients)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    for epoch in range(args.epochs):
        if epoch == 1:  # the first one builds the graph
            began, steps = time.perf_counter(), 0
        for x, y in train.batch(args.batch):
            loss = train_step(x, y)
            steps = steps + 1 if epoch else 0
        print(f"epoch {epoch}: loss {float(loss):.4f}, loss scale {float(optimizer.loss_scale):g}")
    seconds = (time.perf_counter() - began) / steps
    for x, y in test:
        accuracy.update_state(y, model(x))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{1e3 * seconds:.0f} ms a step, {memory:.1f} GB resident, "
          f"test accuracy {float(accuracy.result()):.4f}")  # fmt: skip


if __name__ == "__main__":
    main()
