"""Tokens of texts with their positions in the text; labels that are spans of tokens."""

from __future__ import annotations

import bisect
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from amp_xla.data.labelled import Labelled, Preparation
from amp_xla.data.text.entities import Entity
from amp_xla.data.text.labels import Labels
from amp_xla.data.text.layout import sample
from amp_xla.data.text.readers import Dataset
from amp_xla.data.text.tokenizer import Encoded, Part, Tokenizer
from amp_xla.errors import DataError

CUT, WITHIN = "cut off by --max-length", "not at token boundaries"


class AlignedTexts(NamedTuple):
    """Texts, their tokens or windows, and where each token is in its text.

    ``starts`` and ``ends`` are the tokens' positions in characters; [CLS] and [SEP] have none.
    """

    texts: Sequence[str]
    encoded: Encoded
    starts: List[List[int]]
    ends: List[List[int]]

    @classmethod
    def of(
        cls, texts: Sequence[str], tokenizer: Tokenizer, max_length: int, stride: int = 0
    ) -> AlignedTexts:
        """Tokenize texts; ``Encoded.fitting`` cuts long texts, or makes windows of them."""
        each = [tokenizer.aligned_pieces(text) for text in texts]
        parts = (Part([tokenizer.cls_id], ids, [tokenizer.sep_id]) for ids, _, _ in each)
        encoded = Encoded.fitting(parts, max_length, stride)
        return cls(texts, encoded, [s for _, s, _ in each], [e for _, _, e in each])

    def cut(self) -> int:
        """Return the number of texts that are cut."""
        return int(np.count_nonzero(self.encoded.lost))

    def span(self, text: int, start: int, end: int) -> Tuple[int, int, str]:
        """Return the first and last token of characters ``start`` to ``end``, and a problem.

        A token is given by its index; [CLS] is token 0. The problem is "" if the tokens are exactly
        these characters. If the text has no such tokens, or the last is cut off, the first index
        is greater than the last.
        """
        starts, ends = self.starts[text], self.ends[text]
        first, last = bisect.bisect_right(ends, start), bisect.bisect_left(starts, end) - 1
        if last >= len(starts) - self.encoded.lost[text]:
            return 1, 0, CUT
        exact = first <= last and (starts[first], ends[last]) == (start, end)
        return first + 1, last + 1, "" if exact else WITHIN

    def words(self, text: int, first: int, last: int) -> str:
        """Return the part of a text from token ``first`` to token ``last``; [CLS] is token 0."""
        return self.texts[text][self.starts[text][first - 1] : self.ends[text][last - 1]]

    def entities(self, text: int, spans: Sequence[Any], names: Sequence[str]) -> List[Entity]:
        """Return the entities of text number ``text``, sorted by their positions.

        ``spans`` has (first token, last token, label) of each entity; the label is an index into
        ``names``.
        """
        starts, ends = self.starts[text], self.ends[text]
        return sorted(
            Entity(starts[first - 1], ends[last - 1], names[label]) for first, last, label in spans
        )


# Function (entities or triples of each text, the texts, label -> number, reason -> words of what is
# missed). It returns the targets of each text, and adds to the last argument.
Find = Callable[[List[List[Any]], AlignedTexts, Dict[str, int], Dict[str, List[str]]], List[Any]]


def labelled(
    parts: Tuple[Dataset, Dataset],
    values: Sequence[List[List[Any]]],
    preparation: Preparation,
    share: float,
    unit: str,
    find: Find,
    changes: Callable[[Sequence[List[Any]], int], Sequence[Any]],
) -> Labelled:
    """Return texts with entities or triples, and their batches.

    Args:
      parts: training and dev texts.
      values: for each part, the entities or triples of each text; their ``label`` is a name.
      share: ``train_fraction``; used only in the error about unknown labels.
      unit: ``entities`` or ``triples``, for messages.
      find: function that finds the tokens of entities or triples.
      changes: function (targets of both parts, number of labels) -> two functions, which change
        the training and the dev batches; see ``Preparation.labelled``.
    """
    train, dev = parts
    names, dev_names = ([value.label for text in part for value in text] for part in values)
    if not names:
        raise DataError(f"training data: none of the {len(train):,} texts has {unit}")
    labels = Labels(tuple(sorted(set(names))))
    labels.ids(dev_names, share)
    tokenizer = preparation.vocabulary.tokenizer(train.texts, preparation.bert)
    options = preparation.options
    aligned = [
        AlignedTexts.of(part.texts, tokenizer, options.max_length, options.stride) for part in parts
    ]
    numbers = {name: i for i, name in enumerate(labels.names)}
    targets, warnings = [], labels.warnings(dev_names)
    for part, tokens, kind in zip(values, aligned, ("training", "dev")):
        missed: Dict[str, List[str]] = {}
        targets.append(find(part, tokens, numbers, missed))
        if kind == "training" and sum(map(len, missed.values())) == len(names):
            raise DataError(warning(missed, len(names), f"training {unit}").partition(": ")[2])
        warnings += warning(missed, sum(map(len, part)), f"{kind} {unit}")
    first = next(i for i, some in enumerate(values[0]) if some)
    text, some = train.texts[first], values[0][first]
    shown = {"text": text, unit: ", ".join(value.shown(text) for value in some)}
    return preparation.labelled(
        parts, labels, tokenizer, [part.encoded for part in aligned],
        changes=changes(targets, len(labels)), shown=sample(**shown),
        counts=f"{len(train):,} training and {len(dev):,} dev texts, {len(names):,} and "
        f"{len(dev_names):,} {unit}, {len(labels)} labels",
        warnings=warnings, aligned=aligned[1],
    )  # fmt: skip


def warning(missed: Dict[str, List[str]], total: int, unit: str) -> str:
    """Return a line break and a warning about ``missed`` (reason -> words); "" if it is empty."""
    reasons = "; ".join(f"{len(w):,} {why}, such as {w[0]!r}" for why, w in missed.items())
    return reasons and (
        f"\nwarning: {sum(map(len, missed.values())):,} of {total:,} {unit} cannot be found and "
        f"count as missed: {reasons}"
    )
