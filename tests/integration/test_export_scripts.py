"""Models of scripts, exported from their weights, give the scripts' own answers."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from amp_xla import backend
from amp_xla.export.model import HEAD
from tests.support import google_folder
from tests.support.commands import CLI, Commands, served

pytestmark = pytest.mark.slow
FP32 = "import amp_xla.setup; amp_xla.setup.configure(precision='fp32', epsilon=1e-5)"

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
CONFIG = {
    "vocab_size": len(VOCABULARY), "hidden_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 32, "hidden_act": "gelu",
    "max_position_embeddings": 64, "type_vocab_size": 2, "hidden_dropout_prob": 0.1,
}  # fmt: skip
START = """
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
END = """
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
    """Write bert4keras' example scripts, adapted in paths and sizes, and what they read."""
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCABULARY))
    (folder / "bert_config.json").write_text(json.dumps(CONFIG))
    for name, text in SCRIPTS.items():
        (folder / f"{name}.py").write_text(f'{START}NAME = "{name}"\n{text}{END}')


class Scripts(Commands):
    """A folder with scripts, each of which is run once."""

    def __init__(self, server, folder):
        super().__init__(server, folder)
        write(folder)
        self._answers = {}

    def answers(self, name):
        """Run a script; return what its model answers."""
        if name not in self._answers:
            done = self.job({"script": str(self.folder / f"{name}.py"), "code": FP32})
            assert done.code == 0, done.err
            self._answers[name] = np.load(str(self.folder / f"{name}.npz"))
        return self._answers[name]

    def export(self, *words):
        return self.done(CLI, "export", *words).out

    def check(self, name, folder):
        """Compare a SavedModel's answers with the script's."""
        expected = self.answers(name)
        asked = {"token_ids": expected["ids"], "segment_ids": expected["segments"]}
        (found,) = served(self.folder / folder, asked).values()
        np.testing.assert_allclose(found, expected["answers"], atol=1e-5)


@pytest.fixture(scope="module")
def scripts(server, tmp_path_factory):
    return Scripts(server, tmp_path_factory.mktemp("scripts"))


def hidden(folder, asked, **options):
    """Return what bert4keras alone computes from an exported folder, and the head's tensors."""
    config = json.loads((folder / "bert_config.json").read_text())
    backend.bert4keras().set_gelu(config["hidden_act"].replace("gelu_", "").replace("gelu", "erf"))
    output = google_folder.answers(folder, asked["ids"], asked["segments"], **options)
    backend.bert4keras().set_gelu("erf")
    return output, load_file(str(folder / HEAD)) if (folder / HEAD).exists() else {}


def test_a_classifier(scripts):
    """From a file of weights and from the newest checkpoint of its run."""
    scripts.answers("classify")
    scripts.export("classify.py:model", "--weights", "classify.weights", "--to", "a")
    said = scripts.export("runs/classify", "classify.py:model", "--checkpoint", "last")
    assert "written: runs/classify/export-savedmodel, from step-00000002; its outputs" in said
    for folder in ("a", "runs/classify/export-savedmodel"):
        scripts.check("classify", folder)


@pytest.mark.once
def test_a_classifier_in_the_formats_of_bert(scripts):
    asked = scripts.answers("classify")
    said = scripts.export("runs/classify", "classify.py:model", "--format", "google", "--to", "g")
    assert "compute from the encoder's output: softmax((pooler) @ dense" in said
    pooler, head = hidden(scripts.folder / "g", asked, with_pool=True)
    (kernel,), (bias,) = ([v for k, v in head.items() if k.endswith(x)] for x in ("weight", "bias"))
    powers = np.exp(pooler @ kernel.T + bias)
    answers = powers / powers.sum(1, keepdims=True)
    np.testing.assert_allclose(answers, asked["answers"], atol=1e-5)
    words = ("classify.py:model", "--weights", "g/bert_model.ckpt")  # which lacks the head
    assert "it lacks dense" in scripts(CLI, "export", *words, "--to", "no").error
    scripts.export("classify.py:model", "--weights", "classify.h5", "--format", "hf", "--to", "h")
    stored = load_file(str(scripts.folder / "h" / "model.safetensors"))
    assert stored["pooler.dense.weight"].shape == (16, 16)
    config = json.loads((scripts.folder / "h" / "config.json").read_text())
    assert config["hidden_act"] == "gelu_new"


