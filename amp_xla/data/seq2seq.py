"""Texts with targets for a UniLM: a row is the source and the target, the second segment."""

from __future__ import annotations

import dataclasses
from typing import Any, Iterator, List, Optional, Sequence

import numpy as np
from typing_extensions import Annotated

from amp_xla.config import within
from amp_xla.data.batches.buckets import Batches
from amp_xla.data.batches.options import BatchOptions
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.batches.token_dropout import TokenDropout
from amp_xla.data.labelled import Labelled
from amp_xla.data.text.options import TargetFiles, VocabularyOptions
from amp_xla.data.text.readers import Dataset
from amp_xla.data.text.tokenizer import Encoded, Tokenizer
from amp_xla.errors import SettingsError


@dataclasses.dataclass(frozen=True)
class TargetBatchOptions(BatchOptions):
    """Rows and tokens of a batch."""

    max_target: Annotated[int, within(at_least=2)] = 16
    """most tokens of a target, its end counted; a source has the rest of --max-length"""

    def __post_init__(self) -> None:
        if self.max_target > self.max_length - 3:
            raise SettingsError(
                f"--max-target {self.max_target}: --max-length {self.max_length} allows at most "
                f"{self.max_length - 3}, since 3 tokens or more are the source's"
            )

    @property
    def max_source(self) -> int:
        """Most tokens of a source, [CLS] and [SEP] counted."""
        return self.max_length - self.max_target


def framed(tokenizer: Tokenizer, texts: Sequence[str], most: int) -> List[List[int]]:
    """Return ``[CLS] source [SEP]`` of each text, cut to ``most`` tokens."""
    pieces = (tokenizer.pieces(text)[: most - 2] for text in texts)
    return [[tokenizer.cls_id, *ids, tokenizer.sep_id] for ids in pieces]


class TargetBatches:
    """``batches`` of sources and targets, with what a ``LanguageModel`` predicts.

    Args:
      batches: ``Batches`` without labels.
      most: places of a row for predictions, K: the tokens of the longest target.

    Its batches also have ``positions``, from which the next token is predicted, and ``labels``,
    int32 [R, K]; ``weights``, float32 [R, K], are 1 for tokens of targets.
    """

    def __init__(self, batches: Any, most: int) -> None:
        self._batches, self._places = batches, np.arange(most)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of ``epoch`` from ``start`` on."""
        for batch in self._batches.epoch(epoch, start):
            segments = batch["segment_ids"]
            places = segments.argmax(1)[:, None] + self._places
            inside = np.minimum(places, segments.shape[1] - 1)
            weights = np.take_along_axis(segments, inside, 1) * (places == inside)
            yield {
                **batch,
                "positions": np.maximum(inside - 1, 0).astype(np.int32),
                "labels": np.take_along_axis(batch["token_ids"], inside, 1) * weights,
                "weights": weights.astype(np.float32),
            }


@dataclasses.dataclass(frozen=True)
class Targets:
    """Token ids of sources, [CLS] and [SEP] counted, and of targets with the [SEP] that ends them.

    Attributes:
      cut_sources, cut_targets: how many are longer than their room.
    """

    sources: List[List[int]]
    targets: List[List[int]]
    cut_sources: int
    cut_targets: int

    @classmethod
    def of(cls, data: Dataset, tokenizer: Tokenizer, options: TargetBatchOptions) -> Targets:
        """Return the tokens of a data set."""
        room = options.max_target - 1
        pieces = [tokenizer.pieces(text) for text in data.pairs or []]
        rows = framed(tokenizer, data.texts, options.max_source + 1)
        cut = [len(row) > options.max_source for row in rows]
        return cls(
            [[*row[:-2], row[-1]] if long else row for row, long in zip(rows, cut)],
            [[*ids[:room], tokenizer.sep_id] for ids in pieces],
            sum(cut), sum(len(ids) > room for ids in pieces),
        )  # fmt: skip

    @property
    def encoded(self) -> Encoded:
        """The rows of a model."""
        first = np.array([len(row) for row in self.sources], np.int32)
        sizes = first + [len(row) for row in self.targets]
        rows = [token for pair in zip(self.sources, self.targets) for row in pair for token in row]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return Encoded(np.array(rows, np.int32), offsets, first)

    @property
    def longest(self) -> int:
        """Tokens of the longest target."""
        return max(map(len, self.targets))

    def warnings(self, kind: str) -> str:
        """Return a warning line, after a line break, if texts are cut."""
        if not self.cut_sources and not self.cut_targets:
            return ""
        return (
            f"\nwarning: {self.cut_sources:,} sources and {self.cut_targets:,} targets of "
            f"{len(self.sources):,} {kind} texts are cut (--max-length, --max-target)"
        )


def read(
    files: TargetFiles,
    vocabulary: VocabularyOptions,
    options: TargetBatchOptions,
    bert: Optional[str],
    token_dropout: float,
    seed: int,
) -> Labelled:
    """Read the files, or the built-in corpus if there are none; arguments as ``labelled.read``'s.

    Raises:
      DataError: A file cannot be read, or cannot be trained on.
    """
    train, dev = files.read(seed)
    tokenizer = vocabulary.tokenizer([*train.texts, *(train.pairs or [])], bert)
    rows, dev_rows = (Targets.of(part, tokenizer, options) for part in (train, dev))
    encoded, most = rows.encoded, max(rows.longest, dev_rows.longest)
    plain, plain_dev = options.make(encoded, None, dev_rows.encoded, None, seed, Batches)
    batches = TokenDropout(TargetBatches(plain, most), token_dropout, tokenizer, seed)
    dev_batches = TargetBatches(plain_dev, most)
    description = (
        f"{len(train):,} training and {len(dev):,} dev texts, {tokenizer.vocab_size} tokens; "
        f"{batches.describe()}{train.warnings()}{dev.warnings()}{tokenizer.warnings(encoded)}"
        f"{rows.warnings('training')}{dev_rows.warnings('dev')}"
    )
    return Labelled(train, dev, None, tokenizer, batches, dev_batches, description)
