"""Sentence similarity, as bert4keras' task_sentence_similarity_lcqmc.py does it.

./amp-xla python examples/similarity.py [chinese_L-12_H-768_A-12]
horovodrun -np 2 python examples/similarity.py    # on several GPUs, or several processes of a CPU
"""

import amp_xla.setup  # first: above every import of TensorFlow, Keras and bert4keras
import amp_xla.callbacks
import numpy as np
from amp_xla.precision.optimizer import LossScaleOptimizer
from amp_xla.process.world import world
from bert4keras.backend import keras, set_gelu, tf
from bert4keras.models import build_transformer_model
from bert4keras.optimizers import Adam
from bert4keras.snippets import sequence_padding
from bert4keras.tokenizers import Tokenizer
from made_up import bert_files, news

set_gelu("tanh")
maxlen, batch_size, epochs = 48, 16, 5
config_path, checkpoint_path, dict_path = bert_files()
learning_rate = 2e-5 if checkpoint_path else 1e-3
tf.compat.v1.set_random_seed(1)  # the first weights
np.random.seed(1)  # the order of the data


def pairs(count, seed):
    """Return (text 1, text 2, label) as in LCQMC; label 1 = the same kind of event."""
    first, second = news(count, seed), news(count, seed + 1)
    return [(a["text"], b["text"], int(a["event"] == b["event"])) for a, b in zip(first, second)]


# Each rank trains on a different part of the pairs, with the same number of batches.
train_data, valid_data = pairs(640, 1)[world().rank :: world().size], pairs(100, 3)
tokenizer = Tokenizer(dict_path, do_lower_case=True)


class Batches(keras.utils.Sequence):
    """Batches of token ids, segment ids and labels."""

    def __init__(self, data):
        self.data = list(data)

    def __len__(self):
        return -(-len(self.data) // batch_size)

    def __getitem__(self, index):
        token_ids, segment_ids, labels = [], [], []
        for text1, text2, label in self.data[index * batch_size : (index + 1) * batch_size]:
            ids, segments = tokenizer.encode(text1, text2, maxlen=maxlen)
            token_ids.append(ids)
            segment_ids.append(segments)
            labels.append([label])
        inputs = [sequence_padding(x, maxlen) for x in (token_ids, segment_ids)]
        return inputs, np.array(labels)

    def on_epoch_end(self):
        np.random.shuffle(self.data)  # Run seeds np.random for each epoch


bert = build_transformer_model(
    config_path, checkpoint_path, with_pool=True, return_keras_model=False
)
output = keras.layers.Dropout(0.1)(bert.model.output)
output = keras.layers.Dense(2, activation="softmax", kernel_initializer=bert.initializer)(output)
model = keras.models.Model(bert.model.input, output)
model.compile(
    loss="sparse_categorical_crossentropy",
    optimizer=LossScaleOptimizer(Adam(learning_rate), 1000),
    metrics=["accuracy"],
)


class Evaluator(keras.callbacks.Callback):
    """Measure the accuracy after each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        right = [model.predict(x).argmax(1) == y[:, 0] for x, y in valid]
        logs["val_accuracy"] = np.concatenate(right).mean()


train, valid = Batches(train_data), Batches(valid_data)
run = amp_xla.callbacks.Run("runs/similarity", resume=True)
model.fit(train, epochs=epochs, verbose=2, callbacks=[Evaluator(), run])
