"""Options of a recipe's batches, and the choice of bucket lengths."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, List, Sequence, Tuple, Union

import numpy as np
from typing_extensions import Annotated

from amp_xla.config import MAY_CHANGE, within
from amp_xla.data.batches.buckets import Batches, PackedBatches
from amp_xla.data.text.tokenizer import Encoded

MULTIPLE = 8  # bucket lengths are multiples of 8, for tensor cores


@dataclasses.dataclass(frozen=True)
class BatchOptions:
    """Rows and tokens of a batch."""

    batch_size: Annotated[int, within(at_least=1), MAY_CHANGE] = 16
    """samples per micro-batch (with --bert: 32, or 16 for few texts); on a GPU use 32 to 256"""
    max_length: Annotated[int, within(at_least=3)] = 96
    """maximum tokens per sample; longer ones are cut; activation memory grows with its square"""
    shapes: Annotated[int, within(at_least=1)] = 4
    """number of different batch lengths; each is one XLA compilation; 1 = fixed length"""

    def make(
        self, encoded: Sequence[Encoded], labels: Sequence[Any], seed: int, packed: bool
    ) -> Tuple[Any, Any]:
        """Return training and dev batches, in the same shapes.

        Args:
          encoded, labels: of the training texts and of the dev texts, as for ``Batches``.
          seed, packed: as in ``Preparation``.
        """
        (train, dev), (train_labels, dev_labels) = encoded, labels
        batches: Batches
        if packed:
            batches = PackedBatches(train, train_labels, self.max_length, self.batch_size, seed)
        else:
            # A dev text may be longer than every training text.
            sizes = np.concatenate([train.lengths, dev.lengths])
            lengths = choose_lengths(sizes, self.shapes, self.max_length)
            batches = Batches(train, train_labels, lengths, self.batch_size, seed)
        return batches, batches.like(dev, dev_labels)


def choose_lengths(
    lengths: Union[Sequence[int], np.ndarray], max_shapes: int, max_length: int
) -> List[int]:
    """Return at most ``max_shapes`` ascending bucket lengths that minimise the total padding.

    The result is exact, by dynamic programming over the samples' lengths, rounded up to a multiple
    of ``MULTIPLE``.

    Args:
      lengths: number of tokens of each sample, of training and dev texts.
      max_shapes: maximum number of lengths; fewer are returned if more would not save padding.
      max_length: maximum length of a sample. No bucket is longer, even if ``max_length`` is not a
        multiple of 8, because the model may have no position embeddings beyond it.
    """
    rounded = np.minimum(-(-np.asarray(lengths, np.int64) // MULTIPLE) * MULTIPLE, max_length)
    # An optimal length is always the length of a sample, rounded up.
    unique, counts = np.unique(rounded, return_counts=True)
    ends, samples = unique.tolist(), [0, *np.cumsum(counts).tolist()]
    # best[j] is for the samples of the j shortest lengths: the smallest possible number of tokens
    # in their buckets, and the lengths of these buckets. All choices hold the same text, so the
    # fewest tokens mean the least padding.
    best: List[Tuple[float, List[int]]] = [(0, []), *[(math.inf, [])] * len(ends)]
    for _ in range(min(max_shapes, len(ends))):
        best = [best[0]] + [
            min(
                (
                    (tokens + (samples[j] - samples[i]) * ends[j - 1], [*chosen, ends[j - 1]])
                    for i, (tokens, chosen) in enumerate(best[:j])
                ),
                key=lambda choice: choice[0],
            )
            for j in range(1, len(best))
        ]
    return best[-1][1]
