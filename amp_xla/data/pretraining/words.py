"""Texts to token ids and the places where words begin, for whole-word masks."""

from __future__ import annotations

import functools
from typing import Any, List, Tuple

import numpy as np

from amp_xla.data.pretraining import records
from amp_xla.data.text.tokenizer import Tokenizer, Words
from amp_xla.data.text.vocabulary import parse_vocab
from amp_xla.errors import DataError

# Share of one-character CJK tokens above which a vocabulary is a Chinese one. Google's Chinese
# BERT has 0.35, its English one 0.01, its multilingual one 0.12.
CHINESE_SHARE = 0.2
KINDS = ("auto", "pieces", "jieba")

Cut = Tuple[np.ndarray, np.ndarray, np.ndarray]


def load_tokenizer(path: str, lowercase: bool) -> Tokenizer:
    """``vocab.txt`` from anywhere; ``DataError`` if it is none."""
    if not records.remote(path):
        return Tokenizer.load(path, lowercase)
    with records.opened(path) as file:
        return Tokenizer(parse_vocab(file.read(), path), lowercase, path)


def resolve(kind: str, tokenizer: Tokenizer) -> str:
    """``pieces`` or ``jieba``; what ``auto`` means depends on the vocabulary alone."""
    if kind not in KINDS:
        raise DataError(f"words={kind!r} is not known; allowed: {', '.join(KINDS)}")
    if kind != "auto":
        return kind
    single = sum(len(t) == 1 and "\u4e00" <= t <= "\u9fff" for t in tokenizer.tokens)
    return "jieba" if single > CHINESE_SHARE * tokenizer.vocab_size else "pieces"


@functools.lru_cache(maxsize=1)
def cutter(vocab: str, lowercase: bool, kind: str) -> Any:
    """``Pieces`` or ``Jieba`` on the vocabulary at ``vocab``; one a process."""
    tokenizer = load_tokenizer(vocab, lowercase)
    return Jieba(tokenizer) if kind == "jieba" else Pieces(tokenizer)


class Pieces:
    """Words are what the tokenizer splits; a piece with ## goes on with the one before it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._begins = np.array([not t.startswith("##") for t in tokenizer.tokens])

    def __call__(self, texts: List[str]) -> Cut:
        """(int32 ids of all texts end to end, bool word starts, int64 tokens of each text)."""
        encoded = self.tokenizer.encode(texts)
        inside = np.ones(len(encoded.token_ids), bool)
        inside[encoded.offsets[:-1]] = False  # [CLS]
        inside[encoded.offsets[1:] - 1] = False  # [SEP]
        token_ids = encoded.token_ids[inside]
        return token_ids, self._begins[token_ids], encoded.lengths - 2


class Jieba:
    """Words are what jieba cuts; each is tokenized by itself, as bert4keras' pretraining does.

    The cutting is done by ``rjieba`` (the same algorithm and dictionary in Rust) where it is
    installed, else by ``jieba``.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._cut = _jieba()
        self._known = Words()
        self._starts = np.zeros(0, np.int64)
        self._lengths = np.zeros(0, np.int64)
        self._pieces = np.zeros(0, np.int32)

    def __call__(self, texts: List[str]) -> Cut:
        """As ``Pieces``."""
        cut = [self._cut(text) for text in texts]
        known = self._known
        index = np.fromiter((known[w] for words in cut for w in words), np.int64)
        self._learn(known.take_new())
        sizes = self._lengths[index]
        ends = np.concatenate([[0], np.cumsum(sizes)])
        first = np.repeat(ends[:-1], sizes)
        inside = np.arange(ends[-1]) - first
        token_ids = self._pieces[np.repeat(self._starts[index], sizes) + inside]
        of_text = np.concatenate([[0], np.cumsum([len(words) for words in cut])])
        return token_ids, inside == 0, np.diff(ends[of_text.astype(np.int64)])

    def _learn(self, new: List[str]) -> None:
        if not new:
            return
        encoded = self.tokenizer.encode(new)
        inside = np.ones(len(encoded.token_ids), bool)
        inside[encoded.offsets[:-1]] = False
        inside[encoded.offsets[1:] - 1] = False
        lengths = encoded.lengths - 2
        starts = len(self._pieces) + np.cumsum(lengths) - lengths
        self._pieces = np.concatenate([self._pieces, encoded.token_ids[inside]])
        self._starts = np.concatenate([self._starts, starts])
        self._lengths = np.concatenate([self._lengths, lengths])


def _jieba() -> Any:
    try:
        import rjieba

        return rjieba.cut
    except ImportError:
        pass
    try:
        import jieba
    except ImportError:
        raise DataError(
            "cutting Chinese words needs the package rjieba, or jieba (pip install rjieba); or "
            "take --words pieces, where every character is a word"
        ) from None
    jieba.setLogLevel(60)
    jieba.initialize()
    return jieba.lcut
