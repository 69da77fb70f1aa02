"""Masks drawn while reading: a function of (seed, pass, sequence) by counter, never of history.

What is masked are units: words, or spans of words. Their order is random and every unit has the
same chance ``rate``, drawn by systematic sampling over the units sorted by length: each is taken
with probability ``rate`` exactly, as if by a coin of its own, while the number of masked tokens of
a sequence hardly moves. So a fixed count of positions, a little above the mean, is enough room.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Tuple

import numpy as np

from amp_xla.data.batches.order import uniform
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import DataError

UNITS = ("word", "span", "token")
# SpanBERT (arXiv 1907.10529): geometric lengths, p = 0.2, at most 10 words.
SPAN_P, SPAN_WORDS = 0.2, 10
# A "word" of more pieces is a hash or a path: it is masked in stretches of this many.
LONGEST_WORD = 8
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

_SHUFFLE, _OFFSET, _ACTION, _TOKEN, _SPAN, _SPAN_OFFSET = range(6)


class Masked(NamedTuple):
    """What a model of masked language sees of B sequences of L tokens, K positions each.

    token_ids: int32 [B, L], with masks; positions: int32 [B, K], ascending, then 0; labels:
    int32 [B, K], what stood there; weights: float32 [B, K], 1 where there is a label, else 0.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    weights: np.ndarray


def special_ids(tokenizer: Tokenizer) -> Tuple[int, ...]:
    """Of the tokens that are never masked."""
    return tuple(i for i, token in enumerate(tokenizer.tokens) if token in SPECIAL)


def positions_for(length: int, rate: float) -> int:
    """K: the mean number of masked tokens and up to a third more; a multiple of 8 if it can be.

    At the usual rate of 15% that is at most 20% of ``length``, all that the vocabulary projection
    has to run on.
    """
    mean = length * rate
    most, aligned = int(mean * 4 / 3), int(mean * 4 / 3) // 8 * 8
    return max(1, aligned if aligned >= 1.2 * mean else most)


