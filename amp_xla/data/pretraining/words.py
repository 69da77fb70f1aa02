"""Token ids of texts and the positions at which words begin, for whole-word masks."""

from __future__ import annotations

import functools
from typing import Any, List, Tuple

import numpy as np

from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import DataError

# Share of one-character CJK tokens in a Chinese vocabulary: Google's Chinese BERT has 0.35, its
# English one 0.01, its multilingual one 0.12.
CHINESE_SHARE = 0.2


def resolve(kind: str, tokenizer: Tokenizer) -> str:
    """Return ``pieces`` or ``jieba``; ``auto`` is decided by the vocabulary."""
    if kind != "auto":
        return kind
    single = sum(len(token) == 1 and "\u4e00" <= token <= "\u9fff" for token in tokenizer.tokens)
    return "jieba" if single > CHINESE_SHARE * tokenizer.vocab_size else "pieces"


@functools.lru_cache(maxsize=1)
def cutter(vocab: str, lowercase: bool, kind: str) -> Cutter:
    """Return the ``Cutter`` of a vocabulary file; one per process."""
    return Cutter(Tokenizer.load(vocab, lowercase), kind)


class Cutter:
    """Cuts texts into tokens, grouped into words.

    Args:
      tokenizer: WordPiece.
      kind: ``pieces``: a piece with ## continues a word. ``jieba``: words of jieba, each tokenized
        alone, as in bert4keras' pretraining.
    """

    def __init__(self, tokenizer: Tokenizer, kind: str) -> None:
        self.tokenizer = tokenizer
        self._jieba = _jieba() if kind == "jieba" else None
        self._begins = np.array([not token.startswith("##") for token in tokenizer.tokens])

    def __call__(self, texts: List[str]) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return int32 token ids of all texts, bool word starts, and int64 tokens per text."""
        if self._jieba is None:
            token_ids, counts = self.tokenizer.pieces(texts)
            return token_ids, self._begins[token_ids], counts
        cut = [list(self._jieba(text)) for text in texts]
        numbers = {word: i for i, word in enumerate(dict.fromkeys(w for row in cut for w in row))}
        pieces, lengths = self.tokenizer.pieces(list(numbers))
        first = np.cumsum(lengths) - lengths
        index = np.array([numbers[word] for row in cut for word in row], np.int64)
        sizes = lengths[index]
        ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        inside = np.arange(ends[-1]) - np.repeat(ends[:-1], sizes)
        token_ids = pieces[np.repeat(first[index], sizes) + inside]
        borders = np.cumsum([0, *map(len, cut)])
        return token_ids, inside == 0, np.diff(ends[borders])


def _jieba() -> Any:
    """Return the ``cut`` function of rjieba, the same algorithm in Rust, or else of jieba."""
    try:
        import rjieba

        return rjieba.cut
    except ImportError:
        pass
    try:
        import jieba
    except ImportError:
        raise DataError(
            "cutting Chinese words needs the package rjieba, or jieba (pip install rjieba); with "
            "--words pieces every character is a word"
        ) from None
    jieba.setLogLevel(60)
    jieba.initialize()
    return jieba.lcut
