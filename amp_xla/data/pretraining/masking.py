"""Random masks: a function of (seed, epoch, sequence) alone.

Units, which are words or tokens, are masked with the same probability ``rate``, by systematic
sampling over the units sorted by length. So the number of masked tokens per sequence varies little,
and a fixed number of positions, slightly above the mean, is enough.
"""

from __future__ import annotations

import dataclasses
from typing import Iterator, NamedTuple, Sequence, Tuple

import numpy as np

from amp_xla.data.batches.order import uniform
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.pretraining.words import Cutter
from amp_xla.data.text.tokenizer import Tokenizer

# Longer "words", such as hashes and paths, are masked in parts of this many tokens.
LONGEST_WORD = 8
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

_ROWS = 16  # texts per batch of ``MaskedTexts``

_SHUFFLE, _OFFSET, _ACTION, _TOKEN = range(4)  # streams of random numbers


class Masked(NamedTuple):
    """B masked sequences of L tokens with K predicted positions each.

    token_ids: int32 [B, L], with masks; positions: int32 [B, K], ascending, then 0; labels:
    int32 [B, K], the original tokens; weights: float32 [B, K], 1 for labels, 0 for padding.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    weights: np.ndarray


def special_ids(tokenizer: Tokenizer) -> Tuple[int, ...]:
    """Return the ids that are never masked."""
    return tuple(i for i, token in enumerate(tokenizer.tokens) if token in SPECIAL)


@dataclasses.dataclass(frozen=True)
class Masking:
    """Random masks of sequences.

    Args:
      mask_id: id of [MASK].
      special_ids: ids that are never masked and never replace a token.
      vocab_size: number of ids; each that is not special may replace a token.
      length: L, tokens per sequence.
      rate: share of the tokens to predict, 0 to 0.5.
      unit: ``word`` or ``token``.
      seed: seed of the run.
    """

    mask_id: int
    special_ids: Tuple[int, ...]
    vocab_size: int
    length: int
    rate: float = 0.15
    unit: str = "word"
    seed: int = 1

    @classmethod
    def of(cls, tokenizer: Tokenizer, length: int, rate: float, unit: str, seed: int) -> Masking:
        """Return the masking for a tokenizer; ``DataError`` if its vocabulary has no [MASK]."""
        special = special_ids(tokenizer)
        return cls(tokenizer.mask_id, special, tokenizer.vocab_size, length, rate, unit, seed)

    @property
    def positions(self) -> int:
        """K, predicted positions per sequence: at most 4/3 of the mean number of masked tokens.

        K is a multiple of 8 if possible. At the usual rate of 15%, at most 20% of the positions go
        through the vocabulary projection.
        """
        mean = self.length * self.rate
        limit = int(mean * 4 / 3)
        aligned = limit // 8 * 8
        return max(1, aligned if aligned >= 1.2 * mean else limit)

    def __call__(
        self, token_ids: np.ndarray, starts: np.ndarray, epoch: int, samples: np.ndarray
    ) -> Masked:
        """Mask B sequences.

        Args:
          token_ids: int [B, L].
          starts: bool [B, L], True at word starts.
          epoch: number of the epoch.
          samples: int64 [B], numbers of the sequences.
        """
        token_ids = np.asarray(token_ids, np.int32)
        maskable = ~np.isin(token_ids, self.special_ids)
        units = self._units(starts, maskable)
        chosen = self._choose(units, maskable, epoch, samples)
        chosen = _fit(chosen, units, self.positions)
        action = self._uniform(epoch, samples, _ACTION)
        masked = np.where(chosen & (action < 0.8), self.mask_id, token_ids)
        masked = np.where(chosen & (action >= 0.9), self._random(epoch, samples), masked)
        # A stable sort puts chosen columns first, in order.
        order = np.argsort(~chosen, axis=1, kind="stable")[:, : self.positions].astype(np.int32)
        weights = np.take_along_axis(chosen, order, 1).astype(np.float32)
        labels = np.take_along_axis(token_ids, order, 1)
        keep = weights > 0
        return Masked(
            masked.astype(np.int32), order * keep, (labels * keep).astype(np.int32), weights
        )

    def _units(self, starts: np.ndarray, maskable: np.ndarray) -> np.ndarray:
        """Return int64 [B, L]: the number of each token's unit, from 0 in every row."""
        starts = starts | ~maskable if self.unit == "word" else np.ones_like(maskable)
        starts[:, 1:] |= ~maskable[:, :-1]
        starts[:, 0] = True
        columns = np.arange(starts.shape[1])
        begin = np.maximum.accumulate(np.where(starts, columns, 0), axis=1)
        return np.cumsum(starts | ((columns - begin) % LONGEST_WORD == 0), 1) - 1

    def _choose(
        self, units: np.ndarray, maskable: np.ndarray, epoch: int, samples: np.ndarray
    ) -> np.ndarray:
        rows, length = units.shape
        flat = (units + np.arange(rows)[:, None] * length).reshape(-1)
        sizes = np.bincount(flat, maskable.reshape(-1), rows * length).reshape(rows, length)
        key = np.where(sizes > 0, sizes + self._uniform(epoch, samples, _SHUFFLE), np.inf)
        order = np.argsort(key, 1)
        offset = self._uniform(epoch, samples, _OFFSET, 1)
        steps = np.floor(np.arange(length + 1) * self.rate + offset)
        drawn = np.zeros((rows, length), bool)
        np.put_along_axis(drawn, order, np.diff(steps, axis=1) > 0, 1)
        return np.take_along_axis(drawn, units, 1) & maskable

    def _random(self, epoch: int, samples: np.ndarray) -> np.ndarray:
        """Return int64 [B, L]: ordinary tokens, uniformly distributed."""
        allowed = np.setdiff1d(np.arange(self.vocab_size), self.special_ids)
        return allowed[(self._uniform(epoch, samples, _TOKEN) * len(allowed)).astype(np.int64)]

    def _uniform(self, epoch: int, samples: np.ndarray, stream: int, count: int = 0) -> np.ndarray:
        return uniform(samples, count or self.length, self.seed, epoch, stream)


