"""Hugging Face folders: ``config.json``, ``model.safetensors`` and the tokenizer's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Collection, Dict, List

import safetensors.numpy

from amp_xla.data.text.tokenizer import MASK
from amp_xla.data.text.vocabulary import SETTINGS
from amp_xla.errors import AmpXlaError
from amp_xla.export.model import NAMES, Exportable, describe_head, stored, write_head
from amp_xla.models.weights import hugging_face
from amp_xla.process import json_files

_KEYS = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings", "type_vocab_size", "hidden_act", "layer_norm_eps",
    "embedding_size", "hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range",
)  # fmt: skip
_ONLY_BERT4KERAS = (
    "attention_head_size", "attention_key_size", "residual_attention_scores",
    "hierarchical_position", "shared_segment_embeddings",
)  # fmt: skip


def write(model: Exportable, folder: Path, dtype: str) -> None:
    """Write configuration, weights and tokenizer into a new folder.

    Raises:
      AmpXlaError: transformers has no such model.
    """
    if model.kind is None and not model.formula:
        raise AmpXlaError(
            "--format hf: transformers' BERT cannot mask attention as --objective lm and unilm do; "
            "allowed: savedmodel, onnx, google"
        )
    config = _config(model, dtype)
    family = model.config["model_type"]
    folder.mkdir()
    prefix = f"{config['model_type']}." if model.kind else ""
    spelled = hugging_face.spelling([prefix + hugging_face.EMBEDDINGS], family, "the model")
    tensors = {
        spelled(name): value.T if name.endswith("/kernel") else value
        for name, value in model.tensors.items()
    }
    if model.kind:
        tensors.update(model.head)
    else:
        write_head(model, folder, dtype)
    path = str(folder / "model.safetensors")
    safetensors.numpy.save_file(stored(tensors, dtype), path, {"format": "pt"})
    (folder / "config.json").write_bytes(json_files.encode({**config, **model.settings}))
    model.write_files(folder)
    settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    settings.update(tokenizer_class="BertTokenizer", model_max_length=model.length)
    if MASK not in model.tokenizer.tokens:
        settings["mask_token"] = None  # otherwise transformers adds a token without a vector
    (folder / SETTINGS).write_bytes(json_files.encode(settings))
    for name, content in model.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def describe(model: Exportable, folder: Path) -> List[str]:
    """Return lines that explain how to load the folder in transformers."""
    kind, family = model.kind or "", model.config["model_type"]
    load = f'AutoModel{kind}.from_pretrained("{{0}}"), AutoTokenizer.from_pretrained("{{0}}")'
    if family == "roformer_v2" and "auto_map" not in model.settings:
        # The package roformer: transformers has other layers.
        load = "from roformer import {0}; {0}.from_pretrained".format(f"RoFormer{kind or 'Model'}")
        load += '("{}")'
    elif model.load:
        load = model.load
    lines = [f"load: {load.format(folder)}"]
    return [*lines, describe_head(model, folder)] if model.kind is None else lines


def kind_of(tensors: Collection[str]) -> str:
    """Return the suffix of transformers' class, e.g. ``ForMaskedLM``, for heads in ``tensors``."""
    masked = "cls/predictions/output_bias" in tensors
    next_sentence = "cls/seq_relationship/output_bias" in tensors
    if "discriminator_predictions/dense/bias" in tensors or (masked and next_sentence):
        return "ForPreTraining"
    return "ForMaskedLM" if masked else "ForNextSentencePrediction" if next_sentence else ""


def _config(model: Exportable, dtype: str) -> Dict[str, Any]:
    config, family = model.config, model.config["model_type"]
    hidden = config["hidden_size"]
    default_values = (None, False, hidden // config["num_attention_heads"])
    unsupported = [key for key in _ONLY_BERT4KERAS if config.get(key) not in default_values]
    if family == "bert" and config.get("embedding_size", hidden) != hidden:
        unsupported.append("embedding_size")
    if unsupported:
        key = unsupported[0]
        raise AmpXlaError(
            f"--format hf: the model has {key} {config[key]}, which transformers' {family} does "
            "not support; allowed: savedmodel, onnx, google"
        )
    values: Dict[str, Any] = {key: config[key] for key in _KEYS if key in config}
    if family == "roformer_v2":
        family = "roformer"
        values.update(norm_type="rms_norm", use_bias=False)
    start = "RoFormer" if family == "roformer" else family.capitalize()
    values.update(
        model_type=family, architectures=[start + (model.kind or "Model")], pad_token_id=0,
        torch_dtype=NAMES[dtype],
        hidden_act=config["hidden_act"].replace("gelu_tanh", "gelu_new"),
        # transformers limits the positions of RoFormer and NEZHA; this project does not.
        max_position_embeddings=max(model.length, config["max_position_embeddings"]),
    )  # fmt: skip
    if model.labels:
        values["id2label"] = {str(i): name for i, name in enumerate(model.labels)}
        values["label2id"] = {name: i for i, name in enumerate(model.labels)}
    return values
