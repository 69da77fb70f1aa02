"""Relations by GPLinker, as bert4keras' task_relation_extraction_gplinker.py does it.

./amp-xla python examples/relations_gplinker.py [chinese_L-12_H-768_A-12]
"""

import amp_xla.setup  # first: above every import of TensorFlow, Keras and bert4keras
import amp_xla.callbacks
import numpy as np
from amp_xla.precision.optimizer import LossScaleOptimizer
from bert4keras.backend import K, keras, sparse_multilabel_categorical_crossentropy, tf
from bert4keras.layers import EfficientGlobalPointer as GlobalPointer
from bert4keras.models import build_transformer_model
from bert4keras.optimizers import Adam, extend_with_exponential_moving_average
from bert4keras.snippets import DataGenerator, sequence_padding, to_array
from bert4keras.tokenizers import Tokenizer
from made_up import PREDICATES, bert_files, news

maxlen, batch_size, epochs, most = 24, 16, 10, 4  # most: maximum triples of one predicate in a text
config_path, checkpoint_path, dict_path = bert_files()
learning_rate, head_size = (1e-5, 64) if checkpoint_path else (2e-3, 16)
tf.compat.v1.set_random_seed(1)  # the first weights
np.random.seed(1)  # the order of the data

train_data, valid_data = news(320, 1), news(40, 2)  # {"text": ..., "spo_list": [(s, p, o), ...]}
sizes = (2, len(PREDICATES), len(PREDICATES))  # subjects and objects; first tokens; last tokens
tokenizer = Tokenizer(dict_path, do_lower_case=True)


def search(name, sequence):
    """Return the positions of the first and last token of a name in a text, or None."""
    ids = tokenizer.encode(name)[0][1:-1]
    for i in range(len(sequence) - len(ids) + 1):
        if sequence[i : i + len(ids)] == ids:
            return i, i + len(ids) - 1
    return None


class Batches(DataGenerator):
    """Batches of token ids, segment ids and labels."""

    def __iter__(self, random=False):
        token_ids, segment_ids, labels = [], [], [[], [], []]
        for is_end, sample in self.sample(random):
            ids, segments = tokenizer.encode(sample["text"], maxlen=maxlen)
            token_ids.append(ids)
            segment_ids.append(segments)
            entities, heads, tails = ([set() for _ in range(n)] for n in sizes)
            for subject, predicate, obj in sample["spo_list"]:
                s, o, p = search(subject, ids), search(obj, ids), PREDICATES.index(predicate)
                if s and o:
                    entities[0].add(s)
                    entities[1].add(o)
                    heads[p].add((s[0], o[0]))
                    tails[p].add((s[1], o[1]))
            for batch, sets in zip(labels, (entities, heads, tails)):
                batch.append(sequence_padding([sorted(x) or [(0, 0)] for x in sets], most))
            if len(token_ids) == self.batch_size or is_end:
                inputs = [sequence_padding(x, maxlen) for x in (token_ids, segment_ids)]
                yield inputs, [np.array(batch) for batch in labels]
                token_ids, segment_ids, labels = [], [], [[], [], []]


def cross_entropy(y_true, y_pred):
    """Return the loss for labels that are lists of positions, padded with (0, 0)."""
    shape = K.shape(y_pred)
    y_true = y_true[..., 0] * K.cast(shape[2], K.floatx()) + y_true[..., 1]
    y_pred = K.reshape(y_pred, (shape[0], -1, K.prod(shape[2:])))
    loss = sparse_multilabel_categorical_crossentropy(y_true, y_pred, True)
    return K.mean(K.sum(loss, axis=1))


bert = build_transformer_model(config_path, checkpoint_path)
whole = {"head_size": head_size, "RoPE": False, "tril_mask": False}
outputs = [GlobalPointer(heads=2, head_size=head_size)(bert.output)]
outputs += [GlobalPointer(heads=len(PREDICATES), **whole)(bert.output) for _ in range(2)]
model = keras.models.Model(bert.inputs, outputs)
AdamEMA = extend_with_exponential_moving_average(Adam, name="AdamEMA")
average = AdamEMA(learning_rate=learning_rate, ema_momentum=0.99)
model.compile(loss=cross_entropy, optimizer=LossScaleOptimizer(average, 1000))


def extract(text):
    """Return the triples of a text: {(subject, predicate, object), ...}."""
    mapping = tokenizer.rematch(text, tokenizer.tokenize(text, maxlen=maxlen))
    ids, segments = tokenizer.encode(text, maxlen=maxlen)
    entities, heads, tails = (o[0] for o in model.predict(to_array([ids], [segments])))
    entities[:, [0, -1]] -= np.inf
    entities[:, :, [0, -1]] -= np.inf
    subjects, objects = (list(zip(*np.where(scores > 0))) for scores in entities)
    return {
        (text[mapping[sh][0] : mapping[st][-1] + 1], PREDICATES[p],
         text[mapping[oh][0] : mapping[ot][-1] + 1])
        for sh, st in subjects for oh, ot in objects
        for p in np.where((heads[:, sh, oh] > 0) & (tails[:, st, ot] > 0))[0]
    }  # fmt: skip


class Evaluator(keras.callbacks.Callback):
    """Measure F1 of the averaged weights after each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        average.apply_ema_weights()
        pairs = [(extract(d["text"]), set(d["spo_list"])) for d in valid_data]
        average.reset_old_weights()
        right = sum(len(r & t) for r, t in pairs)
        logs["val_f1"] = 2 * right / max(sum(len(r) + len(t) for r, t in pairs), 1)


train = Batches(train_data, batch_size)
run = amp_xla.callbacks.Run("runs/relations_gplinker", resume=True)
model.fit(
    train.forfit(), steps_per_epoch=len(train), epochs=epochs, verbose=2,
    callbacks=[Evaluator(), run],
)  # fmt: skip
