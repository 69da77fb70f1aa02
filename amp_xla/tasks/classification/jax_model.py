"""The classifier in JAX: precision, architecture, weights, predictions and export."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Dict, List, Tuple

import amp_xla.jax  # noqa: F401  # first: its error is one line if there is no JAX

# isort: split
import jax
import jax.numpy as jnp
import numpy as np

from amp_xla.data.text.labels import Labels
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import SettingsError, UnsupportedError
from amp_xla.export.model import MEAN_POOLING, Exportable, Run, read_head
from amp_xla.jax import bert, processes, step
from amp_xla.jax.engine import restored
from amp_xla.jax.weights import load, named, pretrained
from amp_xla.precision.policy import get_policy
from amp_xla.process.progress import note
from amp_xla.settings import Settings, default_loss_scale
from amp_xla.training.answers import Answers, label_answers
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.evaluation import in_order


def precision(config: Any) -> Tuple[Any, Any]:
    """Return the policy and the loss scale."""
    here = {"gpu": "p=f32,c=f16,o=f32", "tpu": "p=f32,c=bf16,o=f32"}
    try:
        policy = get_policy(config.policy or here.get(jax.default_backend(), "float32"))
    except ValueError as error:
        raise SettingsError(f"--policy {config.policy}: {error}") from error
    scale = Settings(loss_scale=config.loss_scale).loss_scale
    return policy, scale or default_loss_scale(policy.names[1])


def architecture(config: Any, vocab_size: int) -> Dict[str, Any]:
    """Return the content of ``bert_config.json``, from ``--bert`` or from the options."""
    folder, length = config.encoder.bert, config.batches.max_length
    if folder is None:
        shape: Dict[str, Any] = config.encoder.config(vocab_size, length)
        return shape
    stored = pretrained(folder)
    stored.check_sizes(vocab_size, length)
    return stored.config


def new_model(config: Any, shape: Dict[str, Any], classes: int, weights: bool) -> Any:
    """Return the classifier, with the weights of ``--bert`` if ``weights`` is true."""
    model = bert.new_classifier(shape, classes, config.seed)
    if weights and config.encoder.bert is not None:
        model = dataclasses.replace(model, bert=load(model.bert, config.encoder.bert))
    return model


def dropout(config: Any, shape: Dict[str, Any], dtype: Any) -> Tuple[float, float, bool]:
    """Return dropout rates of activations and attention weights, and whether to use cuDNN.

    Raises:
      UnsupportedError: ``--attention fused`` does not work with this GPU, dtype or head size.
    """
    if config.attention == "plain":
        return (*config.encoder.rates, False)
    size = shape["hidden_size"] // shape["num_attention_heads"]
    if not bert.has_fused_attention(dtype, size):
        raise UnsupportedError(
            f"--attention fused needs compute capability 8.0 or higher, half precision and heads "
            f"of size 8, 16, ... or 128; found: {jax.local_devices()[0].device_kind}, "
            f"{dtype.__name__}, heads of size {size}; otherwise use --attention plain"
        )
    note("attention by cuDNN, which has no dropout in JAX: no attention weights are dropped")
    return config.encoder.dropout, 0.0, True


def predict(config: Any, checkpoint: Checkpoint, lines: List[str]) -> Answers:
    """Return the probability of each label for each line."""
    labels = Labels.load(checkpoint.file("labels.json")).names
    shape = pretrained(str(checkpoint.path)).config
    policy, _ = precision(config)
    like = bert.new_classifier(shape, len(labels), config.seed)
    model = restored(checkpoint, policy.cast_to_param(like), ".model")
    infer = step.inference(policy)

    def probabilities(batch: Any) -> Any:
        texts = processes.share({name: batch[name] for name in ("token_ids", "segment_ids")})
        return np.asarray(jax.nn.softmax(infer(model, texts)))

    length, devices = config.batches.max_length, jax.device_count()
    encoded = Tokenizer.of_folder(str(checkpoint.path)).encode_lines(lines, length)
    size = -(-config.batches.batch_size // devices) * devices
    return label_answers(lines, labels, np.stack(in_order(encoded, length, size, probabilities)))


def exportable(config: Any, checkpoint: Checkpoint) -> Exportable:
    """Return the classifier in a checkpoint, to export it."""
    labels = Labels.load(checkpoint.file("labels.json")).names
    shape = pretrained(str(checkpoint.path)).config

    def reload(folder: Path) -> Run:
        sizes, head = pretrained(str(folder)).config, read_head(folder)
        model = bert.new_classifier(sizes, len(labels), config.seed)
        dense = bert.Dense(jnp.asarray(head["classifier.weight"].T), head["classifier.bias"])
        loaded = load(model.bert, str(folder))
        return _run(dataclasses.replace(model, bert=loaded, logits=dense))

    like = precision(config)[0].cast_to_param(bert.new_classifier(shape, len(labels), config.seed))
    model = get_policy("float32").cast_to_param(restored(checkpoint, like, ".model"))
    tensors = {name: np.asarray(value) for name, value in named(model.bert).items()}
    head = {
        "classifier.weight": np.asarray(model.logits.kernel).T,
        "classifier.bias": np.asarray(model.logits.bias),
    }
    return Exportable(
        shape, tensors, _run(model), reload, Tokenizer.of_folder(str(checkpoint.path)), head,
        None, MEAN_POOLING, labels, config.batches.max_length, task="text-classification",
    )  # fmt: skip


def _run(model: Any) -> Run:
    def run(token_ids: np.ndarray, segment_ids: np.ndarray) -> np.ndarray:
        logits = jax.jit(lambda m, *ids: m(*ids))(model, token_ids, segment_ids)
        return np.asarray(jax.nn.softmax(logits))

    return run
