"""Encoders of every family, to be exported."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.export import graph
from amp_xla.export.model import Exportable
from amp_xla.models import encoders

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(5, 30))]


def encoder(family: Path, folder: Path) -> Exportable:
    """The encoder in a folder of Hugging Face's; what it answers are its vectors."""
    shutil.copytree(str(family), str(folder))
    tokenizer = Tokenizer(VOCABULARY)
    for name, content in tokenizer.assets.items():
        (folder / name).write_bytes(content)

    def build(bert: Optional[str]) -> graph.Parts:
        transformer = encoders.transformer(bert or str(folder))
        return graph.Parts(transformer, {"probabilities": transformer.model.output}, {})

    checkpoint: Any = SimpleNamespace(path=folder, file=lambda name: str(folder / name))
    return graph.exportable(checkpoint, build, 20, formula="the vectors themselves")
