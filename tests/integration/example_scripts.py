"""bert4keras' example scripts, adapted in paths and sizes; `write` puts them into a folder."""

import json

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
CONFIG = {
    "vocab_size": len(VOCABULARY), "hidden_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 32, "hidden_act": "gelu",
    "max_position_embeddings": 64, "type_vocab_size": 2, "hidden_dropout_prob": 0.1,
}  # fmt: skip
HEAD = """
import amp_xla.setup
import amp_xla.callbacks
import sys
import numpy as np
from bert4keras.backend import K, keras, set_gelu
from bert4keras.layers import ConditionalRandomField, Loss
from bert4keras.models import build_transformer_model
from bert4keras.snippets import sequence_padding
from bert4keras.tokenizers import Tokenizer, load_vocab
from amp_xla.precision.optimizer import LossScaleOptimizer
from keras.layers import Dense, Dropout, Lambda
from keras.models import Model
Adam = keras.optimizers.Adam  # bert4keras' own takes seconds to build
config_path, dict_path, maxlen = "bert_config.json", "vocab.txt", 24
texts = ["abc def", "hello", "world peace", "ab"]

def tokens(rows):
    ids = np.random.RandomState(0).randint(5, 26, (rows, maxlen))
    return [ids, np.zeros_like(ids) + (np.arange(maxlen) > 5)]

def named():
    ids, segments = tokens(4)
    return {"Input-Segment": segments, "Input-Token": ids}
"""
SCRIPTS = {
    # task_sentence_similarity_lcqmc.py
    "classify": """
set_gelu("tanh")
tokenizer = Tokenizer(dict_path, do_lower_case=True)

def build_model():
    bert = build_transformer_model(config_path, with_pool=True, return_keras_model=False)
    output = Dropout(rate=0.1)(bert.model.output)
    output = Dense(units=2, activation="softmax", kernel_initializer=bert.initializer)(output)
    model = keras.models.Model(bert.model.input, output)
    model.compile(loss="sparse_categorical_crossentropy", optimizer=Adam(1e-3))
    return model

model = build_model()
""",
    # the second model of its process
    "second": """
from classify import build_model, tokenizer
model = build_model()
teacher = build_transformer_model(config_path, num_hidden_layers=2)
""",
    # task_sequence_labeling_ner_crf.py
    "tag": """
tokenizer = Tokenizer(dict_path, do_lower_case=True)
model = build_transformer_model(config_path)
output = model.get_layer("Transformer-0-FeedForward-Norm").output
output = Dense(7)(output)
CRF = ConditionalRandomField(lr_multiplier=1000)
output = CRF(output)
model = Model(model.input, output)
model.compile(loss=CRF.sparse_loss, optimizer=Adam(1e-3))

def tagged():
    ids, segments = tokens(4)
    return [ids, segments * 0], ids % 7
""",
    # task_seq2seq_autotitle.py
    "title": """
token_dict, keep_tokens = load_vocab(
    dict_path=dict_path, simplified=True, startswith=["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
tokenizer = Tokenizer(token_dict, do_lower_case=True)

class CrossEntropy(Loss):
    def compute_loss(self, inputs, mask=None):
        y_true, y_mask, y_pred = inputs
        y_true, y_mask, y_pred = y_true[:, 1:], y_mask[:, 1:], y_pred[:, :-1]
        loss = K.sparse_categorical_crossentropy(y_true, y_pred)
        return K.sum(loss * y_mask) / K.sum(y_mask)

model = build_transformer_model(config_path, application="unilm", keep_tokens=keep_tokens)
output = CrossEntropy(2)([*model.inputs, model.output])
model = Model(model.inputs, output)
scale = float(sys.argv[1]) if sys.argv[1:] else 256.0
model.compile(optimizer=LossScaleOptimizer(Adam(1e-3), scale))

def with_batch():
    return model, (tokens(4), None)

def batches():
    while True:
        yield tokens(2), None
""",
    # no known head
    "convolve": """
tokenizer = Tokenizer(dict_path, do_lower_case=True)
bert = build_transformer_model(config_path)
model = Model(bert.inputs, keras.layers.Conv1D(3, 2)(bert.output))
model.compile(loss="mse", optimizer=Adam(1e-3))
""",
}
TAIL = """
if __name__ == "__main__":
    encoded = [tokenizer.encode(a, b) for a, b in zip(texts, texts[1:])]
    ids, segments = (sequence_padding(x) for x in zip(*encoded))
    labels = {"title": None, "convolve": None, "tag": ids % 7}.get(NAME, ids[:, :1] % 2)
    if labels is not None:
        run = amp_xla.callbacks.Run("runs/" + NAME)
        model.fit([ids, segments], labels, batch_size=3, epochs=2, verbose=0, callbacks=[run])
    model.save_weights(NAME + ".weights")
    model.save_weights(NAME + ".h5")
    trans = K.eval(CRF.trans) if NAME == "tag" else 0
    answers = model.predict([ids, segments])
    np.savez(NAME + ".npz", ids=ids, segments=segments, answers=answers, trans=trans)
"""


def write(folder):
    """Write the scripts and what they read."""
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCABULARY))
    (folder / "bert_config.json").write_text(json.dumps(CONFIG))
    for name, text in SCRIPTS.items():
        (folder / f"{name}.py").write_text(f'{HEAD}NAME = "{name}"\n{text}{TAIL}')
