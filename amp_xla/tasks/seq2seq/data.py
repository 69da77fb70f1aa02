"""Sources and targets for a UniLM: a row is the source, then the target as segment 1."""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar, List, Optional, Sequence, Tuple

import numpy as np
from typing_extensions import Annotated, Literal

from amp_xla.config import MAY_CHANGE
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.labelled import Labelled, Preparation
from amp_xla.data.text import corpora, readers
from amp_xla.data.text.layout import TARGETS, Known, Layout
from amp_xla.data.text.options import Files
from amp_xla.data.text.readers import Dataset
from amp_xla.data.text.tokenizer import Encoded, Tokenizer


@dataclasses.dataclass(frozen=True)
class TargetFiles(Files):
    """Training texts and dev texts with a target each."""

    known: ClassVar[Known] = TARGETS

    train: Annotated[Optional[str], MAY_CHANGE] = None
    """training file: source<TAB>target, TSV or CSV with a header, or JSON lines, also .gz; none =
    built-in"""
    text_field: Optional[str] = None
    """name of the source's column or JSON field; none = guess"""
    pair_field: Optional[str] = None
    """name of the target's column or JSON field; none = guess"""
    header: Annotated[Optional[Literal["yes", "no"]], MAY_CHANGE] = None
    """is the first line of a TSV or CSV file a header? none = detect it, and stop if unclear"""

    def built_in(self) -> Tuple[Dataset, Dataset]:
        return corpora.names()

    def dataset(self, path: str, run: Optional[Layout] = None) -> Dataset:
        """Return the texts of a file, with their targets as ``pairs``."""
        return readers.read(
            path, self.text_field, self.pair_field, None, self.on_bad_line, ("text", "pair"),
            known=self.known, header=self.header, run=run,
        )  # fmt: skip


def framed(tokenizer: Tokenizer, texts: Sequence[str], length: int) -> List[List[int]]:
    """Return ``[CLS] source [SEP]`` of each text, cut to ``length`` tokens."""
    pieces = (tokenizer.pieces(text)[: length - 2] for text in texts)
    return [[tokenizer.cls_id, *ids, tokenizer.sep_id] for ids in pieces]


def predictions(batch: Batch, *_: int, count: int) -> Batch:
    """Add to a batch the arrays for a ``LanguageModel``, with K = ``count`` predictions per row.

    ``positions``: int32 [R, K], the positions before the tokens to predict; ``labels``: int32 [R,
    K], the tokens to predict; ``weights``: float32 [R, K], 1 for tokens of targets, else 0.
    """
    segments = batch["segment_ids"]
    places = segments.argmax(1)[:, None] + np.arange(count)
    inside = np.minimum(places, segments.shape[1] - 1)
    weights = np.take_along_axis(segments, inside, 1) * (places == inside)
    return {
        **batch,
        "positions": np.maximum(inside - 1, 0).astype(np.int32),
        "labels": np.take_along_axis(batch["token_ids"], inside, 1) * weights,
        "weights": weights.astype(np.float32),
    }


def encode(
    data: Dataset, tokenizer: Tokenizer, max_source: int, max_target: int, kind: str
) -> Tuple[Encoded, int, str]:
    """Encode sources and targets, which are the ``texts`` and ``pairs`` of ``data``.

    Args:
      max_source: maximum tokens of a source, including [CLS] and [SEP].
      max_target: maximum tokens of a target, including [SEP].
      kind: "training" or "dev", for the warning.

    Returns:
      The rows; the number of tokens of the longest target, including its [SEP]; and a warning
      that begins with a line break, or "" if no text was cut.
    """
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    source_room, target_room = max_source - 2, max_target - 1
    sources, targets = (
        list(map(tokenizer.pieces, side)) for side in (data.texts, data.pairs or [])
    )
    rows = [
        [cls, *source[:source_room], sep, *target[:target_room], sep]
        for source, target in zip(sources, targets)
    ]
    cut = sum(len(source) > source_room for source in sources)
    cut_targets = sum(len(target) > target_room for target in targets)
    warning = ""
    if cut or cut_targets:
        warning = (
            f"\nwarning: {cut:,} sources and {cut_targets:,} targets of {len(rows):,} {kind} texts "
            "are cut (--max-length, --max-target)"
        )
    encoded = Encoded.of(rows, [min(len(source), source_room) + 2 for source in sources])
    return encoded, int((encoded.lengths - encoded.first_lengths).max()), warning


def read(files: TargetFiles, preparation: Preparation, max_target: int) -> Labelled:
    """Read the files, or the built-in corpus if there are none."""
    parts = train, dev = files.read(preparation.seed)
    tokenizer = preparation.vocabulary.tokenizer(train.all_texts, preparation.bert)
    encoded, longest, cut = zip(
        *(
            encode(part, tokenizer, preparation.options.max_length - max_target, max_target, kind)
            for part, kind in zip(parts, ("training", "dev"))
        )
    )
    change = functools.partial(predictions, count=max(longest))
    return preparation.labelled(
        parts, None, tokenizer, encoded, changes=[change, change],
        counts=f"{len(train):,} training and {len(dev):,} dev texts", warnings="".join(cut),
    )  # fmt: skip
