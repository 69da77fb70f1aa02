"""SparseOperationKit's mixed precision tutorial in TensorFlow 2.x.

    horovodrun -np 2 python examples/sok/amp_tf2.py

The training step is from SparseOperationKit's documentation, with one change: the optimizer is
built before the first step. This optimizer averages dense gradients over ranks.
"""

from __future__ import annotations

import argparse

import amp_xla.sok as sok  # isort: skip  # before TensorFlow, because it selects Keras 2

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

ROWS, SLOTS, NNZ, WIDTH = 1000, 10, 4, 8  # rows per rank, slots, ids per slot, numbers per row


class Model(tf.keras.Model):
    """An embedding table spread over ranks, and two dense layers on each rank."""

    def __init__(self):
        super().__init__()
        self.embedding = sok.DistributedEmbedding(
            combiner="mean",
            max_vocabulary_size_per_gpu=ROWS,
            embedding_vec_size=WIDTH,
            slot_num=SLOTS,
            max_nnz=NNZ,
            name="table",
        )
        self.hidden = tf.keras.layers.Dense(
            16, "relu", kernel_initializer=tf.keras.initializers.GlorotUniform(1)
        )
        self.out = tf.keras.layers.Dense(
            1, dtype="float32", kernel_initializer=tf.keras.initializers.GlorotUniform(2)
        )

    def call(self, inputs):
        vectors = self.embedding(inputs)
        return self.out(self.hidden(tf.reshape(vectors, [-1, SLOTS * WIDTH])))


def batches(steps, batch):
    """Yield this rank's samples; the label is 1 if the first id is even."""
    random = np.random.RandomState(hvd.rank())
    for _ in range(steps):
        keys = random.randint(0, ROWS * hvd.size(), (batch * SLOTS, NNZ))
        labels = (keys[::SLOTS, :1] % 2 == 0).astype(np.float32)
        yield tf.sparse.from_dense(keys + 1).with_values(keys.reshape(-1)), labels


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=256, help="samples of all ranks together")
    args = parser.parse_args()
    hvd.init()
    sok.Init(global_batch_size=args.batch)

    policy = tf.keras.mixed_precision.Policy("mixed_float16")
    tf.keras.mixed_precision.set_global_policy(policy)

    model = Model()
    optimizer = tf.keras.optimizers.legacy.Adam(0.01)  # could be other optimizers as well
    optimizer = sok.tf.keras.mixed_precision.LossScaleOptimizer(optimizer)
    loss_object = tf.keras.losses.BinaryCrossentropy(from_logits=True)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            predictions = model(x)
            loss = loss_object(y, predictions)
            scaled_loss = optimizer.get_scaled_loss(loss)
        emb_variables, other_variables = sok.split_embedding_variable_from_others(
            model.trainable_variables
        )
        scaled_emb_gradients, scaled_other_gradients = tape.gradient(
            scaled_loss, [emb_variables, other_variables]
        )
        # use this API to scale embedding gradients back to correct value
        emb_gradients = optimizer.get_unscaled_gradients(scaled_emb_gradients)
        # use this API to scale other gradients back to correct value
        other_gradients = optimizer.get_unscaled_gradients(scaled_other_gradients)
        with sok.OptimizerScope(emb_variables):
            optimizer.apply_gradients(
                zip(emb_gradients, emb_variables), experimental_aggregate_gradients=False
            )
        optimizer.apply_gradients(zip(other_gradients, other_variables))
        return loss

    for step, (x, y) in enumerate(batches(args.steps, args.batch // hvd.size())):
        if step == 0:
            model(x)
            optimizer.build(model.trainable_variables)
        loss = hvd.allreduce(train_step(x, y), name="loss")
        if hvd.rank() == 0:
            print(f"step {step} loss {float(loss):.6f}", flush=True)


if __name__ == "__main__":
    main()
