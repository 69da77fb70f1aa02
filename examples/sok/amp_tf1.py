"""SparseOperationKit's mixed precision tutorial in TensorFlow 1.15.

    horovodrun -np 2 python examples/sok/amp_tf1.py

The training step is from SparseOperationKit's documentation, with one correction. The gradients of
embedding variables come first, because the list of gradients is cut by length.
"""

from __future__ import annotations

import argparse

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from tensorflow.python.keras.engine import base_layer_utils

import amp_xla.sok as sok

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
            16, "relu", kernel_initializer=tf.keras.initializers.glorot_uniform(1)
        )
        self.out = tf.keras.layers.Dense(
            1, dtype="float32", kernel_initializer=tf.keras.initializers.glorot_uniform(2)
        )

    def call(self, inputs):
        vectors = self.embedding(inputs)
        return self.out(self.hidden(tf.reshape(vectors, [-1, SLOTS * WIDTH])))


def batches(steps, batch):
    """Yield this rank's samples; the label is 1 if the first id is even."""
    random = np.random.RandomState(hvd.rank())
    for _ in range(steps):
        keys = random.randint(0, ROWS * hvd.size(), (batch * SLOTS, NNZ))
        yield keys, (keys[::SLOTS, :1] % 2 == 0).astype(np.float32)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=256, help="samples of all ranks together")
    args = parser.parse_args()
    hvd.init()
    sok_init_op = sok.Init(global_batch_size=args.batch)

    base_layer_utils.enable_v2_dtype_behavior()
    policy = tf.keras.mixed_precision.experimental.Policy("mixed_float16")
    tf.keras.mixed_precision.experimental.set_policy(policy)

    model = Model()
    optimizer = tf.keras.optimizers.Adam(0.01)  # could be other optimizers as well
    optimizer = sok.tf.keras.mixed_precision.LossScaleOptimizer(optimizer, "dynamic")
    loss_object = tf.keras.losses.BinaryCrossentropy(from_logits=True)

    def train_step(x, y):
        predictions = model(x)
        loss = loss_object(y, predictions)
        # use this API to get scaled loss value
        scaled_loss = optimizer.get_scaled_loss(loss)
        # distinguish embedding variables and other variables
        # because they need different processing.
        emb_variables, other_variables = sok.split_embedding_variable_from_others(
            model.trainable_variables
        )
        scaled_gradients = tf.gradients(scaled_loss, emb_variables + other_variables)
        scaled_emb_gradients, scaled_other_gradients = (
            scaled_gradients[: len(emb_variables)],
            scaled_gradients[len(emb_variables) :],
        )
        # use this API to scale embedding gradients back to correct value
        emb_gradients = optimizer.get_unscaled_gradients(scaled_emb_gradients)
        # use this API to scale other gradients back to correct value
        other_gradients = optimizer.get_unscaled_gradients(scaled_other_gradients)
        other_gradients = [hvd.allreduce(grad) for grad in other_gradients]
        with sok.OptimizerScope(emb_variables):
            emb_train_op = optimizer.apply_gradients(zip(emb_gradients, emb_variables))
        other_train_op = optimizer.apply_gradients(zip(other_gradients, other_variables))
        with tf.control_dependencies([emb_train_op, other_train_op]):
            return tf.identity(loss)

    keys = tf.compat.v1.placeholder(tf.int64, [None, NNZ])
    labels = tf.compat.v1.placeholder(tf.float32, [None, 1])
    rows = tf.shape(keys, out_type=tf.int64)[0]
    places = tf.range(rows * NNZ)
    x = tf.SparseTensor(
        tf.stack([places // NNZ, places % NNZ], 1), tf.reshape(keys, [-1]), [rows, NNZ]
    )
    mean_loss = hvd.allreduce(train_step(x, labels))
    with tf.compat.v1.Session() as sess:
        sess.run(sok_init_op)
        sess.run(tf.compat.v1.global_variables_initializer())
        for step, (k, y) in enumerate(batches(args.steps, args.batch // hvd.size())):
            loss = sess.run(mean_loss, {keys: k, labels: y})
            if hvd.rank() == 0:
                print(f"step {step} loss {loss:.6f}", flush=True)


if __name__ == "__main__":
    main()
