"""Export of models that find triples."""

from __future__ import annotations

from typing import Any, Dict, Optional

from amp_xla.data.text.labels import Labels
from amp_xla.export.graph import Parts, exportable
from amp_xla.export.model import Exportable
from amp_xla.export.text_models import encoder_of, pointer
from amp_xla.models.encoders import POINTER_SIZE
from amp_xla.tasks.relations import model
from amp_xla.training.checkpoint import Checkpoint


def linker(config: Any, checkpoint: Checkpoint) -> Exportable:
    """Return the linker of a run, whose outputs are the scores of all planes."""
    names = Labels.load(checkpoint.file("labels.json")).names

    def build(folder: Optional[str]) -> Parts:
        encoder = encoder_of(config, checkpoint, folder)
        built = model.linker(encoder.model, len(names), 0.0)
        kernels: Dict[str, Any] = {}
        for name in model.POINTERS:
            kernels.update(pointer(built.get_layer(name), f"{name.lower()}."))
        return Parts(encoder, {"scores": built.output}, kernels, built.weights)

    formula = f"bert4keras' EfficientGlobalPointer(heads, {POINTER_SIZE}) of the vectors: "
    formula += "entities (subject, object); heads and tails (RoPE=False), a head per predicate"
    return exportable(checkpoint, build, config.batches.max_length, names, formula=formula)