def _fit(chosen: np.ndarray, units: np.ndarray, room: int) -> np.ndarray:
    """Drop units from the end of rows with more than ``room`` chosen tokens."""
    over = np.flatnonzero(chosen.sum(1) > room)
    if not over.size:
        return chosen
    chosen = chosen.copy()
    for row in over:
        beyond = np.cumsum(chosen[row]) > room
        lost = units[row][chosen[row] & beyond]
        chosen[row] &= ~np.isin(units[row], lost)
    return chosen


class MaskedTexts:
    """Batches of texts, one per row, cut to ``length`` tokens, with masked whole words.

    Args:
      texts: the texts.
      tokenizer, length, rate, seed: as for ``Masking.of``.

    Attributes:
      tokens: number of masked tokens.
    """

    def __init__(
        self, texts: Sequence[str], tokenizer: Tokenizer, length: int, rate: float, seed: int
    ) -> None:
        cut = Cutter(tokenizer, "pieces")
        ids = np.zeros((len(texts), length), np.int32)
        for row, text in zip(ids, texts):
            tokens = [tokenizer.cls_id, *cut(text)[: length - 2], tokenizer.sep_id]
            row[: len(tokens)] = tokens
        masking = Masking.of(tokenizer, length, rate, "word", seed)
        masked = masking(np.abs(ids), ids >= 0, 0, np.arange(len(texts)))
        self.tokens = int(masked.weights.sum())
        self._arrays = {**masked._asdict(), "segment_ids": np.zeros_like(ids)}

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """Yield the batches from ``start`` on, the same in every epoch."""
        for begin in range(start * _ROWS, len(self._arrays["token_ids"]), _ROWS):
            yield {name: array[begin : begin + _ROWS] for name, array in self._arrays.items()}
