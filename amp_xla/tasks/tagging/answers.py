"""Entities: evaluation, prediction, scores. Only functions import TensorFlow."""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from amp_xla.data.alignment import AlignedTexts
from amp_xla.data.batches import windows
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.labelled import Labelled
from amp_xla.data.text.entities import Entity, unpack
from amp_xla.tasks.tagging import spans
from amp_xla.training import extraction
from amp_xla.training.answers import Answers
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.evaluation import Infer
from amp_xla.training.sample_scores import Samples, Scorer


def evaluate(infer: Infer, data: Labelled, head: str) -> Dict[str, float]:
    """Return entity F1, precision, recall and mean loss; see ``extraction.evaluate``."""
    return extraction.evaluate(infer, data, unpack, functools.partial(_decode, head))


def _decode(
    head: str, batch: Batch, out: Mapping[str, Any], aligned: AlignedTexts, names: Sequence[str]
) -> List[List[Entity]]:
    """Return the entities of each row, found in outputs of ``Tagger.outputs``."""
    rows, flat = spans.decode(head, out, batch["token_ids"]), spans.is_flat(head)
    sizes, (texts, begins) = (batch["token_ids"] != 0).sum(1) - 2, windows.owners(batch)
    found: List[List[Entity]] = [[] for _ in rows]
    for first, of_text in windows.rows_of_texts(batch):
        each, places = [rows[row] for row in of_text], begins[of_text].tolist()
        joined = spans.joined(each, places, int(sizes[first]), flat)
        found[first] = aligned.entities(int(texts[first]), joined, names)
    return found


def predict(config: Any, checkpoint: Checkpoint, texts: Sequence[str]) -> Answers:
    """Return a column ``start:end label words`` per entity of each text."""
    from amp_xla.tasks.tagging import model

    def build(encoder: Any, labels: int) -> Tuple[Any, Dict[str, Any]]:
        tagger = model.tagger(config, encoder, labels, 0.0)
        return tagger.model, tagger.outputs(tagger.model.output)

    return extraction.predict(
        config, checkpoint, texts, "entities", build, functools.partial(_decode, config.head),
        lambda entities: {"entities": entities},
    )  # fmt: skip


def scored(checkpoint: Checkpoint, samples: Samples) -> Scorer:
    """Check the labels of samples; return the function that scores the answers to them."""
    return extraction.ExtractionScores.scorer(
        checkpoint, samples, unpack, lambda answer: [Entity(*each) for each in answer["entities"]]
    )
