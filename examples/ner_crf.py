"""Named entities by BERT and a CRF, as bert4keras' task_sequence_labeling_ner_crf.py does it.

./amp-xla python examples/ner_crf.py [chinese_L-12_H-768_A-12]
"""

import amp_xla.setup  # first: above every import of TensorFlow, Keras and bert4keras
import amp_xla.callbacks
import numpy as np
from amp_xla.precision.optimizer import LossScaleOptimizer
from bert4keras.backend import K, keras, tf
from bert4keras.layers import ConditionalRandomField
from bert4keras.models import build_transformer_model
from bert4keras.optimizers import Adam
from bert4keras.snippets import ViterbiDecoder, sequence_padding, to_array
from bert4keras.tokenizers import Tokenizer
from made_up import bert_files, news

maxlen, batch_size, epochs = 24, 16, 3
config_path, checkpoint_path, dict_path = bert_files()
learning_rate = 2e-5 if checkpoint_path else 2e-3
crf_lr_multiplier = 1000 if checkpoint_path else 10
tf.compat.v1.set_random_seed(1)  # the first weights
np.random.seed(1)  # the order of the data

# [text, (start, end, label), ...]; text[start:end + 1] is the entity
train_data = [[d["text"], *d["entities"]] for d in news(320, 1)]
valid_data = [[d["text"], *d["entities"]] for d in news(40, 2)]
categories = sorted({label for d in train_data for _, _, label in d[1:]})
tokenizer = Tokenizer(dict_path, do_lower_case=True)


class Batches(keras.utils.Sequence):
    """Batches of token ids, segment ids and labels."""

    def __init__(self, data):
        self.data = list(data)

    def __len__(self):
        return -(-len(self.data) // batch_size)

    def __getitem__(self, index):
        token_ids, segment_ids, labels = [], [], []
        for text, *entities in self.data[index * batch_size : (index + 1) * batch_size]:
            tokens = tokenizer.tokenize(text, maxlen=maxlen)
            mapping = tokenizer.rematch(text, tokens)
            starts = {m[0]: j for j, m in enumerate(mapping) if m}
            ends = {m[-1]: j for j, m in enumerate(mapping) if m}
            token_ids.append(tokenizer.tokens_to_ids(tokens))
            segment_ids.append([0] * len(tokens))
            labels.append(np.zeros(len(tokens)))
            for start, end, label in entities:
                if start in starts and end in ends:
                    labels[-1][starts[start] : ends[end] + 1] = categories.index(label) * 2 + 2
                    labels[-1][starts[start]] -= 1
        batch = [sequence_padding(x, maxlen) for x in (token_ids, segment_ids, labels)]
        return batch[:2], batch[2]

    def on_epoch_end(self):
        np.random.shuffle(self.data)  # Run seeds np.random for each epoch


bert = build_transformer_model(config_path, checkpoint_path)
output = keras.layers.Dense(len(categories) * 2 + 1)(bert.output)
CRF = ConditionalRandomField(lr_multiplier=crf_lr_multiplier)
model = keras.models.Model(bert.input, CRF(output))
trans = CRF.trans


def accuracy(y_true, y_pred):  # a function: Keras of TensorFlow 2.17 takes no method
    return CRF.sparse_accuracy(y_true, y_pred)


optimizer = LossScaleOptimizer(Adam(learning_rate), 1000)
model.compile(loss=CRF.sparse_loss, optimizer=optimizer, metrics=[accuracy])


def recognize(text):
    """Return the entities of a text: {(start, end, label), ...}."""
    tokens = tokenizer.tokenize(text, maxlen=maxlen)
    mapping = tokenizer.rematch(text, tokens)
    token_ids = tokenizer.tokens_to_ids(tokens)
    nodes = model.predict(to_array([token_ids], [[0] * len(token_ids)]))[0]
    labels = ViterbiDecoder(K.eval(trans), starts=[0], ends=[0]).decode(nodes)
    entities = []
    for i, label in enumerate(labels):
        if label % 2 == 1:
            entities.append([i, i, categories[label // 2]])
        elif label and entities and labels[i - 1]:
            entities[-1][1] = i
    return {(mapping[start][0], mapping[end][-1], label) for start, end, label in entities}


class Evaluator(keras.callbacks.Callback):
    """Measure F1 after each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        pairs = [(recognize(d[0]), set(d[1:])) for d in valid_data]
        right = sum(len(r & t) for r, t in pairs)
        logs["val_f1"] = 2 * right / max(sum(len(r) + len(t) for r, t in pairs), 1)


train = Batches(train_data)
run = amp_xla.callbacks.Run("runs/ner_crf", resume=True)
model.fit(train, epochs=epochs, verbose=2, callbacks=[Evaluator(), run])
print(valid_data[0][0], sorted(recognize(valid_data[0][0])))
