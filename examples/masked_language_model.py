"""Masked-language-model training: pretrain a BERT further on other texts.

./amp-xla python examples/masked_language_model.py [chinese_L-12_H-768_A-12]
"""

import amp_xla.setup  # first: above every import of TensorFlow, Keras and bert4keras
import amp_xla.callbacks
import numpy as np
from amp_xla.precision.optimizer import LossScaleOptimizer
from bert4keras.backend import K, keras, tf
from bert4keras.layers import Loss
from bert4keras.models import build_transformer_model
from bert4keras.optimizers import Adam
from bert4keras.snippets import DataGenerator, sequence_padding
from bert4keras.tokenizers import Tokenizer
from made_up import bert_files, news

maxlen, batch_size, epochs = 24, 16, 8
config_path, checkpoint_path, dict_path = bert_files()
learning_rate = 2e-5 if checkpoint_path else 2e-3
tf.compat.v1.set_random_seed(1)  # the first weights
np.random.seed(1)  # the order of the data

texts, valid_texts = [d["text"] for d in news(640, 1)], [d["text"] for d in news(100, 2)]
tokenizer = Tokenizer(dict_path, do_lower_case=True)
mask_id, words = tokenizer._token_mask_id, tokenizer._token_mask_id + 1


def masked(token_ids):
    """Return masked token ids, and a mask of the 15% of words to predict."""
    chosen = (np.random.rand(*token_ids.shape) < 0.15) & (token_ids >= words)
    kind = np.random.rand(*token_ids.shape)  # 80% [MASK], 10% another token, 10% the same
    other = np.random.randint(words, tokenizer._vocab_size, token_ids.shape)
    inputs = np.where(chosen & (kind < 0.8), mask_id, token_ids)
    return np.where(chosen & (kind >= 0.9), other, inputs), chosen.astype("float32")


class Batches(DataGenerator):
    """Batches of masked token ids, segment ids, original token ids and the mask."""

    def __iter__(self, random=False):
        token_ids = []
        for is_end, text in self.sample(random):
            token_ids.append(tokenizer.encode(text, maxlen=maxlen)[0])
            if len(token_ids) == self.batch_size or is_end:
                token_ids = sequence_padding(token_ids, maxlen)
                inputs, chosen = masked(token_ids)
                yield [inputs, np.zeros_like(inputs), token_ids, chosen], None
                token_ids = []


class CrossEntropy(Loss):
    """The mean loss and accuracy of the masked tokens."""

    def compute_loss(self, inputs, mask=None):
        token_ids, chosen, probabilities = inputs
        loss = K.sparse_categorical_crossentropy(token_ids, probabilities)
        right = K.cast(K.equal(K.cast(token_ids, "int64"), K.argmax(probabilities)), K.floatx())
        self.add_metric(mean(right, chosen), name="accuracy", aggregation="mean")
        return mean(loss, chosen)


def mean(values, chosen):
    """Return the mean over the masked tokens."""
    return K.sum(values * chosen) / (K.sum(chosen) + K.epsilon())


bert = build_transformer_model(config_path, checkpoint_path, with_mlm=True)
token_ids = keras.layers.Input([None], name="token_ids")
chosen = keras.layers.Input([None], name="chosen")
output = CrossEntropy(2)([token_ids, chosen, bert.output])
model = keras.models.Model([*bert.inputs, token_ids, chosen], output)
model.compile(optimizer=LossScaleOptimizer(Adam(learning_rate), 1000))


class Evaluator(keras.callbacks.Callback):
    """Measure the accuracy on the masked tokens of other texts after each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        right = []
        for inputs, _ in valid:
            filled = bert.predict(inputs[:2]).argmax(-1)
            right.append((filled == inputs[2])[inputs[3] > 0])
        logs["val_accuracy"] = np.concatenate(right).mean()


train, valid = Batches(texts, batch_size), list(Batches(valid_texts, batch_size))
run = amp_xla.callbacks.Run("runs/masked_language_model", resume=True)
model.fit(
    train.forfit(), steps_per_epoch=len(train), epochs=epochs, verbose=2,
    callbacks=[Evaluator(), run],
)  # fmt: skip
