"""Options of a recipe's batches."""

from __future__ import annotations

import dataclasses
from typing import Any, Tuple

import numpy as np
from typing_extensions import Annotated

from amp_xla.config import MAY_CHANGE, within
from amp_xla.data.batches.buckets import Batches
from amp_xla.data.batches.lengths import choose_lengths
from amp_xla.data.batches.packed import PackedBatches
from amp_xla.data.text.tokenizer import Encoded


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
        self, train: Encoded, train_labels: Any, dev: Encoded, dev_labels: Any, seed: int
    ) -> Tuple[Any, Any]:
        """Return training and dev batches, in the same shapes.

        Args:
          train, dev: token ids, cut to ``max_length``.
          train_labels, dev_labels: int [samples].
          seed: decides the order of the training batches.
        """
        # A dev text may be longer than every training text.
        sizes = np.concatenate([train.lengths, dev.lengths])
        lengths = choose_lengths(sizes, self.shapes, self.max_length)
        batches = Batches(train, train_labels, lengths, self.batch_size, seed)
        return batches, batches.like(dev, dev_labels)


@dataclasses.dataclass(frozen=True)
class PackedBatchOptions(BatchOptions):
    """Rows and tokens of a batch."""

    packed: bool = False
    """put several texts into each row of max_length tokens: one shape, hardly any padding"""

    def make(
        self, train: Encoded, train_labels: Any, dev: Encoded, dev_labels: Any, seed: int
    ) -> Tuple[Any, Any]:
        """Return training and dev batches, as in ``BatchOptions``."""
        if not self.packed:
            return super().make(train, train_labels, dev, dev_labels, seed)
        batches = PackedBatches(train, train_labels, self.max_length, self.batch_size, seed)
        return batches, batches.like(dev, dev_labels)
