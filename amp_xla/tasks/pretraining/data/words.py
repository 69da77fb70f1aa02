"""Token ids of texts, and where words begin, for whole-word masks."""

from __future__ import annotations

import functools

import numpy as np

from amp_xla.data.text.lines import extra
from amp_xla.data.text.tokenizer import Tokenizer

# Share of one-character CJK tokens in a Chinese vocabulary: Google's Chinese BERT has 0.35, its
# English one 0.01, its multilingual one 0.12.
CHINESE_SHARE = 0.2
_USE = "cutting text into Chinese words (--words jieba)"


def resolve(kind: str, tokenizer: Tokenizer) -> str:
    """Return ``pieces`` or ``jieba``; for ``auto`` the vocabulary decides."""
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

    Args:
      tokenizer: WordPiece.
      kind: ``pieces``: pieces with ## continue a word. ``jieba``: jieba finds words, and each word
        is tokenized separately, as in bert4keras' pretraining.
    """

    def __init__(self, tokenizer: Tokenizer, kind: str) -> None:
        self.tokenizer = tokenizer
        # rjieba is jieba's algorithm in Rust.
        self._jieba = extra("rjieba", _USE).cut if kind == "jieba" else None
        self._begins = np.array([not token.startswith("##") for token in tokenizer.tokens])

    def __call__(self, text: str) -> np.ndarray:
        """Return int32 [tokens]: the token ids of a text, negative if they continue a word."""
        if self._jieba is None:
            token_ids = np.array(self.tokenizer.pieces(text), np.int32)
            return np.where(self._begins[token_ids], token_ids, -token_ids)
        words = map(self.tokenizer.pieces, self._jieba(text))
        return np.array([-t if i else t for word in words for i, t in enumerate(word)], np.int32)
