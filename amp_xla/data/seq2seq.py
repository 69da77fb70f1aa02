"""Sources and targets for a UniLM: a row is the source, then the target as segment 1."""

from __future__ import annotations

import dataclasses
import functools
from typing import List, Sequence, Tuple

import numpy as np
from typing_extensions import Annotated

from amp_xla.config import within
from amp_xla.data.batches.options import BatchOptions
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.labelled import Labelled, Preparation
from amp_xla.data.text.options import TargetFiles
from amp_xla.data.text.readers import Dataset
from amp_xla.data.text.tokenizer import Encoded, Tokenizer
from amp_xla.errors import SettingsError


@dataclasses.dataclass(frozen=True)
class TargetBatchOptions(BatchOptions):
    """Rows and tokens of a batch."""

    max_target: Annotated[int, within(at_least=2)] = 16
    """maximum tokens per target, including its [SEP]; the source has the rest of --max-length"""

    def __post_init__(self) -> None:
        if self.max_target > self.max_length - 3:
            raise SettingsError(
                f"--max-target {self.max_target}: --max-length {self.max_length} allows at most "
                f"{self.max_length - 3}, because the source needs at least 3 tokens"
            )

    @property
    def max_source(self) -> int:
        """Maximum number of tokens in a source, including [CLS] and [SEP]."""
        return self.max_length - self.max_target


def framed(tokenizer: Tokenizer, texts: Sequence[str], length: int) -> List[List[int]]:
    """Return ``[CLS] source [SEP]`` of each text, cut to ``length`` tokens."""
    pieces = (tokenizer.pieces(text)[: length - 2] for text in texts)
    return [[tokenizer.cls_id, *ids, tokenizer.sep_id] for ids in pieces]


def predictions(batch: Batch, *_: int, count: int) -> Batch:
    """Add the positions and labels that a ``LanguageModel`` predicts to a batch.

    Args:
      batch: batch of sources and targets.
      count: K, predicted positions per row: the number of tokens of the longest target.

    Returns:
      The batch, and ``positions``: int32 [R, K], the positions before the tokens to predict;
      ``labels``: int32 [R, K], the tokens to predict; ``weights``: float32 [R, K], 1 for tokens of
      targets, 0 for padding.
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
    data: Dataset, tokenizer: Tokenizer, options: TargetBatchOptions, kind: str
) -> Tuple[Encoded, int, str]:
    """Encode sources and targets.

    Args:
      data: sources, and targets as ``pairs``.
      tokenizer, options: tokenizer and batch options of the run.
      kind: "training" or "dev", for the warning.

    Returns:
      The rows; the number of tokens of the longest target, including its [SEP]; and a line break
      and a warning if texts were cut, else an empty string.
    """
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    source_room, target_room = options.max_source - 2, options.max_target - 1
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


def read(files: TargetFiles, how: Preparation) -> Labelled:
    """Read the files, or the built-in corpus if there are none, as ``labelled.read`` does."""
    parts = train, dev = files.read(how.seed)
    tokenizer = how.vocabulary.tokenizer(train.all_texts, how.bert)
    encoded, longest, cut = zip(
        *(
            encode(part, tokenizer, how.options, kind)
            for part, kind in zip(parts, ("training", "dev"))
        )
    )
    change = functools.partial(predictions, count=max(longest))
    return how.labelled(
        parts, None, tokenizer, encoded, changes=[change, change],
        counts=f"{len(train):,} training and {len(dev):,} dev texts", warnings="".join(cut),
    )  # fmt: skip
