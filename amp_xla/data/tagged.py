"""Texts with entities for a tagger: batches of tokens, with tags or spans as labels."""

from __future__ import annotations

import bisect
import dataclasses
from typing import Any, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np

from amp_xla.data.batches.options import BatchOptions
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.batches.token_dropout import TokenDropout
from amp_xla.data.labelled import Labelled
from amp_xla.data.spans import Span, is_flat, tags_of
from amp_xla.data.text.entities import unpack
from amp_xla.data.text.labels import Labels
from amp_xla.data.text.options import TaggedFiles, VocabularyOptions
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
        sizes = np.array([len(row) for row in rows], np.int64)
        encoded = Encoded(
            np.concatenate([np.array(row, np.int32) for row in rows]),
            np.concatenate([[0], np.cumsum(sizes)]), sizes.astype(np.int32),
        )  # fmt: skip
        return cls(encoded, starts, ends)

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


class TaggedBatches:
    """``batches`` with labels: BIO tags, or a matrix [start, end] per label.

    Args:
      batches: ``Batches`` without labels.
      wanted: spans of the samples.
      head: decides labels: int32 [R, L] and weights [R, L] of a flat head; else bool [R, labels,
        L, L] and weights [R].
      labels: number of labels.
    """

    def __init__(self, batches: Any, wanted: Wanted, head: str, labels: int) -> None:
        self.wanted, self._flat = wanted, is_flat(head)
        self._batches, self._spans, self._labels = batches, wanted.all_spans, labels

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of ``epoch`` from ``start`` on."""
        for batch in self._batches.epoch(epoch, start):
            yield self._flat_labels(batch) if self._flat else self._squares(batch)

    def _flat_labels(self, batch: Batch) -> Batch:
        labels = np.zeros(batch["token_ids"].shape, np.int32)
        weights = np.zeros(labels.shape, np.float32)
        for row, sample in enumerate(batch["sample_ids"]):
            if sample >= 0:
                length = self._batches.samples.lengths[sample]
                labels[row, :length] = tags_of(self._spans[sample], length)
                weights[row, :length] = 1.0
        return {**batch, "labels": labels, "weights": weights}

    def _squares(self, batch: Batch) -> Batch:
        rows, length = batch["token_ids"].shape
        labels = np.zeros((rows, self._labels, length, length), np.bool_)
        for row, sample in enumerate(batch["sample_ids"]):
            if sample >= 0:
                for first, last, label in self._spans[sample]:
                    labels[row, label, first, last] = True
        return {**batch, "labels": labels}


def read(
    files: TaggedFiles,
    vocabulary: VocabularyOptions,
    options: BatchOptions,
    bert: Any,
    token_dropout: float,
    seed: int,
    head: str,
) -> Labelled:
    """Read the files, or the built-in corpus if there are none.

    Args:
      head: head of the model; a flat one allows no nested entities.
      others: see ``labelled.read``.

    Raises:
      DataError: A file cannot be read, or cannot be trained on.
    """
    train, dev = files.read(seed, nested=not is_flat(head))
    names, dev_names = ([e.label for x in part.labels or [] for e in unpack(x)]
                        for part in (train, dev))  # fmt: skip
    if not names:
        raise DataError(f"training data: {len(train):,} texts without any entity")
    labels = Labels(tuple(sorted(set(names))))
    labels.ids(dev_names)
    tokenizer = vocabulary.tokenizer(train.texts, bert)
    placed, dev_placed = (
        Placed.of(part.texts, tokenizer, options.max_length) for part in (train, dev)
    )
    wanted, dev_wanted = Wanted.of(train, placed, labels), Wanted.of(dev, dev_placed, labels)
    plain, plain_dev = options.make(placed.encoded, None, dev_placed.encoded, None, seed)
    batches = TokenDropout(
        TaggedBatches(plain, wanted, head, len(labels)), token_dropout, tokenizer, seed
    )
    dev_batches = TaggedBatches(plain_dev, dev_wanted, head, len(labels))
    description = (
        f"{len(train)} training and {len(dev)} dev texts, {len(names):,} and {len(dev_names):,} "
        f"entities, {len(labels)} labels, {tokenizer.vocab_size} tokens; {batches.describe()}"
        f"{train.warnings()}{dev.warnings()}{tokenizer.warnings(placed.encoded)}"
        f"{labels.warnings(dev_names)}{wanted.warnings('training')}{dev_wanted.warnings('dev')}"
    )
    return Labelled(train, dev, labels, tokenizer, batches, dev_batches, description)
