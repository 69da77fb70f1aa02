"""Export of the JAX recipe's classifiers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Dict

import jax
import jax.numpy as jnp
import numpy as np

from amp_xla.data.text.labels import Labels
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.export.model import MEAN_POOLING, Exportable, Run, read_head
from amp_xla.jax import bert, weights
from amp_xla.jax.engine import restored
from amp_xla.training.checkpoint import Checkpoint


def classifier(config: Any, checkpoint: Checkpoint) -> Exportable:
    """Return the classifier of a run."""
    labels = Labels.load(checkpoint.file("labels.json")).names
    shape = weights.pretrained(str(checkpoint.path)).config

    def untrained(sizes: Dict[str, Any]) -> Any:
        return bert.new_classifier(bert.Shape.of(sizes), len(labels), config.seed)

    def reload(folder: Path) -> Run:
        model, head = untrained(weights.pretrained(str(folder)).config), read_head(folder)
        dense = bert.Dense(jnp.asarray(head["classifier.weight"].T), head["classifier.bias"])
        loaded = weights.load(model.bert, str(folder))
        return _run(dataclasses.replace(model, bert=loaded, logits=dense))

    model = restored(checkpoint, untrained(shape), ".model")
    tensors = {name: np.asarray(value) for name, value in weights.named(model.bert).items()}
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
