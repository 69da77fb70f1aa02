"""Texts with entities for a tagger: batches of tokens, with tags or spans as labels."""

from __future__ import annotations

import bisect
from typing import List, NamedTuple, Sequence, Tuple

import numpy as np

from amp_xla.data.batches.protocol import Batch
from amp_xla.data.labelled import Labelled, Preparation
from amp_xla.data.text.entities import Entity, unpack
from amp_xla.data.text.labels import Labels
from amp_xla.data.text.options import TaggedFiles
from amp_xla.data.text.tokenizer import Encoded, Tokenizer
from amp_xla.errors import DataError
from amp_xla.tasks.tagging.spans import Span, is_flat, tags_of


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

    def entities(self, text: int, spans: Sequence[Span], names: Sequence[str]) -> List[Entity]:
        """Return the entities of a text, sorted by their positions.

        Args:
          text: number of the text.
          spans: its entities as tokens.
          names: names of the labels.
        """
        starts, ends = self.starts[text], self.ends[text]
        return sorted(
            Entity(starts[first - 1], ends[last - 1], names[label]) for first, last, label in spans
        )


def token_spans(
    entities: Sequence[Sequence[Entity]], placed: Placed, names: Sequence[str], kind: str
) -> Tuple[List[List[Span]], str]:
    """Return the tokens of each text's entities; a token is whole, even if an entity cuts it.

    Args:
      entities: entities of each text.
      placed: tokens of the texts.
      names: names of the labels.
      kind: "training" or "dev", for the warning.

    Returns:
      The spans of each text; and a line break and a warning if the characters of an entity are not
      those of a span, else an empty string.
    """
    number = {name: i for i, name in enumerate(names)}
    spans: List[List[Span]] = [[] for _ in entities]
    cut = within = 0
    for i, (starts, ends) in enumerate(zip(placed.starts, placed.ends)):
        room = int(placed.encoded.lengths[i]) - 2
        for start, end, name in entities[i]:
            first, last = bisect.bisect_right(ends, start), bisect.bisect_left(starts, end) - 1
            if last >= room:
                cut += 1
                continue
            if first <= last:
                spans[i].append(Span(first + 1, last + 1, number[name]))
            if first > last or (starts[first], ends[last]) != (start, end):
                within += 1
    if not cut + within:
        return spans, ""
    return spans, (
        f"\nwarning: {cut + within:,} of {sum(map(len, entities)):,} {kind} entities cannot be "
        f"found and count as missed: {cut:,} are cut off by --max-length, {within:,} begin or end "
        "where no token does"
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
    entities = [[unpack(label) for label in part.labels or []] for part in parts]
    names, dev_names = ([e.label for text in part for e in text] for part in entities)
    if not names:
        raise DataError(f"training data: none of the {len(train):,} texts has an entity")
    labels = Labels(tuple(sorted(set(names))))
    labels.ids(dev_names, files.train_fraction)
    tokenizer = how.vocabulary.tokenizer(train.texts, how.bert)
    placed = [Placed.of(part.texts, tokenizer, how.options.max_length) for part in parts]
    spans, warnings = zip(
        *(
            token_spans(gold, tokens, labels.names, kind)
            for gold, tokens, kind in zip(entities, placed, ("training", "dev"))
        )
    )
    return how.labelled(
        parts, labels, tokenizer, [part.encoded for part in placed],
        changes=[
            lambda batch, *_, spans=part: with_labels(batch, spans, head, len(labels))
            for part in spans
        ],
        counts=f"{len(train)} training and {len(dev)} dev texts, {len(names):,} and "
        f"{len(dev_names):,} entities, {len(labels)} labels",
        warnings=labels.warnings(dev_names) + "".join(warnings), placed=placed[1],
    )  # fmt: skip
