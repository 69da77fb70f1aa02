"""Texts with entities for a tagger: batches of tokens, with tags or spans as labels."""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np

from amp_xla.data.alignment import AlignedTexts, labelled
from amp_xla.data.batches import windows
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.labelled import Labelled, Preparation
from amp_xla.data.text.entities import Entity, unpack
from amp_xla.data.text.options import TaggedFiles
from amp_xla.tasks.tagging.spans import Span, inside, is_flat, tags_of


def token_spans(
    entities: List[List[Entity]], aligned: AlignedTexts, names: Dict[str, int], missed: Any
) -> List[List[Span]]:
    """Return entities as token spans; add words of inexact and cut ones to ``missed[reason]``."""
    spans: List[List[Span]] = [[] for _ in entities]
    for i, each in enumerate(entities):
        for start, end, name in each:
            first, last, reason = aligned.span(i, start, end)
            if first <= last:
                spans[i].append(Span(first, last, names[name]))
            if reason:
                missed.setdefault(reason, []).append(aligned.texts[i][start:end])
    return spans


def with_labels(batch: Batch, spans: List[List[Span]], head: str, labels: int) -> Batch:
    """Add labels to a batch: BIO tags, or a matrix [start, end] per label.

    ``spans`` has the entities of each sample. For softmax and crf, labels are int32 [R, L],
    weights [R, L]; for other heads, labels are bool [R, labels, L, L] and weights [R].
    """
    rows, length = batch["token_ids"].shape
    flat = is_flat(head)
    answers = np.zeros((rows, length), np.int32)
    if not flat:
        answers = np.zeros((rows, labels, length, length), np.bool_)
    tokens = batch["token_ids"] != 0
    texts, begins = windows.owners(batch)
    for row, (text, begin, size) in enumerate(zip(texts, begins, tokens.sum(1) - 2)):
        found = inside(spans[text], begin, size, flat) if text >= 0 else []
        if flat:
            answers[row] = tags_of(found, length)
        else:
            for first, last, label in found:
                answers[row, label, first, last] = True
    weights = (tokens if flat else texts >= 0).astype(np.float32)
    return {**batch, "labels": answers, "weights": weights}


def read(files: TaggedFiles, preparation: Preparation, head: str) -> Labelled:
    """Read the files, or the built-in corpus if there are none.

    The heads softmax and crf allow no nested entities in training.
    """
    parts = files.read(preparation.seed, nested=not is_flat(head))
    entities = [[unpack(label) for label in part.labels or []] for part in parts]
    return labelled(
        parts, entities, preparation, files.train_fraction, "entities", token_spans,
        lambda targets, labels: [
            lambda batch, *_, spans=part: with_labels(batch, spans, head, labels)
            for part in targets
        ],
    )  # fmt: skip
