"""Events of news texts by BERT under Keras' policy mixed_float16, as Keras' guide does it.

./amp-xla python examples/keras_policy.py [chinese_L-12_H-768_A-12]
"""

import amp_xla.setup  # first: above every import of TensorFlow, Keras and bert4keras
import amp_xla.callbacks
import numpy as np
from amp_xla.precision.compat.keras import LossScaleOptimizer, set_policy
from bert4keras.backend import keras, tf
from bert4keras.models import build_transformer_model
from bert4keras.optimizers import Adam
from bert4keras.snippets import sequence_padding
from bert4keras.tokenizers import Tokenizer
from made_up import EVENTS, bert_files, news

maxlen, batch_size, epochs = 24, 16, 2
config_path, checkpoint_path, dict_path = bert_files()
learning_rate = 2e-5 if checkpoint_path else 1e-3
tf.compat.v1.set_random_seed(1)  # the first weights
np.random.seed(1)  # the order of the data

train_data, valid_data = news(320, 1), news(40, 2)
categories = sorted(EVENTS)
tokenizer = Tokenizer(dict_path, do_lower_case=True)


class Batches(keras.utils.Sequence):
    """Batches of token ids, segment ids and labels."""

    def __init__(self, data):
        self.data = list(data)

    def __len__(self):
        return -(-len(self.data) // batch_size)

    def __getitem__(self, index):
        samples = self.data[index * batch_size : (index + 1) * batch_size]
        encoded = [tokenizer.encode(sample["text"], maxlen=maxlen) for sample in samples]
        labels = [[categories.index(sample["event"])] for sample in samples]
        return [sequence_padding(x, maxlen) for x in zip(*encoded)], np.array(labels)

    def on_epoch_end(self):
        np.random.shuffle(self.data)  # Run seeds np.random for each epoch


# The policy replaces the graph rewrite. float16 has no 1e12 (bert4keras) and rounds 1e-7 (Keras).
amp_xla.setup.configure(precision="tf32", infinity=1e4, epsilon=1e-5)
set_policy("mixed_float16")  # above the code that builds the model
bert = build_transformer_model(config_path, checkpoint_path)
output = keras.layers.Lambda(lambda vectors: vectors[:, 0])(bert.output)
# The last layer computes in float32, as a softmax of rounded logits is inaccurate.
output = keras.layers.Dense(len(categories), activation="softmax", dtype="float32")(output)
model = keras.models.Model(bert.input, output)
model.compile(
    loss="sparse_categorical_crossentropy",
    optimizer=LossScaleOptimizer(Adam(learning_rate)),  # dynamic, from 2 ** 15
    metrics=["accuracy"],
)
run = amp_xla.callbacks.Run("runs/keras_policy", resume=True, monitor="val_accuracy")
model.fit(
    Batches(train_data), epochs=epochs, validation_data=Batches(valid_data), verbose=2,
    callbacks=[run],
)  # fmt: skip
