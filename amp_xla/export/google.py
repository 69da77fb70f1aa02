"""Google's format, as bert4keras loads it: ``bert_config.json`` and ``bert_model.ckpt``."""

from __future__ import annotations

from pathlib import Path
from typing import List

from amp_xla import backend
from amp_xla.export.model import Exportable, describe_head, stored, write_head
from amp_xla.models import encoders
from amp_xla.models.language_model import CHECKPOINT
from amp_xla.models.weights import google
from amp_xla.process import json_files


def write(model: Exportable, folder: Path, dtype: str) -> None:
    """Write configuration, checkpoint, head and tokenizer into a new folder."""
    folder.mkdir()
    google.write_tensors(str(folder / CHECKPOINT), stored(model.tensors, dtype))
    (folder / "bert_config.json").write_bytes(json_files.encode(model.config))
    write_head(model, folder, dtype)
    model.write_files(folder)


def describe(model: Exportable, folder: Path) -> List[str]:
    """Return lines that explain how to load the folder in bert4keras."""
    words = "cls/predictions/output_bias" in model.tensors  # a head of masked words
    outputs = ", with_mlm=True" if words else ""
    if "bert/pooler/dense/kernel" in model.tensors:  # bert4keras' ELECTRA has no pooler
        outputs = f", with_pool={encoders.pooler_activation(model.config)!r}"
    epsilon, mask = model.config["layer_norm_eps"], model.config.get("application")
    outputs = outputs if mask is None else f', application="{mask}"'
    load = (
        "load: import amp_xla.setup; from bert4keras.backend import K; "
        "from bert4keras.models import build_transformer_model; "
        f'K.set_epsilon({epsilon}); build_transformer_model("{folder}/bert_config.json", '
        f'"{folder}/{CHECKPOINT}", "{model.config["model_type"]}"{outputs})'
    )
    load += " (its output is that of bert/pooler/dense)" * ("with_pool" in outputs)
    fixed = words or model.config["model_type"] in ("bert", "albert", "electra")
    # Older versions fix it for the other families, too.
    if (fixed or backend.bert4keras_version() < backend.SAFE_MASKS) and epsilon != 1e-12:
        load += f" (answers differ: bert4keras fixes layer_norm_eps to 1e-12, here {epsilon})"
    return [load, describe_head(model, folder)] if model.formula else [load]
