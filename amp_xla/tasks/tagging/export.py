"""Export of taggers."""

from __future__ import annotations

from typing import Any, Optional

from amp_xla.data.text.labels import Labels
from amp_xla.export.graph import Parts, exportable
from amp_xla.export.model import LINEAR, Exportable
from amp_xla.export.text_models import dense, encoder_of, pointer
from amp_xla.models.encoders import POINTER_SIZE
from amp_xla.tasks.tagging import model
from amp_xla.tasks.tagging.spans import is_flat
from amp_xla.training.checkpoint import Checkpoint


def tagger(config: Any, checkpoint: Checkpoint) -> Exportable:
    """Return the tagger of a run: logits of BIO tags, or scores of spans."""
    head = config.head
    names, flat = Labels.load(checkpoint.file("labels.json")).names, is_flat(head)

    def build(folder: Optional[str]) -> Parts:
        encoder = encoder_of(config, checkpoint, folder)
        rate = config.update.learning_rate
        built = model.tagger(encoder.model, head, len(names), 0.0, rate)
        output, weights = built.model.output, built.model.weights
        if flat:
            tags = dense("classifier", built.model.get_layer("Tags"))
            transitions = {"transitions": built.transitions} if head == "crf" else {}
            return Parts(encoder, {"logits": output}, tags, weights, transitions)
        kernels = pointer(built.model.get_layer("Spans"))
        return Parts(encoder, {"scores": output}, kernels, weights)

    tags = [f"{start}-{name}" for name in names for start in "BI"]
    labels, kind = (("O", *tags), "ForTokenClassification") if flat else (names, None)
    formula = "vectors of all tokens" + LINEAR
    if not flat:
        layer = model.POINTERS[head]
        formula = f"bert4keras' {layer}({len(names)}, {POINTER_SIZE}) of the vectors"
    return exportable(
        checkpoint, build, config.batches.max_length, labels, kind=kind, formula=formula,
        task="token-classification",
    )  # fmt: skip
