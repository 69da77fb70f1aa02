"""Pretrained weights for JAX, from Hugging Face folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import jax
import jax.numpy as jnp

from amp_xla.errors import DataError
from amp_xla.jax.bert import Bert, Norm
from amp_xla.models.weights import Tensors
from amp_xla.models.weights.pretrained import Pretrained
from amp_xla.process.checkout import shortest


def pretrained(folder: str) -> Pretrained:
    """Return the ``Pretrained`` of a folder, if it is a BERT that the JAX recipe supports.

    Raises:
      DataError: see ``Pretrained``; or the model is not a BERT with GELU.
    """
    opened = Pretrained(folder, _refused)
    config = opened.config
    if config["hidden_act"] != "gelu" or config["model_type"] != "bert":
        raise DataError(
            f"{opened.path}: the JAX recipe supports only model_type bert with hidden_act gelu; "
            f"found: {config['model_type']} with {config['hidden_act']}"
        )
    return opened


def load(model: Bert, folder: str) -> Bert:
    """Return ``model`` with the weights in ``folder``.

    Raises:
      DataError: a file or tensor is missing, damaged or has another shape.
    """
    initial = named(model)
    arrays = pretrained(folder).take({name: leaf.shape for name, leaf in initial.items()})
    values = {id(leaf): jnp.asarray(arrays[name]) for name, leaf in initial.items()}
    return jax.tree_util.tree_map(lambda leaf: values[id(leaf)], model)


def named(model: Bert) -> Dict[str, Any]:
    """Return the model's arrays: variable name in Google's checkpoints -> array."""
    embeddings = "bert/embeddings"
    arrays = {
        f"{embeddings}/word_embeddings": model.tokens,
        f"{embeddings}/token_type_embeddings": model.segments,
        f"{embeddings}/position_embeddings": model.positions,
    }
    parts: Dict[str, Any] = {embeddings: model.norm}
    for number, layer in enumerate(model.layers):
        place = f"bert/encoder/layer_{number}"
        parts.update({
            f"{place}/attention/self/query": layer.query,
            f"{place}/attention/self/key": layer.key,
            f"{place}/attention/self/value": layer.value,
            f"{place}/attention/output/dense": layer.output,
            f"{place}/attention/output": layer.attention_norm,
            f"{place}/intermediate/dense": layer.up,
            f"{place}/output/dense": layer.down,
            f"{place}/output": layer.norm,
        })  # fmt: skip
    for name, part in parts.items():
        if isinstance(part, Norm):
            arrays[f"{name}/LayerNorm/gamma"] = part.gamma
            arrays[f"{name}/LayerNorm/beta"] = part.beta
        else:
            arrays[f"{name}/kernel"], arrays[f"{name}/bias"] = part.kernel, part.bias
    return arrays


def _refused(prefix: Path) -> Tensors:
    """Raise DataError: TensorFlow's checkpoints are not read without TensorFlow."""
    raise DataError(
        f"{prefix}.index is a TensorFlow checkpoint; the JAX recipe reads model.safetensors or "
        f"pytorch_model.bin. Convert it: amp-xla convert {shortest(prefix.parent)} NEW-FOLDER "
        f"--format hf"
    )
