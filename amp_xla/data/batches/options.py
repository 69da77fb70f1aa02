"""Options of a recipe's batches, and the bucket lengths that waste least."""

from __future__ import annotations

import dataclasses
from typing import Any, List, Sequence, Tuple, Type, Union

import numpy as np
from typing_extensions import Annotated

from amp_xla.config import MAY_CHANGE, within
from amp_xla.data.batches.buckets import Batches
from amp_xla.data.batches.packed import PackedBatches
from amp_xla.data.text.tokenizer import Encoded

MULTIPLE = 8  # of bucket lengths, for tensor cores


@dataclasses.dataclass(frozen=True)
class BatchOptions:
    """Rows and tokens of a batch."""

    batch_size: Annotated[int, within(at_least=1), MAY_CHANGE] = 16
    """samples per micro-batch (with --bert: 32, or 16 for few texts); on a GPU 32 to 256"""
    max_length: Annotated[int, within(at_least=3)] = 96
    """tokens per sample, longer samples are cut; activation memory grows with its square"""
    shapes: Annotated[int, within(at_least=1)] = 4
    """number of different batch lengths; each is one XLA compilation; 1 = fixed length"""

    def times(self, accumulate: int) -> BatchOptions:
        """Return options of batches that are cut into ``accumulate`` micro-batches."""
        return dataclasses.replace(self, batch_size=self.batch_size * accumulate)

    def make(
        self,
        train: Encoded,
        train_labels: Any,
        dev: Encoded,
        dev_labels: Any,
        seed: int,
        kind: Type[Batches] = Batches,
    ) -> Tuple[Any, Any]:
        """Return training and dev batches, in the same shapes.

        Args:
          train, dev: token ids, cut to ``max_length``.
          train_labels, dev_labels: int or float [samples]; None = no labels.
          seed: decides the order of the training batches.
          kind: class of the batches, which fits ``train`` and ``dev``.
        """
        # A dev text may be longer than every training text.
        sizes = np.concatenate([train.lengths, dev.lengths])
        lengths = choose_lengths(sizes, self.shapes, self.max_length)
        batches = kind(train, train_labels, lengths, self.batch_size, seed)
        return batches, batches.like(dev, dev_labels)


@dataclasses.dataclass(frozen=True)
class PackedBatchOptions(BatchOptions):
    """Rows and tokens of a batch."""

    packed: bool = False
    """put several texts into each row of max_length tokens: one shape, hardly any padding"""

    def make(
        self,
        train: Encoded,
        train_labels: Any,
        dev: Encoded,
        dev_labels: Any,
        seed: int,
        kind: Type[Batches] = Batches,
    ) -> Tuple[Any, Any]:
        """Return training and dev batches, as in ``BatchOptions``."""
        if not self.packed:
            return super().make(train, train_labels, dev, dev_labels, seed, kind)
        batches = PackedBatches(train, train_labels, self.max_length, self.batch_size, seed)
        return batches, batches.like(dev, dev_labels)


def choose_lengths(
    lengths: Union[Sequence[int], np.ndarray], max_shapes: int, max_length: int
) -> List[int]:
    """Return at most ``max_shapes`` bucket lengths with the fewest padded tokens in all.

    Exact, by dynamic programming over the histogram of ``lengths``, rounded up to ``MULTIPLE``:
    O(h * h * max_shapes) for h different rounded lengths.

    Args:
      lengths: tokens of each sample, of every corpus that uses the buckets.
      max_shapes: maximum number of lengths; fewer are returned if more do not pay off.
      max_length: longest sample after cutting. The longest bucket never exceeds it, even if it
        is not a multiple: a model may have no position beyond.

    Returns:
      Ascending bucket lengths; the last holds the longest sample.
    """
    rounded = np.minimum(-(-np.asarray(lengths, np.int64) // MULTIPLE) * MULTIPLE, max_length)
    # An optimal length is always the length of a sample, rounded up.
    ends, counts = np.unique(rounded, return_counts=True)
    samples = np.concatenate([[0], np.cumsum(counts)])
    # best[j]: fewest bucket tokens for the first j candidates with the shapes used so far. All
    # choices hold the same text, so the fewest bucket tokens have the least padding.
    best = np.concatenate([[0], samples[1:] * ends]).astype(np.float64)
    choices: List[np.ndarray] = []
    for _ in range(1, min(max_shapes, len(ends))):
        # cost[i, j]: the best for the first i, and candidates i to j in one more bucket. With
        # i = 0 it uses fewer buckets.
        cost = best[:-1, None] + (samples[None, 1:] - samples[:-1, None]) * ends[None, :]
        cost[np.tril_indices(len(ends), -1)] = np.inf
        choices.append(cost.argmin(0))
        best = np.concatenate([[0], cost.min(0)])
    chosen, end = [], len(ends)
    for choice in reversed(choices):
        chosen.append(int(ends[end - 1]))
        end = int(choice[end - 1])
        if end == 0:
            return chosen[::-1]
    chosen.append(int(ends[end - 1]))
    return chosen[::-1]
