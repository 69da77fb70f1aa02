"""Masked-language-model training: go on pretraining a BERT on texts of one's own.

python examples/masked_language_model.py [chinese_L-12_H-768_A-12]
"""

import amp_xla.setup  # first: above every import of TensorFlow, Keras and bert4keras
import amp_xla.callbacks
import numpy as np
from amp_xla.precision.optimizer import LossScaleOptimizer
from bert4keras.backend import K, keras, tf
from bert4keras.layers import Loss
from bert4keras.models import build_transformer_model
from bert4keras.optimizers import Adam
from bert4keras.snippets import sequence_padding
from bert4keras.tokenizers import Tokenizer
from made_up import bert_files, news

maxlen, batch_size, epochs = 24, 16, 8
config_path, checkpoint_path, dict_path = bert_files()
learning_rate = 2e-5 if checkpoint_path else 2e-3
tf.compat.v1.set_random_seed(1)  # a run killed before its first checkpoint starts with these

texts, valid_texts = [d["text"] for d in news(640, 1)], [d["text"] for d in news(100, 2)]
tokenizer = Tokenizer(dict_path, do_lower_case=True)
mask_id, words = tokenizer._token_mask_id, tokenizer._token_mask_id + 1


class Batches(keras.utils.Sequence):
    """Batches of masked token ids, segment ids, token ids and what is masked.

    Order and masks are functions of the epoch and of the batch's number.
    """

    def __init__(self, texts):
        self.texts, self.epoch = texts, 0

    def __len__(self):
        return -(-len(self.texts) // batch_size)

    def __getitem__(self, index):
        order = np.random.RandomState(self.epoch).permutation(len(self.texts))
        rows = order[index * batch_size : (index + 1) * batch_size]
        token_ids = [tokenizer.encode(self.texts[i], maxlen=maxlen)[0] for i in rows]
        token_ids = sequence_padding(token_ids, maxlen)
        draw = np.random.RandomState([self.epoch, index])
        chosen = (draw.rand(*token_ids.shape) < 0.15) & (token_ids >= words)
        kind = draw.rand(*token_ids.shape)  # 80% [MASK], 10% another token, 10% the same
        other = draw.randint(words, tokenizer._vocab_size, token_ids.shape)
        masked = np.where(chosen & (kind < 0.8), mask_id, token_ids)
        masked = np.where(chosen & (kind >= 0.9), other, masked)
        return [masked, np.zeros_like(masked), token_ids, chosen.astype("float32")], None


class CrossEntropy(Loss):
    """The loss of the masked tokens; ``accuracy`` is theirs too."""

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
    """Fill the masks of other texts after each epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        train.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        right = []
        for inputs, _ in valid:
            filled = bert.predict(inputs[:2]).argmax(-1)
            right.append((filled == inputs[2])[inputs[3] > 0])
        print(f"epoch {epoch + 1}: masked tokens right {np.concatenate(right).mean():.4f}")


train, valid = Batches(texts), Batches(valid_texts)
run = amp_xla.callbacks.Run("runs/masked_language_model", resume=True)
model.fit(train, epochs=epochs, workers=0, verbose=2, callbacks=[Evaluator(), run])
