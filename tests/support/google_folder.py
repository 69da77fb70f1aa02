"""A tiny BERT in Google's format, to be damaged."""

import json
import shutil

import numpy as np

from amp_xla import backend
from amp_xla.backend import K
from amp_xla.models import dropout
from amp_xla.models.weights import google

CONFIG = {
    "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    # 64 rows, as many as the padded token embeddings have
    "intermediate_size": 64, "max_position_embeddings": 32, "type_vocab_size": 2,
    "hidden_act": "gelu",
}  # fmt: skip
NAME = "bert_config.json"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno"]


def write(folder, replaced=None, vocabulary=tuple(VOCABULARY)):
    """``replaced``: tensor name -> other values, None = left out."""
    folder.mkdir()
    shapes = {**CONFIG, "vocab_size": len(vocabulary)}
    (folder / NAME).write_text(json.dumps(shapes))
    (folder / "vocab.txt").write_text("".join(token + "\n" for token in vocabulary))
    random = np.random.RandomState(0)
    values = {
        name: random.normal(0, 0.02, shape).astype(np.float32)
        for name, shape in tensors(shapes, language_model=True).items()
    }
    values.update(replaced or {})
    kept = {name: value for name, value in values.items() if value is not None}
    google.write_tensors(str(folder / "bert_model.ckpt"), kept)
    return folder


def answers(folder, *inputs, **options):
    """Return what bert4keras alone computes from token and segment ids."""
    config = json.loads((folder / NAME).read_text())
    epsilon = K.epsilon()
    K.clear_session()
    K.set_epsilon(config["layer_norm_eps"])
    with dropout.inference():
        model = backend.bert4keras("models").build_transformer_model(
            str(folder / NAME), str(folder / "bert_model.ckpt"), config["model_type"], **options
        )
    K.set_epsilon(epsilon)
    return model.predict(list(inputs))


def tensors(config, language_model):
    """Return the shapes of a BERT's tensors by name."""
    hidden, inner, rows = (config[f"{n}_size"] for n in ("hidden", "intermediate", "vocab"))
    shapes = {
        "bert/embeddings/word_embeddings": (rows, hidden),
        "bert/embeddings/position_embeddings": (config["max_position_embeddings"], hidden),
        "bert/embeddings/token_type_embeddings": (config["type_vocab_size"], hidden),
    }
    dense, norms = {}, ["bert/embeddings"]
    for number in range(config["num_hidden_layers"]):
        layer = f"bert/encoder/layer_{number}"
        for name in ("self/query", "self/key", "self/value", "output/dense"):
            dense[f"{layer}/attention/{name}"] = (hidden, hidden)
        dense[f"{layer}/intermediate/dense"] = (hidden, inner)
        dense[f"{layer}/output/dense"] = (inner, hidden)
        norms += [f"{layer}/attention/output", f"{layer}/output"]
    if language_model:
        dense["cls/predictions/transform/dense"] = (hidden, hidden)
        norms.append("cls/predictions/transform")
        shapes["cls/predictions/output_bias"] = (rows,)
    for name, shape in dense.items():
        shapes.update({f"{name}/kernel": shape, f"{name}/bias": shape[1:]})
    for name in norms:
        shapes.update({f"{name}/LayerNorm/{part}": (hidden,) for part in ("beta", "gamma")})
    return shapes


def cut(name, keep):
    """Return a change of a folder: a file ends early."""

    def change(folder):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * keep)])

    return change


def without(*names):
    """Return a change of a folder: files or folders are missing."""

    def change(folder):
        for name in names:
            path = folder / name
            shutil.rmtree(str(path)) if path.is_dir() else path.unlink()

    return change
