"""A contestant of the benchmarks: bert4keras as in its examples.

It uses DataGenerator, sequence_padding, Adam and float32. Nothing is set by this project.
``amp_xla.backend`` is used on TensorFlow 2.17 only, because there bert4keras needs Keras 2 under
its old name.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Iterator

import numpy as np

from benchmarks import corpus, timing


def main() -> int:
    """Build the model; do the task."""
    train, dev, vocab_size = corpus.load(sys.argv[1])
    shape = json.loads(sys.argv[2])
    from amp_xla import backend

    keras, tf = backend.keras, backend.tf
    np.random.seed(shape["seed"])
    tf.set_random_seed(shape["seed"])
    snippets = backend.bert4keras("snippets")
    optimizers = backend.bert4keras("optimizers")
    bert = backend.bert4keras("models").build_transformer_model(
        model="bert",
        vocab_size=vocab_size,
        hidden_size=shape["hidden"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["hidden"] // 64,
        intermediate_size=4 * shape["hidden"],
        max_position=512,
        hidden_act="gelu",
        dropout_rate=shape["dropout"],
        attention_dropout_rate=shape["dropout"],
    )

    def mean(pair: Any, mask: Any = None) -> Any:
        weights = tf.cast(tf.not_equal(pair[1], 0), tf.float32)[:, :, None]
        return tf.reduce_sum(pair[0] * weights, 1) / tf.maximum(tf.reduce_sum(weights, 1), 1.0)

    pooled = keras.layers.Lambda(mean)([bert.output, bert.inputs[0]])
    pooled = keras.layers.Dropout(shape["dropout"])(pooled)
    model = keras.models.Model(
        bert.inputs, keras.layers.Dense(shape["classes"], activation="softmax")(pooled)
    )
    adam = optimizers.extend_with_piecewise_linear_lr(
        optimizers.extend_with_weight_decay(optimizers.Adam)
    )
    total = shape["schedule_steps"]
    optimizer = adam(
        learning_rate=shape["learning_rate"],
        weight_decay_rate=0.01,
        exclude_from_weight_decay=["Norm", "bias"],
        lr_schedule={max(1, total // 10): 1, total: 0},
    )
    model.compile(loss="sparse_categorical_crossentropy", optimizer=optimizer)

    base: Any = snippets.DataGenerator

    class Generator(base):
        def __iter__(self, random: bool = False) -> Iterator[Any]:
            ids, labels = [], []
            for is_end, (sample, label) in self.sample(random):
                ids.append(sample)
                labels.append([label])
                if len(ids) == self.batch_size or is_end:
                    padded = snippets.sequence_padding(ids)
                    yield padded, snippets.sequence_padding(labels)
                    ids, labels = [], []

    data: Any = Generator(list(zip(train.samples, train.labels)), shape["batch_size"])

    def step(batch: timing.Batch) -> float:
        return float(model.train_on_batch([batch[0], np.zeros_like(batch[0])], batch[1]))

    def classes(ids: Any) -> Any:
        return model.predict_on_batch([ids, np.zeros_like(ids)]).argmax(-1)

    contestant = timing.Contestant(step)
    timing.run(lambda number: data.__iter__(True), contestant, lambda: dev.accuracy(classes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
