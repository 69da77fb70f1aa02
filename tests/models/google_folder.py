"""A tiny BERT in Google's format, to be damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

import numpy as np

from amp_xla.models.weights import google

CONFIG: Dict[str, Any] = {
    "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 32, "type_vocab_size": 2,
    "hidden_act": "gelu",
}  # fmt: skip
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno"]


def write(
    folder: Path,
    replaced: Optional[Dict[str, Any]] = None,
    vocabulary: Sequence[str] = tuple(VOCABULARY),
) -> Path:
    """``replaced``: tensor name -> other values, None = left out."""
    folder.mkdir()
    shapes = {**CONFIG, "vocab_size": len(vocabulary)}
    (folder / google.CONFIG).write_text(json.dumps(shapes))
    (folder / "vocab.txt").write_text("".join(token + "\n" for token in vocabulary))
    random = np.random.RandomState(0)
    values: Dict[str, Any] = {
        name: random.normal(0, 0.02, shape).astype(np.float32)
        for name, shape in google.tensors(shapes, language_model=True)
    }
    values.update(replaced or {})
    kept = {name: value for name, value in values.items() if value is not None}
    google.write_tensors(str(folder / "bert_model.ckpt"), kept)
    return folder