@dataclasses.dataclass(frozen=True)
class Masking:
    """How sequences are masked.

    Args:
      mask_id: id of [MASK].
      special_ids: ids that are never masked, nor put in another's place.
      vocab_size: random replacements are drawn from the rest of these ids.
      length: L, tokens a sequence.
      rate: share of the tokens to predict, 0 to 0.5.
      unit: ``word``, ``span`` (of words) or ``token``.
      seed: of the run.
    """

    mask_id: int
    special_ids: Tuple[int, ...]
    vocab_size: int
    length: int
    rate: float = 0.15
    unit: str = "word"
    seed: int = 1

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise DataError(f"mask unit {self.unit!r} is not known; allowed: {', '.join(UNITS)}")
        if not 0.0 < self.rate <= 0.5:
            raise DataError(f"mask rate {self.rate} is not in (0, 0.5]; 0.15 is BERT's")
        if self.vocab_size <= len(self.special_ids):
            raise DataError(f"a vocabulary of {self.vocab_size} has nothing but special tokens")

    @classmethod
    def of(cls, tokenizer: Tokenizer, length: int, rate: float, unit: str, seed: int) -> Masking:
        """For a tokenizer; ``DataError`` if its vocabulary has no [MASK]."""
        special = special_ids(tokenizer)
        return cls(tokenizer.mask_id, special, tokenizer.vocab_size, length, rate, unit, seed)

    @property
    def positions(self) -> int:
        """K, the same for every sequence."""
        return positions_for(self.length, self.rate)

    def __call__(
        self, token_ids: np.ndarray, starts: np.ndarray, epoch: int, samples: np.ndarray
    ) -> Masked:
        """Masks B sequences.

        Args:
          token_ids: int [B, L].
          starts: bool [B, L], True where a word begins.
          epoch: pass over the data.
          samples: int64 [B], which sequence of the data each row is.
        """
        token_ids = np.asarray(token_ids, np.int32)
        maskable = ~np.isin(token_ids, self.special_ids)
        units = self._units(starts, maskable, epoch, samples)
        chosen = self._choose(units, maskable, epoch, samples)
        chosen = _fit(chosen, units, self.positions)
        action = self._uniform(epoch, samples, _ACTION)
        masked = np.where(chosen & (action < 0.8), self.mask_id, token_ids)
        masked = np.where(chosen & (action >= 0.9), self._random(epoch, samples), masked)
        # Stable: chosen columns first, in order.
        order = np.argsort(~chosen, axis=1, kind="stable")[:, : self.positions].astype(np.int32)
        weights = np.take_along_axis(chosen, order, 1).astype(np.float32)
        labels = np.take_along_axis(token_ids, order, 1)
        keep = weights > 0
        return Masked(
            masked.astype(np.int32), order * keep, (labels * keep).astype(np.int32), weights
        )

    def _units(
        self, starts: np.ndarray, maskable: np.ndarray, epoch: int, samples: np.ndarray
    ) -> np.ndarray:
        """int64 [B, L]: number of the unit each token belongs to, from 0 in every row."""
        if self.unit == "token":
            starts = np.ones_like(maskable)
        # A special token ends the word before it and is a unit by itself.
        edge = ~maskable
        starts = starts | edge
        starts[:, 1:] |= edge[:, :-1]
        starts[:, 0] = True
        starts = _cut(starts, LONGEST_WORD)
        if self.unit == "span":
            words = np.cumsum(starts, 1) - 1
            begins = np.take_along_axis(self._span_starts(epoch, samples), words, 1) & starts
            starts = begins | edge
            starts[:, 1:] |= edge[:, :-1]
            starts[:, 0] = True
            starts = _cut(starts, max(LONGEST_WORD, self.positions // 2))
        return np.cumsum(starts, 1) - 1

    def _span_starts(self, epoch: int, samples: np.ndarray) -> np.ndarray:
        """bool [B, L]: whether word i of a row begins a span."""
        rows, length = len(samples), self.length
        lengths = 1 + np.floor(
            np.log1p(-self._uniform(epoch, samples, _SPAN) * (1 - (1 - SPAN_P) ** SPAN_WORDS))
            / np.log1p(-SPAN_P)
        ).astype(np.int64)
        lengths = np.minimum(lengths, SPAN_WORDS)
        ends = np.cumsum(lengths, 1)
        # A random start inside the first span, or its length would show in every row's begin.
        shift = (self._uniform(epoch, samples, _SPAN_OFFSET, 1)[:, 0] * lengths[:, 0]).astype(int)
        where = ends - shift[:, None]
        out = np.zeros((rows, length), bool)
        row, column = np.nonzero(where < length)
        out[row, where[row, column]] = True
        return out

    def _choose(
        self, units: np.ndarray, maskable: np.ndarray, epoch: int, samples: np.ndarray
    ) -> np.ndarray:
        """bool [B, L]: the tokens of the units that are drawn."""
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
        """int64 [B, L]: ordinary tokens, each as likely as any other."""
        allowed = np.setdiff1d(np.arange(self.vocab_size), self.special_ids)
        return allowed[(self._uniform(epoch, samples, _TOKEN) * len(allowed)).astype(np.int64)]

    def _uniform(self, epoch: int, samples: np.ndarray, stream: int, count: int = 0) -> np.ndarray:
        return uniform(samples, count or self.length, self.seed, epoch, stream)


def _cut(starts: np.ndarray, longest: int) -> np.ndarray:
    """Adds starts so that no unit has more than ``longest`` tokens."""
    columns = np.arange(starts.shape[1])
    begin = np.maximum.accumulate(np.where(starts, columns, 0), axis=1)
    return starts | ((columns - begin) % longest == 0)


def _fit(chosen: np.ndarray, units: np.ndarray, room: int) -> np.ndarray:
    """Gives up the last units of rows that drew more than ``room`` tokens; never part of one."""
    over = np.flatnonzero(chosen.sum(1) > room)
    if not over.size:
        return chosen
    chosen = chosen.copy()
    for row in over:
        beyond = np.cumsum(chosen[row]) > room
        lost = units[row][chosen[row] & beyond]
        chosen[row] &= ~np.isin(units[row], lost)
    return chosen
