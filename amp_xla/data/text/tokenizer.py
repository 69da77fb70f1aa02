"""A WordPiece tokenizer with bert4keras' or Hugging Face's ids, for many texts at once.

Each *distinct* word is cut into pieces once. "[SEP]" in a text is ordinary text.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import sys
import unicodedata
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from tokenizers.models import WordPiece

from amp_xla.data.text import vocabulary
from amp_xla.data.text.vocabulary import SPECIAL_TOKENS, Rules
from amp_xla.errors import DataError
from amp_xla.process import json_files

MAX_KNOWN_WORDS = 1_000_000  # about 400 MB
_SURROGATE = re.compile(r"[\ud800-\udfff]")
MASK = "[MASK]"
REQUIRED = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


class Windows(NamedTuple):
    """The windows of texts: a text's windows are consecutive rows of equal length.

    Attributes:
      firsts: the first window of each text, and the number of all windows, int64 [texts + 1].
      begins: position of each window's first token in its text, or in the longer text of a pair,
        int64 [windows].
    """

    firsts: np.ndarray
    begins: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        """Number of windows of each text, int64 [texts]."""
        return np.diff(self.firsts)


class Part(NamedTuple):
    """A sample's tokens; only ``tokens`` may be cut, ``before`` and ``after`` are in each row."""

    before: Sequence[int]
    tokens: Sequence[int]
    after: Sequence[int]
    first: bool = True  # segment 0 ends after the first token of ``after``, else before ``tokens``


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Token ids of many texts, ragged: row i is `token_ids[offsets[i]:offsets[i + 1]]`.

    Attributes:
      token_ids: int32 [tokens].
      offsets: int64 [rows + 1].
      first_lengths: number of tokens of each row in segment 0 ([CLS] first [SEP]), int32 [rows];
        the row's other tokens are in segment 1 (second [SEP]).
      texts: rows per sample: 2 for pairs whose texts are encoded separately, else 1.
      lost: number of tokens cut off per sample (per row if ``texts`` is 2), int64; None = unknown.
      windows: ``Windows`` if rows are windows of texts; None if each row is a whole sample.
    """

    token_ids: np.ndarray
    offsets: np.ndarray
    first_lengths: np.ndarray
    texts: int = 1
    lost: Any = None
    windows: Optional[Windows] = None

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], firsts: Optional[Sequence[int]] = None) -> Encoded:
        """Join rows; ``firsts``: number of tokens in segment 0 of each row, None = all."""
        sizes = list(map(len, rows))
        ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32, sum(sizes))
        first_lengths = np.array(sizes if firsts is None else firsts, np.int32)
        return cls(ids, np.cumsum([0, *sizes]).astype(np.int64), first_lengths)

    @classmethod
    def fitting(cls, samples: Iterable[Part], length: int, stride: int = 0) -> Encoded:
        """Fit each sample into one row of at most ``length`` tokens, or into windows.

        With a stride of 0, tokens that do not fit are cut off. Otherwise each window begins
        ``stride`` tokens after the beginning of the previous window, but at the latest at its end.
        The last window may begin earlier: it ends with the sample, and is as long as the others.
        """
        rows, firsts, lost = [], [], []
        begins: List[int] = []
        counts = [0]
        for before, tokens, after, first in samples:
            room = length - len(before) - len(after)
            last = max(0, len(tokens) - room)  # where the last window begins
            starts = [*range(0, last, min(stride, room)), last] if stride else [0]
            for start in starts:
                row = [*before, *tokens[start : start + room], *after]
                firsts.append(len(row) - len(after) + 1 if first else len(before))
                rows.append(row)
            lost.append(0 if stride else last)
            begins += starts
            counts.append(len(starts))
        windows = Windows(np.cumsum(counts), np.array(begins, np.int64)) if stride else None
        joined = cls.of(rows, firsts)
        return dataclasses.replace(joined, lost=np.array(lost, np.int64), windows=windows)

    def __len__(self) -> int:
        return (len(self.offsets) - 1) // self.texts

    @property
    def lengths(self) -> np.ndarray:
        """Tokens in the longest row of each sample, with [CLS] and [SEP], int64 [samples]."""
        return np.diff(self.offsets).reshape(-1, self.texts).max(1)


class Tokenizer:
    """A WordPiece tokenizer.

    Args:
      source: file of the vocabulary, for messages.

    Attributes:
      tokens: the vocabulary; ``tokens[i]`` is the token with id i.
      vocab_size: number of ids, and of rows of the embedding matrix.
      special_ids: ids of all special tokens, also of [MASK] if there is one.
      pad_id, unk_id, cls_id, sep_id: ids of [PAD], [UNK], [CLS], [SEP]; [PAD] always has id 0.
      hidden_id: id that replaces hidden tokens: [MASK], or [UNK] without [MASK].
    """

    def __init__(
        self, tokens: Sequence[str], rules: Rules = Rules(), source: str = "vocabulary"
    ) -> None:
        self.tokens, self.rules = list(tokens), rules
        self._ids = {token: i for i, token in enumerate(self.tokens)}
        missing = [token for token in REQUIRED if token not in self._ids]
        if missing:
            raise DataError(
                f"{source}: {len(self.tokens):,} tokens without {', '.join(missing)}; a BERT "
                f"vocabulary includes {', '.join(REQUIRED)}; vocab.txt has one token per line"
            )
        if self._ids["[PAD]"] != 0:
            raise DataError(
                f"{source}: [PAD] has id {self._ids['[PAD]']}; it must have id 0, as first token"
            )
        self.vocab_size = len(self.tokens)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id = (self._ids[t] for t in REQUIRED)
        self.hidden_id = self._ids.get(MASK, self.unk_id)
        self.special_ids = [self._ids[t] for t in SPECIAL_TOKENS if t in self._ids]
        self._cut = functools.lru_cache(MAX_KNOWN_WORDS)(self._cut_word)
        self._split = self.rules.splitter()
        self._longest = 100 if self.rules.hugging_face else vocabulary.WORD_MAX_CHARS
        self._model = WordPiece(
            vocab=self._ids, unk_token="[UNK]", max_input_chars_per_word=self._longest
        )
        self._sizes: Dict[str, int] = {}  # character -> its number of characters after splitting

    @classmethod
    def load(cls, vocab_path: str, lowercase: bool = True) -> Tokenizer:
        """Read a ``vocab.txt``: one token per line; the id is the line number from 0."""
        return cls(vocabulary.load_vocab(vocab_path), Rules(lowercase), vocab_path)

    @classmethod
    def train(
        cls, texts: Sequence[str], vocab_size: int = 8000, lowercase: bool = True
    ) -> Tokenizer:
        """Learn a WordPiece vocabulary of at most ``vocab_size`` tokens from ``texts``."""
        words = map(Rules(lowercase).splitter(), texts)
        return cls(vocabulary.train_vocab(words, vocab_size), Rules(lowercase))

    @classmethod
    def of_folder(cls, folder: str, lowercase: Optional[bool] = None) -> Tokenizer:
        """Read the tokenizer of pretrained weights or of a checkpoint.

        The folder has ``vocab.txt`` or Hugging Face's ``tokenizer.json``, and perhaps
        ``tokenizer_config.json``. ``lowercase``: None = the folder's setting, or True if it
        has none.
        """
        rules = vocabulary.rules(folder, warn=True)
        if lowercase is not None:
            rules = rules._replace(lowercase=lowercase)
        return cls(vocabulary.tokens(folder), rules, vocabulary.path(folder))

    @property
    def assets(self) -> Dict[str, bytes]:
        """File name -> content: vocabulary and settings, which checkpoints keep."""
        tokens = "".join(token + "\n" for token in self.tokens)
        settings = json_files.encode(vocabulary.settings(self.rules), indent=None)
        return {"vocab.txt": tokens.encode(), "tokenizer_config.json": settings}

    def warnings(self, encoded: Encoded) -> str:
        """Return ``vocabulary.warnings`` about the encoded training texts."""
        ids = encoded.token_ids
        total = int(((ids != self.cls_id) & (ids != self.sep_id)).sum())
        return vocabulary.warnings(self.tokens, int((ids == self.unk_id).sum()), total)

    @property
    def mask_id(self) -> int:
        """Id of [MASK]; raises ``DataError`` if the vocabulary has none."""
        if MASK not in self._ids:
            raise DataError("the vocabulary has no [MASK], which masked language modelling needs")
        return self._ids[MASK]

    def encode_masked(self, text: str) -> List[int]:
        """Return ``[CLS] text [SEP]``; ``[MASK]`` in the text becomes the special token."""
        first, *others = map(self.pieces, text.split(MASK))
        ids = [self.cls_id, *first]
        for part in others:
            ids += [self.mask_id, *part]
        return [*ids, self.sep_id]

    def encode_lines(self, lines: Sequence[str], max_length: int, stride: int = 0) -> Encoded:
        """Return the tokens of lines to predict; a line is a text, or two with a tab between."""
        split = [line.partition("\t") for line in lines]
        pairs = [second if tab else None for _, tab, second in split]
        return self.encode([first for first, _, _ in split], pairs, max_length, stride)

    def encode(
        self,
        texts: Sequence[str],
        pairs: Optional[Sequence[Optional[str]]] = None,
        max_length: Optional[int] = None,
        stride: int = 0,
    ) -> Encoded:
        """Return ``[CLS] text [SEP]`` or ``[CLS] text [SEP] pair [SEP]`` of each text.

        A sample of more than ``max_length`` tokens loses tokens from its end, or from the end of
        the longer text of a pair, as in bert4keras' ``encode(maxlen=max_length)``. If an element of
        ``pairs`` is None, its sample has one text.

        With ``stride``, ``Encoded.fitting`` cuts long samples into windows instead. Each window of
        a pair has a part of the longer text, and the whole shorter text. If the shorter text would
        fill more than half a row, it is cut to half a row.
        """
        length = sys.maxsize if max_length is None else max_length
        parts, lost = [], []
        for text, pair in zip(texts, itertools.repeat(None) if pairs is None else pairs):
            first, second = self.pieces(text), self.pieces(pair or "")
            size, room = len(first) + len(second), length - 3
            if pair is not None and size > room and stride:
                del min(second, first, key=len)[room // 2 :]
            while pair is not None and len(first) + len(second) > room and not stride:
                (first if len(first) >= len(second) else second).pop()
            lost.append(size - len(first) - len(second))
            second = second if pair is None else [*second, self.sep_id]
            if pair is None or len(first) >= len(second):
                parts.append(Part([self.cls_id], first, [self.sep_id, *second]))
            else:
                before = [self.cls_id, *first, self.sep_id]
                parts.append(Part(before, second[:-1], second[-1:], first=False))
        encoded = Encoded.fitting(parts, length, stride)
        return dataclasses.replace(encoded, lost=encoded.lost + np.array(lost, np.int64))

    def encode_apart(
        self, texts: Sequence[str], pairs: Sequence[str], max_length: Optional[int] = None
    ) -> Encoded:
        """Return two rows ``[CLS] text [SEP]`` for each pair, cut as in ``encode``."""
        rows = [text for pair in zip(texts, pairs) for text in pair]
        return dataclasses.replace(self.encode(rows, max_length=max_length), texts=2)

    def pieces(self, text: str) -> List[int]:
        """Return the ids of a text's word pieces, without special tokens."""
        return list(itertools.chain.from_iterable(map(self._cut, self._split(text))))

    def _cut_word(self, word: str) -> List[int]:
        # Half a surrogate pair cannot be passed to Rust.
        if len(word) <= self._longest and not _SURROGATE.search(word):
            return [token.id for token in self._model.tokenize(word)]
        # A word that is too long to cut is looked up whole in bert4keras, and is [UNK] in Hugging
        # Face.
        known = {} if self.rules.hugging_face else self._ids
        return [known.get(word, self.unk_id)]

    def aligned_pieces(self, text: str) -> Tuple[List[int], List[int], List[int]]:
        """Return the ids of ``pieces``, and where each piece starts and ends in the text.

        Starts and ends count characters. An accent that the splitter removes belongs to the piece
        before it.
        """
        ids, starts, ends = self.pieces(text), [], []
        # Splitting changes a character independently of its neighbours, so its size is found alone.
        for char in set(text) - set(self._sizes):
            self._sizes[char] = sum(map(len, self._split(char)))
        removed = {c for c in set(text) if not self._sizes[c] and unicodedata.combining(c)}
        places = [i for i, char in enumerate(text) for _ in range(self._sizes[char])]
        begin = 0
        for word in self._split(text):
            pieces, end = self._cut(word), begin + len(word)
            for number, piece in enumerate(pieces):
                whole = len(pieces) == 1  # the whole word; also for [UNK], however long the word is
                size = len(self.tokens[piece]) - (2 if number else 0)
                last = end if whole else begin + size
                starts.append(places[begin])
                stop = places[last - 1] + 1
                while text[stop : stop + 1] in removed:
                    stop += 1
                ends.append(stop)
                begin = last
        return ids, starts, ends
