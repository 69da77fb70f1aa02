"""Texts cut into words; random masks that depend only on (seed, epoch, sequence).

A unit is a word or a token. All units are masked with the same probability ``rate``, by systematic
sampling over the units sorted by length. So the number of masked tokens per sequence varies little,
and a fixed number of positions, slightly above the mean, is enough.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from amp_xla.data.batches.order import uniform
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.data.text.unpacked import extra

# Longer "words", such as hashes and paths, are masked in parts of this many tokens.
LONGEST_WORD = 8
# A vocabulary with a higher share of one-character CJK tokens is Chinese: Google's Chinese BERT has
# 0.35, its English one 0.01, its multilingual one 0.12.
CHINESE_SHARE = 0.2
_SHUFFLE, _OFFSET, _ACTION, _TOKEN = range(4)  # streams of random numbers


def resolve_words(kind: str, tokenizer: Tokenizer) -> str:
    """Return how to find words: ``pieces`` or ``jieba``; for ``auto`` the vocabulary decides."""
    if kind != "auto":
        return kind
    single = sum(len(token) == 1 and "\u4e00" <= token <= "\u9fff" for token in tokenizer.tokens)
    return "jieba" if single > CHINESE_SHARE * tokenizer.vocab_size else "pieces"


@functools.lru_cache(maxsize=1)
def cutter(vocab: str, lowercase: bool, kind: str) -> Cutter:
    """Return the ``Cutter`` of a vocabulary file, built once per process."""
    return Cutter(Tokenizer.load(vocab, lowercase), kind)


class Cutter:
    """Cuts texts into tokens, grouped into words.

    With the kind ``pieces``, tokens with ## continue a word. With ``jieba``, jieba finds the words,
    and each word is tokenized separately, as in bert4keras' pretraining.
    """

    def __init__(self, tokenizer: Tokenizer, kind: str) -> None:
        self.tokenizer = tokenizer
        # rjieba is jieba's algorithm in Rust.
        use = "cutting text into Chinese words (--words jieba)"
        self._jieba = extra("rjieba", use).cut if kind == "jieba" else None
        self._begins = np.array([not token.startswith("##") for token in tokenizer.tokens])

    def __call__(self, text: str) -> np.ndarray:
        """Return int32 [tokens]: the token ids of a text, negative if they continue a word."""
        if self._jieba is None:
            token_ids = np.array(self.tokenizer.pieces(text), np.int32)
            return np.where(self._begins[token_ids], token_ids, -token_ids)
        words = map(self.tokenizer.pieces, self._jieba(text))
        return np.array([-t if i else t for word in words for i, t in enumerate(word)], np.int32)


@dataclasses.dataclass(frozen=True)
class Masking:
    """Random masks of sequences; ``unit`` is ``word`` or ``token``.

    ``rate`` is the share of the tokens to predict, 0 to 0.5. The special tokens of
    ``tokenizer`` are never masked, and never drawn as a random replacement.
    """

    tokenizer: Tokenizer
    rate: float = 0.15
    unit: str = "word"
    seed: int = 1

    def positions(self, length: int) -> int:
        """Return K, the number of positions to predict per sequence.

        K is 4/3 of the mean number of masks, rounded down to a multiple of 8 if that is at least
        6/5 of the mean, else to an integer. At a rate of 15%, K is at most 20% of ``length``.
        """
        mean = length * self.rate
        limit = int(mean * 4 / 3)
        aligned = limit // 8 * 8
        return max(1, aligned if aligned >= 1.2 * mean else limit)

    def __call__(
        self, token_ids: np.ndarray, starts: np.ndarray, epoch: int, samples: np.ndarray
    ) -> Batch:
        """Mask B sequences of L tokens, in which K positions are predicted.

        Args:
          token_ids: int [B, L].
          starts: bool [B, L], True at word starts.
          samples: int64 [B], numbers of the sequences.

        Returns:
          ``token_ids``: int32 [B, L], with masks; ``positions``: int32 [B, K], ascending, then 0;
          ``labels``: int32 [B, K], the original tokens; ``weights``: float32 [B, K], 1 for labels,
          0 for padding; ``segment_ids``: int32 [B, L], zeros; ``sample_ids``: ``samples``.
        """
        token_ids = np.asarray(token_ids, np.int32)
        length, special = token_ids.shape[1], self.tokenizer.special_ids

        def draw(stream: int, count: int = length) -> np.ndarray:
            return uniform(samples, count, self.seed, epoch, stream)

        maskable = ~np.isin(token_ids, special)
        units = self._units(starts, maskable)
        chosen = self._choose(units, maskable, draw(_SHUFFLE), draw(_OFFSET, 1))
        chosen = _fit(chosen, units, self.positions(length))
        action = draw(_ACTION)
        masked = np.where(chosen & (action < 0.8), self.tokenizer.mask_id, token_ids)
        ordinary = np.setdiff1d(np.arange(self.tokenizer.vocab_size), special)
        random = ordinary[(draw(_TOKEN) * len(ordinary)).astype(np.int64)]
        masked = np.where(chosen & (action >= 0.9), random, masked)
        # A stable sort puts chosen columns first, in order.
        order = np.argsort(~chosen, axis=1, kind="stable")[:, : self.positions(length)]
        weights = np.take_along_axis(chosen, order, 1).astype(np.float32)
        labels = np.take_along_axis(token_ids, order, 1)
        keep = (weights > 0).astype(np.int32)
        positions = order.astype(np.int32) * keep
        return {
            "token_ids": masked.astype(np.int32), "segment_ids": np.zeros_like(token_ids),
            "positions": positions, "labels": labels * keep, "weights": weights,
            "sample_ids": samples,
        }  # fmt: skip

    def _units(self, starts: np.ndarray, maskable: np.ndarray) -> np.ndarray:
        """Return the number of each token's unit, counted from 0 in each row: int64 [B, L]."""
        starts = starts | ~maskable if self.unit == "word" else np.ones_like(maskable)
        starts[:, 1:] |= ~maskable[:, :-1]
        starts[:, 0] = True
        columns = np.arange(starts.shape[1])
        begin = np.maximum.accumulate(np.where(starts, columns, 0), axis=1)
        return np.cumsum(starts | ((columns - begin) % LONGEST_WORD == 0), 1) - 1

    def _choose(
        self, units: np.ndarray, maskable: np.ndarray, shuffle: np.ndarray, offset: np.ndarray
    ) -> np.ndarray:
        """Choose the tokens to predict; return bool [B, L], True = predict.

        ``shuffle``, [B, L], and ``offset``, [B, 1], are random numbers from 0 to 1.
        """
        rows, length = units.shape
        flat = (units + np.arange(rows)[:, None] * length).reshape(-1)
        sizes = np.bincount(flat, maskable.reshape(-1), rows * length).reshape(rows, length)
        order = np.argsort(np.where(sizes > 0, sizes + shuffle, np.inf), 1)
        steps = np.floor(np.arange(length + 1) * self.rate + offset)
        drawn = np.zeros((rows, length), bool)
        np.put_along_axis(drawn, order, np.diff(steps, axis=1) > 0, 1)
        return np.take_along_axis(drawn, units, 1) & maskable


def _fit(chosen: np.ndarray, units: np.ndarray, room: int) -> np.ndarray:
    """Drop a row's last units until at most ``room`` tokens are chosen; return bool [B, L]."""
    rows, length = units.shape
    flat = units + np.arange(rows)[:, None] * length
    lost = np.zeros(rows * length, bool)
    lost[flat[chosen & (np.cumsum(chosen, 1) > room)]] = True
    return chosen & ~lost[flat]
