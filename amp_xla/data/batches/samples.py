"""Encoded texts with their labels, gathered into the arrays of a batch."""

from __future__ import annotations

from typing import Optional

import numpy as np

from amp_xla.data.batches.protocol import Batch
from amp_xla.data.text.tokenizer import Encoded
from amp_xla.errors import DataError


class Samples:
    """The samples of a corpus.

    Args:
      encoded: token ids of each sample.
      label_ids: int [samples]; None = no labels.

    Raises:
      DataError: There are no samples, or another number of labels.
    """

    def __init__(self, encoded: Encoded, label_ids: Optional[np.ndarray] = None) -> None:
        if not len(encoded):
            raise DataError("no samples to make batches of")
        if label_ids is not None and len(label_ids) != len(encoded):
            raise DataError(f"{len(encoded):,} samples but {len(label_ids):,} labels")
        self.lengths = encoded.lengths
        self._tokens = encoded.token_ids
        self._labels = None if label_ids is None else np.asarray(label_ids, np.int32)
        # Index -1, an empty place of a batch, reads the last element: a sample of no tokens.
        self._begins = encoded.offsets.astype(np.int64)
        self._sizes = np.append(self.lengths, 0)
        self._first_sizes = np.append(encoded.first_lengths, 0)

    def __len__(self) -> int:
        return len(self.lengths)

    def gather(self, sample_ids: np.ndarray, length: int) -> Batch:
        """Return the arrays of a batch.

        Args:
          sample_ids: int64 [R], or [R, S] for S slots per row, laid end to end; -1 = empty, only
            after the row's samples.
          length: tokens of a row, L.

        Returns:
          ``token_ids``, ``segment_ids``: int32 [R, L], 0 for padding; ``labels`` int32 and
          ``weights`` float32, shaped like ``sample_ids``, 0 if empty. With slots also
          ``position_ids``: int32 [R, L], counted from 0 in each sample; ``slots``: int32 [R, L],
          the slot that a token belongs to, -1 for padding.
        """
        grid = sample_ids.reshape(len(sample_ids), -1)
        sizes = self._sizes[grid]
        ends = sizes.cumsum(1)
        columns = np.arange(length)
        slots = (columns[:, None] >= ends[:, None, :]).sum(2)
        inside = slots < grid.shape[1]
        slots = np.minimum(slots, grid.shape[1] - 1)
        owners = np.take_along_axis(grid, slots, 1)
        positions = columns - np.take_along_axis(ends - sizes, slots, 1)
        token_ids = self._tokens[np.where(inside, self._begins[owners] + positions, 0)]
        segment_ids = inside & (positions >= self._first_sizes[owners])
        batch = {
            "token_ids": np.where(inside, token_ids, 0).astype(np.int32),
            "segment_ids": segment_ids.astype(np.int32),
            "weights": (sample_ids >= 0).astype(np.float32),
            "sample_ids": sample_ids,
        }
        if self._labels is not None:
            labels = np.where(sample_ids >= 0, self._labels[sample_ids], 0)
            batch["labels"] = labels.astype(np.int32)
        if sample_ids.ndim == 2:
            batch["position_ids"] = np.where(inside, positions, 0).astype(np.int32)
            batch["slots"] = np.where(inside, slots, -1).astype(np.int32)
        return batch


def filled(sample_ids: np.ndarray, rows: int) -> np.ndarray:
    """Return ``sample_ids`` with empty rows, -1, appended up to ``rows``."""
    missing = np.full((rows - len(sample_ids), *sample_ids.shape[1:]), -1, np.int64)
    return np.concatenate([sample_ids, missing])