@pytest.mark.once
def test_of_several_models_of_a_script_the_trained_one_is_named(scripts):
    """TensorFlow numbers the names of a second model's weights, by which a run stores them."""
    for name in ("classify", "second"):
        scripts.answers(name)
    first = "classify.py:build_model"
    for words, hint in (
        (("runs/classify", first), "export classify.py:model"),
        (("runs/second", "classify.py:model"), "make the trained model a global of classify.py"),
    ):
        error = scripts(CLI, "export", *words, "--to", "no").error
        assert hint in error and "another model" not in error, error
    for folder, name, *words in (
        ("third", "classify", first, "--weights", "classify.weights"),  # Keras reads by order
        ("fourth", "second", "runs/second", first),
    ):
        scripts.export(*words, "--to", folder)
        scripts.check(name, folder)


@pytest.mark.once
def test_a_tagger_with_a_crf(scripts):
    asked = scripts.answers("tag")
    scripts.export("tag.py:model", "--weights", "tag.h5", "--to", "tag_saved")
    scripts.check("tag", "tag_saved")
    numbers = json.loads((scripts.folder / "tag_saved" / "answers.json").read_text())
    np.testing.assert_allclose(numbers["transitions"], asked["trans"], atol=1e-6)
    checkpoint = sorted((scripts.folder / "runs/tag/checkpoints").iterdir())[-1]
    words = ("--weights", str(checkpoint), "--format", "google", "--to", "tag_google")
    assert "best path of (vectors of all tokens) @ " in scripts.export("tag.py:model", *words)
    vectors, head = hidden(scripts.folder / "tag_google", asked)
    kernel, bias, trans = (
        next(v for k, v in head.items() if k.endswith(x)) for x in ("weight", "bias", "transitions")
    )
    np.testing.assert_allclose(trans, asked["trans"], atol=1e-6)
    real = asked["ids"] > 0
    answers = (vectors @ kernel.T + bias)[real]
    np.testing.assert_allclose(answers, asked["answers"][real], atol=1e-5)


@pytest.mark.once
def test_a_title_writer(scripts):
    asked = scripts.answers("title")
    scripts.export("title.py:model", "--weights", "title.weights", "--to", "title_saved")
    scripts.check("title", "title_saved")
    words = ("title.py:model", "--weights", "title.h5", "--format")
    scripts.export(*words, "google", "--to", "title_google")
    chances, _ = hidden(scripts.folder / "title_google", asked, application="unilm")
    np.testing.assert_allclose(chances, asked["answers"], atol=1e-5)
    assert "cannot mask attention as --objective lm" in scripts(CLI, "export", *words, "hf").error


@pytest.mark.once
def test_what_has_no_such_form_is_refused(scripts):
    for name in ("convolve", "tag"):
        scripts.answers(name)
    (scripts.folder / "plain.h5").write_text("no weights")
    convolve = ("convolve.py:model", "--weights", "convolve.h5")
    for words, message in (
        ((*convolve, "--format", "hf"), "no formula for layer conv1d (Conv1D) after the encoder"),
        ((*convolve, "--format", "onnx", "--dtype", "int8"), "allowed: fp32, fp16"),
        (("tag.py:model", "--weights", "convolve.h5"), "convolve.h5 does not fit the model"),
        (("tag.py:model", "--weights", "convolve.weights"), "does not fit the model"),
        (("tag.py:model", "--weights", "plain.h5"), "plain.h5 does not fit the model"),
        (("tag.py:model", "--weights", "none.h5"), "none.h5: there is no such file"),
        (("tag.py:modell", "--weights", "tag.h5"), "did you mean model?"),
        (("runs/tag", "convolve.py:model"), "of another model and cannot be used"),
        (("runs/tag", "tag.py"), "tag.py is not a script; needed: my_script.py:build_model"),
        (("runs/tag",), "amp-xla export RUN my_script.py:build_model"),
        (("none.py:model", "--weights", "tag.h5"), "there is no file none.py"),
    ):
        assert message in scripts(CLI, "export", *words).error, words
    assert not list(scripts.folder.glob("runs/tag/export*"))
