"""Named entities by BERT and GlobalPointer: one score for each (start, end) of each kind.

python examples/ner_global_pointer.py [chinese_L-12_H-768_A-12]
"""

import amp_xla.setup  # first: above every import of TensorFlow, Keras and bert4keras
import amp_xla.callbacks
import numpy as np
from amp_xla.precision.optimizer import LossScaleOptimizer
from bert4keras.backend import K, keras, multilabel_categorical_crossentropy, tf
from bert4keras.layers import EfficientGlobalPointer as GlobalPointer
from bert4keras.models import build_transformer_model
from bert4keras.optimizers import Adam
from bert4keras.snippets import DataGenerator, sequence_padding, to_array
from bert4keras.tokenizers import Tokenizer
from made_up import bert_files, news

maxlen, batch_size, epochs = 24, 16, 4
config_path, checkpoint_path, dict_path = bert_files()
learning_rate = 2e-5 if checkpoint_path else 2e-3
tf.compat.v1.set_random_seed(1)  # the first weights
np.random.seed(1)  # the order of the data

# [text, (start, end, label), ...]; text[start:end + 1] is the entity
train_data = [[d["text"], *d["entities"]] for d in news(320, 1)]
valid_data = [[d["text"], *d["entities"]] for d in news(40, 2)]
categories = sorted({label for d in train_data for _, _, label in d[1:]})
tokenizer = Tokenizer(dict_path, do_lower_case=True)


class Batches(DataGenerator):
    """Batches of token ids, segment ids and labels."""

    def __iter__(self, random=False):
        token_ids, segment_ids, labels = [], [], []
        for is_end, (text, *entities) in self.sample(random):
            tokens = tokenizer.tokenize(text, maxlen=maxlen)
            mapping = tokenizer.rematch(text, tokens)
            starts = {m[0]: j for j, m in enumerate(mapping) if m}
            ends = {m[-1]: j for j, m in enumerate(mapping) if m}
            token_ids.append(tokenizer.tokens_to_ids(tokens))
            segment_ids.append([0] * len(tokens))
            labels.append(np.zeros((len(categories), maxlen, maxlen)))
            for start, end, label in entities:
                if start in starts and end in ends:
                    labels[-1][categories.index(label), starts[start], ends[end]] = 1
            if len(token_ids) == self.batch_size or is_end:
                inputs = [sequence_padding(x, maxlen) for x in (token_ids, segment_ids)]
                yield inputs, np.array(labels)
                token_ids, segment_ids, labels = [], [], []


def cross_entropy(y_true, y_pred):
    """Return the loss of all (start, end) of each kind of entity."""
    shape = (-1, maxlen * maxlen)
    loss = multilabel_categorical_crossentropy(K.reshape(y_true, shape), K.reshape(y_pred, shape))
    return K.mean(loss)


def f1(y_true, y_pred):
    """Return F1 of a batch."""
    y_pred = K.cast(K.greater(y_pred, 0), K.floatx())
    return 2 * K.sum(y_true * y_pred) / K.sum(y_true + y_pred)


bert = build_transformer_model(config_path, checkpoint_path)
output = GlobalPointer(heads=len(categories), head_size=64 if checkpoint_path else 16)(bert.output)
model = keras.models.Model(bert.input, output)
optimizer = LossScaleOptimizer(Adam(learning_rate), 1000)
model.compile(loss=cross_entropy, optimizer=optimizer, metrics=[f1])


def recognize(text):
    """Return the entities of a text: {(start, end, label), ...}."""
    tokens = tokenizer.tokenize(text, maxlen=maxlen)
    mapping = tokenizer.rematch(text, tokens)
    token_ids = tokenizer.tokens_to_ids(tokens)
    scores = model.predict(to_array([token_ids], [[0] * len(token_ids)]))[0]
    scores[:, [0, -1]] -= np.inf
    scores[:, :, [0, -1]] -= np.inf
    return {
        (mapping[start][0], mapping[end][-1], categories[kind])
        for kind, start, end in zip(*np.where(scores > 0))
    }


class Evaluator(keras.callbacks.Callback):
    """Measure F1 after each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        pairs = [(recognize(d[0]), set(d[1:])) for d in valid_data]
        right = sum(len(r & t) for r, t in pairs)
        logs["val_f1"] = 2 * right / max(sum(len(r) + len(t) for r, t in pairs), 1)


train = Batches(train_data, batch_size)
run = amp_xla.callbacks.Run("runs/ner_global_pointer", resume=True)
model.fit(
    train.forfit(), steps_per_epoch=len(train), epochs=epochs, verbose=2,
    callbacks=[Evaluator(), run],
)  # fmt: skip
print(valid_data[0][0], sorted(recognize(valid_data[0][0])))
