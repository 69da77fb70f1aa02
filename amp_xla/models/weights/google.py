"""A BERT in Google's format: a folder with bert_config.json and a TensorFlow checkpoint.

Configuration and checkpoint are compared tensor by tensor, and checksums are verified, before a
model is built. bert4keras would find an error while loading, with a traceback, or not at all.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

import numpy as np

from amp_xla.backend import keras, tf
from amp_xla.errors import AmpXlaError
from amp_xla.process.progress import note

CONFIG = "bert_config.json"
TOKENS, POSITIONS = "bert/embeddings/word_embeddings", "bert/embeddings/position_embeddings"
FLOATS = ("float32", "float16", "bfloat16", "float64")
# Key -> default, as in bert4keras; None = required.
_SIZES = {
    "vocab_size": None,
    "hidden_size": None,
    "num_hidden_layers": None,
    "num_attention_heads": None,
    "intermediate_size": None,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}

Shape = Tuple[int, ...]


class WeightsError(AmpXlaError, ValueError):
    """Weights that cannot be used; the message names file, tensor and what is needed."""


def read(
    folder: str,
    vocab_size: Optional[int] = None,
    length: Optional[int] = None,
    language_model: bool = False,
) -> str:
    """Check a folder and return its checkpoint's prefix; every tensor of the BERT is read once.

    Args:
      folder: value of ``--bert``.
      vocab_size: tokens of the vocabulary, at most the number of embeddings.
      length: tokens per sequence, at most the number of position embeddings.
      language_model: also require the head of the masked language model.

    Raises:
      WeightsError: a file is missing, damaged, or contradicts another.
    """
    path = Path(folder) / CONFIG
    config = read_config(path)
    prefix = checkpoint_prefix(Path(folder))
    if length is not None and config["max_position_embeddings"] < length:
        raise WeightsError(
            f"{path} has max_position_embeddings {config['max_position_embeddings']}, which is too "
            f"few for sequences of {length} tokens; give --max-length "
            f"{config['max_position_embeddings']} or less"
        )
    if vocab_size is not None and config["vocab_size"] < vocab_size:
        raise WeightsError(
            f"{path} has vocab_size {config['vocab_size']:,}, the vocabulary {vocab_size:,} "
            f"tokens; each needs its row in {TOKENS}: take the vocab.txt that came with it"
        )
    _check_tensors(prefix, path, config, language_model)
    if vocab_size is not None and config["vocab_size"] > vocab_size:
        note(
            f"the vocabulary has {vocab_size:,} tokens, {folder} has embeddings of "
            f"{config['vocab_size']:,}: is it the vocab.txt that came with them?"
        )
    return str(prefix)


def read_config(path: Path) -> Dict[str, Any]:
    """Read ``bert_config.json`` and fill in defaults.

    Raises:
      WeightsError: no such file, no JSON, or an impossible value.
    """
    try:
        config = json.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise WeightsError(f"{path.parent} has no {path.name}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"cannot read {path}: {_first_line(error)}") from None
    if not isinstance(config, dict):
        raise WeightsError(f"{path} is not a JSON object, but {json.dumps(config)[:40]}")
    for key, default in _SIZES.items():
        value = config.setdefault(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            problem = "is missing" if value is None else f"is {json.dumps(value)[:40]}"
            raise WeightsError(f"{path}: {key} {problem}; a number from 1 on is needed")
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    if hidden % heads and "attention_head_size" not in config:
        raise WeightsError(
            f"{path}: num_attention_heads {heads} does not divide hidden_size {hidden}"
        )
    try:
        keras.activations.get(config.setdefault("hidden_act", "gelu"))
    except (TypeError, ValueError):
        act = json.dumps(config["hidden_act"])[:40]
        raise WeightsError(
            f"{path}: hidden_act {act} is not known to Keras; BERT's is gelu"
        ) from None
    return config


def checkpoint_prefix(folder: Path) -> Path:
    """Return the prefix of the TensorFlow checkpoint in ``folder``, e.g. ``bert_model.ckpt``.

    Raises:
      WeightsError: there is not exactly one, or its data file is missing.
    """
    indexes = sorted(folder.glob("*.index"))
    if len(indexes) != 1:
        names = ", ".join(path.name for path in indexes) or "none"
        raise WeightsError(f"{folder} must hold one checkpoint (*.index); found: {names}")
    prefix = indexes[0].with_suffix("")
    if not any(folder.glob(f"{prefix.name}.data-*")):
        raise WeightsError(f"{indexes[0]} exists, but not {prefix.name}.data-00000-of-00001")
    return prefix


def write_tensors(prefix: str, values: Dict[str, np.ndarray]) -> None:
    """Write a TensorFlow checkpoint of these arrays."""
    with tf.Graph().as_default(), tf.Session() as session:
        fed = {name: tf.placeholder(value.dtype, value.shape) for name, value in values.items()}
        save = tf.raw_ops.SaveV2(
            prefix=prefix, tensor_names=list(fed), shape_and_slices=[""] * len(fed),
            tensors=list(fed.values()),
        )  # fmt: skip
        session.run(save, {fed[name]: value for name, value in values.items()})


def tensors(config: Dict[str, Any], language_model: bool) -> Iterator[Tuple[str, Shape]]:
    """Yield (name, shape) of the tensors that bert4keras' BERT of this configuration loads."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    embedding = config.get("embedding_size") or hidden
    value = heads * (config.get("attention_head_size") or hidden // heads)
    key = heads * config["attention_key_size"] if config.get("attention_key_size") else value
    yield TOKENS, (config["vocab_size"], embedding)
    yield POSITIONS, (config["max_position_embeddings"], embedding)
    yield "bert/embeddings/token_type_embeddings", (config["type_vocab_size"], embedding)
    yield from _norm("bert/embeddings", embedding)
    if embedding != hidden:
        yield from _dense("bert/encoder/embedding_hidden_mapping_in", embedding, hidden)
    for number in range(config["num_hidden_layers"]):
        layer = f"bert/encoder/layer_{number}"
        for name, width in (("query", key), ("key", key), ("value", value)):
            yield from _dense(f"{layer}/attention/self/{name}", hidden, width)
        yield from _dense(f"{layer}/attention/output/dense", value, hidden)
        yield from _norm(f"{layer}/attention/output", hidden)
        yield from _dense(f"{layer}/intermediate/dense", hidden, inner)
        yield from _dense(f"{layer}/output/dense", inner, hidden)
        yield from _norm(f"{layer}/output", hidden)
    if language_model:
        yield from _dense("cls/predictions/transform/dense", hidden, embedding)
        yield from _norm("cls/predictions/transform", embedding)
        yield "cls/predictions/output_bias", (config["vocab_size"],)


def _dense(name: str, rows: int, columns: int) -> List[Tuple[str, Shape]]:
    return [(f"{name}/kernel", (rows, columns)), (f"{name}/bias", (columns,))]


def _norm(name: str, size: int) -> List[Tuple[str, Shape]]:
    return [(f"{name}/LayerNorm/beta", (size,)), (f"{name}/LayerNorm/gamma", (size,))]


def _check_tensors(prefix: Path, path: Path, config: Dict[str, Any], language_model: bool) -> None:
    # The readers raise various exceptions, IndexError for a truncated file.
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        shapes = reader.get_variable_to_shape_map()
        dtypes = reader.get_variable_to_dtype_map()
    except Exception as error:
        raise _damaged(f"{prefix}.index", error) from None
    layers = len(set(re.findall(r"^bert/encoder/(layer_\d+)/", "\n".join(shapes), re.MULTILINE)))
    needed: List[str] = []
    for name, shape in tensors(config, language_model):  # cheap ones first: names, shapes, dtypes
        if name not in shapes:
            if layers < config["num_hidden_layers"] and f"layer_{layers}/" in name:
                raise WeightsError(
                    f"{path} says num_hidden_layers {config['num_hidden_layers']}, {prefix} holds "
                    f"{layers}: it has no tensor {name}"
                )
            raise WeightsError(f"{prefix} has no tensor {name}; is it a BERT in Google's format?")
        if tuple(shapes[name]) != shape:
            raise WeightsError(
                f"{prefix}: tensor {name} is {list(shapes[name])}, {path.name} wants {list(shape)}"
            )
        if dtypes[name].name not in FLOATS:
            raise WeightsError(
                f"{prefix}: tensor {name} is {dtypes[name].name}, required: {FLOATS[0]}"
            )
        needed.append(name)
    for name in needed:
        try:
            values = np.asarray(reader.get_tensor(name), np.float32)
        except Exception as error:
            raise _damaged(f"{prefix}: tensor {name}", error) from None
        # Minimum and maximum propagate NaN and need no array of booleans.
        if not (np.isfinite(values.min()) and np.isfinite(values.max())):
            raise WeightsError(f"{prefix}: tensor {name} holds NaN or infinity")
    if layers > config["num_hidden_layers"]:
        note(
            f"{prefix} holds {layers} layers; {path} takes the first {config['num_hidden_layers']}"
        )


def _damaged(what: str, error: Exception) -> WeightsError:
    return WeightsError(f"{what} is damaged ({_first_line(error)}); copy or download it again")


def _first_line(error: Exception) -> str:
    text = getattr(error, "message", None) or getattr(error, "strerror", None) or str(error)
    return (str(text).strip().splitlines() or [type(error).__name__])[0][:200]
