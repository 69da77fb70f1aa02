"""Export of models that answer questions."""

from __future__ import annotations

from typing import Any, Optional

from amp_xla.export.graph import Parts, exportable
from amp_xla.export.model import Exportable
from amp_xla.export.text_models import dense, encoder_of
from amp_xla.tasks.reading import model
from amp_xla.tasks.reading.answers import threshold_of
from amp_xla.training.checkpoint import Checkpoint

_LOAD = (
    'from transformers import pipeline; pipeline("question-answering", "{{}}", max_answer_len={}, '
    "max_seq_len={})"
)


def reader(config: Any, checkpoint: Checkpoint) -> Exportable:
    """Return the reader of a run, whose outputs are the scores of first and last tokens."""

    def build(folder: Optional[str]) -> Parts:
        encoder = encoder_of(config, checkpoint, folder)
        built = model.reader(encoder.model, 0.0)
        head = dense("qa_outputs", built.get_layer("Answer"))
        threshold = threshold_of()
        outputs = {"start_logits": built.output[..., 0], "end_logits": built.output[..., 1]}
        weights = [*built.weights, threshold]
        return Parts(encoder, outputs, head, weights, {"threshold": threshold})

    length = config.batches.max_length
    return exportable(
        checkpoint, build, length, kind="ForQuestionAnswering", task="question-answering",
        formula="vectors of all tokens @ qa_outputs.weight.T + qa_outputs.bias",
        load=_LOAD.format(config.max_answer, length),
    )  # fmt: skip
