"""Texts with entities for a tagger: batches of tokens, with tags or spans as labels."""

from __future__ import annotations

import bisect
import dataclasses
from typing import List, NamedTuple, Sequence, Tuple

import numpy as np

from amp_xla.data.batches.protocol import Batch
from amp_xla.data.labelled import Labelled, Preparation
from amp_xla.data.spans import Span, is_flat, tags_of
from amp_xla.data.text.entities import unpack
from amp_xla.data.text.labels import Labels
from amp_xla.data.text.options import TaggedFiles
from amp_xla.data.text.readers import Dataset
from amp_xla.data.text.tokenizer import Encoded, Tokenizer
from amp_xla.errors import DataError


class Placed(NamedTuple):
    """The tokens of texts, and where each token is in its text.

    Attributes:
      encoded: the tokens, with [CLS] and [SEP].
      starts, ends: position in characters of each token of each text, without [CLS] and [SEP].
    """

    encoded: Encoded
    starts: List[List[int]]
    ends: List[List[int]]

    @classmethod
    def of(cls, texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> Placed:
        """Return the tokens of texts, at most ``max_length`` of each."""
        rows, starts, ends = [], [], []
        for text in texts:
            ids, begin, end = tokenizer.placed_pieces(text)
            room = max_length - 2
            rows.append([tokenizer.cls_id, *ids[:room], tokenizer.sep_id])
            starts.append(begin)
            ends.append(end)
        return cls(Encoded.of(rows), starts, ends)

    def characters(self, text: int, span: Span) -> Tuple[int, int]:
        """Return where a span starts and ends in a text, in characters."""
        return self.starts[text][span.first - 1], self.ends[text][span.last - 1]


@dataclasses.dataclass(frozen=True)
class GoldSpans:
    """The true entities of texts as spans of tokens.

    Attributes:
      spans: the entities of each text that consist of whole tokens.
      all_spans: ``spans``, and entities that begin or end within a token, extended to whole tokens.
      missed: number of entities per label that are not in ``spans``, int64 [labels].
      cut: number of entities cut off by ``max_length``.
      within: number of entities that begin or end within a token.
    """

    spans: List[List[Span]]
    all_spans: List[List[Span]]
    missed: np.ndarray
    cut: int
    within: int

    @classmethod
    def of(cls, data: Dataset, placed: Placed, labels: Labels) -> GoldSpans:
        """Return the spans of a data set's entities."""
        number = {name: i for i, name in enumerate(labels.names)}
        missed = np.zeros(len(labels), np.int64)
        spans: List[List[Span]] = []
        all_spans: List[List[Span]] = []
        cut = within = 0
        for i, label in enumerate(data.labels or []):
            starts, ends = placed.starts[i], placed.ends[i]
            room = int(placed.encoded.lengths[i]) - 2
            spans.append([])
            all_spans.append([])
            for start, end, name in unpack(label):
                first = bisect.bisect_right(ends, start)
                last = bisect.bisect_left(starts, end) - 1
                span = Span(first + 1, last + 1, number[name])
                if last >= room:
                    cut += 1
                elif first <= last:
                    all_spans[i].append(span)
                if last < room and first <= last and starts[first] >= start and ends[last] <= end:
                    spans[i].append(span)
                else:
                    missed[span.label] += 1
                    within += last < room
        return cls(spans, all_spans, missed, cut, within)

    def warnings(self, kind: str) -> str:
        """Return a line break and a warning if entities match no span of tokens, else nothing."""
        if not self.missed.any():
            return ""
        total = sum(map(len, self.spans)) + int(self.missed.sum())
        return (
            f"\nwarning: {int(self.missed.sum()):,} of {total:,} {kind} entities cannot be found "
            f"and count as missed: {self.cut:,} are cut off by --max-length, {self.within:,} begin "
            "or end within a token"
        )


def with_labels(batch: Batch, spans: List[List[Span]], head: str, labels: int) -> Batch:
    """Add labels to a batch: BIO tags, or a matrix [start, end] per label.

    Args:
      batch: batch without labels.
      spans: spans of each sample.
      head: name of the model's head. For softmax and crf, labels are int32 [R, L], weights [R, L];
        for other heads, labels are bool [R, labels, L, L] and weights [R].
      labels: number of labels.
    """
    rows, length = batch["token_ids"].shape
    flat = is_flat(head)
    answers = np.zeros((rows, length), np.int32)
    if not flat:
        answers = np.zeros((rows, labels, length, length), np.bool_)
    for row, sample in enumerate(batch["sample_ids"]):
        if sample >= 0 and flat:
            answers[row] = tags_of(spans[sample], length)
        elif sample >= 0:
            for first, last, label in spans[sample]:
                answers[row, label, first, last] = True
    weights = {"weights": (batch["token_ids"] != 0).astype(np.float32)} if flat else {}
    return {**batch, "labels": answers, **weights}


def read(files: TaggedFiles, how: Preparation, head: str) -> Labelled:
    """Read the files, or the built-in corpus if there are none.

    Args:
      files, how: as for ``labelled.read``.
      head: name of the model's head; softmax and crf allow no nested entities in training.
    """
    parts = train, dev = files.read(how.seed, nested=not is_flat(head))
    names, dev_names = (
        [entity.label for label in part.labels or [] for entity in unpack(label)] for part in parts
    )
    if not names:
        raise DataError(f"training data: none of the {len(train):,} texts has an entity")
    labels = Labels(tuple(sorted(set(names))))
    labels.ids(dev_names)
    tokenizer = how.vocabulary.tokenizer(train.texts, how.bert)
    placed = [Placed.of(part.texts, tokenizer, how.options.max_length) for part in parts]
    gold, dev_gold = (GoldSpans.of(*pair, labels) for pair in zip(parts, placed))
    return how.labelled(
        parts, labels, tokenizer, [part.encoded for part in placed],
        changes=[
            lambda batch, *_, spans=part.all_spans: with_labels(batch, spans, head, len(labels))
            for part in (gold, dev_gold)
        ],
        counts=f"{len(train)} training and {len(dev)} dev texts, {len(names):,} and "
        f"{len(dev_names):,} entities, {len(labels)} labels",
        warnings=f"{labels.warnings(dev_names)}{gold.warnings('training')}"
        f"{dev_gold.warnings('dev')}",
        gold=dev_gold,
    )  # fmt: skip
