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
    """Tokens of texts, and their positions in the texts.

    Attributes:
      encoded: the tokens, [CLS] first and [SEP] last.
      starts, ends: of each text, the characters of its tokens without [CLS] and [SEP].
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
        """Return start and end of a span in the characters of a text."""
        return self.starts[text][span.first - 1], self.ends[text][span.last - 1]


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The entities of texts as spans of tokens.

    Attributes:
      spans: spans of each text that consist of whole tokens.
      all_spans: also those that begin or end within a token, with the whole token.
      missed: number of entities per label that match no span of tokens, int64 [labels].
      cut, within: how many of them are cut off by ``max_length``, and begin or end within a token.
    """

    spans: List[List[Span]]
    all_spans: List[List[Span]]
    missed: np.ndarray
    cut: int
    within: int

    @classmethod
    def of(cls, data: Dataset, placed: Placed, labels: Labels) -> Wanted:
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
        """Return a warning line, after a line break, if an entity matches no span of tokens."""
        if not self.missed.any():
            return ""
        total = sum(map(len, self.spans)) + int(self.missed.sum())
        return (
            f"\nwarning: {int(self.missed.sum()):,} of {total:,} {kind} entities cannot be found "
            f"and count as missed: {self.cut:,} are cut off by --max-length, {self.within:,} begin "
            "or end within a token"
        )


def with_labels(batch: Batch, spans: List[List[Span]], head: str, labels: int) -> Batch:
    """Return a batch with labels: BIO tags, or a matrix [start, end] per label.

    Args:
      batch: batch without labels.
      spans: spans of each sample.
      head: a flat head has labels int32 [R, L] and weights [R, L]; the others have labels bool
        [R, labels, L, L] and weights [R].
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
      head: head of the model; a flat one allows no nested entities in training.

    Raises:
      DataError: A file cannot be read, or cannot be trained on.
    """
    parts = train, dev = files.read(how.seed, nested=not is_flat(head))
    names, dev_names = (
        [entity.label for label in part.labels or [] for entity in unpack(label)] for part in parts
    )
    if not names:
        raise DataError(f"training data: {len(train):,} texts without any entity")
    labels = Labels(tuple(sorted(set(names))))
    labels.ids(dev_names)
    tokenizer = how.tokenizer(train.texts)
    placed = [Placed.of(part.texts, tokenizer, how.options.max_length) for part in parts]
    wanted, dev_wanted = (Wanted.of(*pair, labels) for pair in zip(parts, placed))
    return how.labelled(
        parts, labels, tokenizer, [part.encoded for part in placed],
        changes=[
            lambda batch, *_, spans=part.all_spans: with_labels(batch, spans, head, len(labels))
            for part in (wanted, dev_wanted)
        ],
        counts=f"{len(train)} training and {len(dev)} dev texts, {len(names):,} and "
        f"{len(dev_names):,} entities, {len(labels)} labels",
        warnings=f"{labels.warnings(dev_names)}{wanted.warnings('training')}"
        f"{dev_wanted.warnings('dev')}",
        wanted=dev_wanted,
    )  # fmt: skip
