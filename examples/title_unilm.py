"""Titles of news by BERT as a UniLM, as bert4keras' task_seq2seq_autotitle.py does it.

python examples/title_unilm.py [chinese_L-12_H-768_A-12]
"""

import amp_xla.setup  # first: above every import of TensorFlow, Keras and bert4keras
import amp_xla.callbacks
import numpy as np
from amp_xla.precision.optimizer import LossScaleOptimizer
from bert4keras.backend import K, keras, tf
from bert4keras.layers import Loss
from bert4keras.models import build_transformer_model
from bert4keras.optimizers import Adam
from bert4keras.snippets import AutoRegressiveDecoder, sequence_padding
from bert4keras.tokenizers import Tokenizer, load_vocab
from made_up import bert_files, news

maxlen, batch_size, epochs = 40, 16, 12
config_path, checkpoint_path, dict_path = bert_files()
learning_rate = 1e-5 if checkpoint_path else 2e-3
tf.compat.v1.set_random_seed(1)  # the first weights
np.random.seed(1)  # the order of the data

train_data = [(d["text"], d["title"]) for d in news(320, 1)]
valid_data = [(d["text"], d["title"]) for d in news(20, 2)]
special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
token_dict, keep_tokens = load_vocab(dict_path, simplified=True, startswith=special)
tokenizer = Tokenizer(token_dict, do_lower_case=True)


class Batches(keras.utils.Sequence):
    """Batches of token ids and segment ids."""

    def __init__(self, data):
        self.data = list(data)

    def __len__(self):
        return -(-len(self.data) // batch_size)

    def __getitem__(self, index):
        rows = self.data[index * batch_size : (index + 1) * batch_size]
        pairs = [tokenizer.encode(text, title, maxlen=maxlen) for text, title in rows]
        return [sequence_padding(x, maxlen) for x in zip(*pairs)], None

    def on_epoch_end(self):
        np.random.shuffle(self.data)  # Run seeds it for each epoch


class CrossEntropy(Loss):
    """The loss of the title's tokens, whose segment is 1."""

    def compute_loss(self, inputs, mask=None):
        token_ids, segment_ids, probabilities = inputs
        in_title = K.cast(segment_ids[:, 1:], K.floatx())
        loss = K.sparse_categorical_crossentropy(token_ids[:, 1:], probabilities[:, :-1])
        return K.sum(loss * in_title) / K.sum(in_title)


bert = build_transformer_model(
    config_path, checkpoint_path, application="unilm", keep_tokens=keep_tokens
)
model = keras.models.Model(bert.inputs, CrossEntropy(2)(bert.inputs + bert.outputs))
model.compile(optimizer=LossScaleOptimizer(Adam(learning_rate), 1000))


class Title(AutoRegressiveDecoder):
    """Beam search for a title."""

    @AutoRegressiveDecoder.wraps(default_rtype="probas")
    def predict(self, inputs, output_ids, states):
        token_ids, segment_ids = inputs
        token_ids = np.concatenate([token_ids, output_ids], 1)
        segment_ids = np.concatenate([segment_ids, np.ones_like(output_ids)], 1)
        return self.last_token(model).predict([token_ids, segment_ids])

    def generate(self, text, topk=2):
        inputs = tokenizer.encode(text, maxlen=maxlen - self.maxlen)
        return tokenizer.decode(self.beam_search(list(inputs), topk=topk))


title = Title(start_id=None, end_id=tokenizer._token_end_id, maxlen=16)


class Evaluator(keras.callbacks.Callback):
    """Show a title after each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {epoch + 1}: {title.generate(valid_data[0][0])}")


train = Batches(train_data)
run = amp_xla.callbacks.Run("runs/title_unilm", resume=True)
model.fit(train, epochs=epochs, verbose=2, callbacks=[Evaluator(), run])
right = 0
for text, expected in valid_data:
    answer = title.generate(text)
    right += answer == expected
    print(text, "->", answer)
print(f"right titles: {right} of {len(valid_data)}")
