"""WordPiece ids equal to bert4keras' Tokenizer, for many texts at once.

bert4keras' rules for characters (what is a space, punctuation, CJK, dropped) differ from HF
tokenizers' BertNormalizer in places: private-use and newly assigned characters, text that spells
"[SEP]". So the characters are handled here, by one table for `str.translate`; HF tokenizers cuts
each *distinct* word into pieces once, and numpy puts the sequences together.
"""

from __future__ import annotations

import dataclasses
import json
import os
import unicodedata
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

# Only distinct words reach HF tokenizers: too little work for its threads, after whose use each
# fork prints a warning. Read at import.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from tokenizers import Tokenizer as HFTokenizer
from tokenizers.models import WordPiece

from amp_xla.data.text.vocabulary import (
    WORD_MAX_CHARS,
    load_vocab,
    train_vocab,
    warnings,
)
from amp_xla.errors import DataError
from amp_xla.process import durable

CHUNK = 4096  # texts cut into words at a time: bounds the memory
MAX_KNOWN_WORDS = 2_000_000  # about 300 MB; then forget and start again
MASK = "[MASK]"
REQUIRED = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Token ids of many texts, ragged: sample i is `token_ids[offsets[i]:offsets[i + 1]]`.

    token_ids: int32 [tokens]; offsets: int64 [samples + 1]; first_lengths: int32 [samples], the
    tokens of segment 0 ([CLS] first [SEP]), the rest is segment 1 (second [SEP]).
    """

    token_ids: np.ndarray
    offsets: np.ndarray
    first_lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """int64 [samples]: tokens of each, [CLS] and [SEP] counted."""
        return np.diff(self.offsets)

    def row(self, i: int) -> Tuple[List[int], List[int]]:
        """(token ids, segment ids) of sample i as lists: what bert4keras' `encode` returns."""
        ids = self.token_ids[self.offsets[i] : self.offsets[i + 1]].tolist()
        first = int(self.first_lengths[i])
        return ids, [0] * first + [1] * (len(ids) - first)


class _Characters(Dict[int, str]):
    """Code point -> replacement, filled as characters turn up (bert4keras `_tokenize`)."""

    def __init__(self, drop_marks: bool) -> None:
        super().__init__()
        self._drop_marks = drop_marks

    def __missing__(self, code: int) -> str:
        char = chr(code)
        category = unicodedata.category(char)
        if self._drop_marks and category == "Mn":
            new = ""
        elif 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
            new = " " + char + " "  # ASCII symbols such as + and $ too, of any category
        elif category.startswith("P") or _is_cjk(code):
            new = " " + char + " "
        elif char in " \n\r\t" or category == "Zs":
            new = " "
        elif code == 0xFFFD or category in ("Cc", "Cf"):
            new = ""
        else:
            new = char
        self[code] = new
        return new


def _is_cjk(code: int) -> bool:
    return (
        0x4E00 <= code <= 0x9FFF
        or 0x3400 <= code <= 0x4DBF
        or 0x20000 <= code <= 0x2A6DF
        or 0x2A700 <= code <= 0x2B73F
        or 0x2B740 <= code <= 0x2B81F
        or 0x2B820 <= code <= 0x2CEAF
        or 0xF900 <= code <= 0xFAFF
        or 0x2F800 <= code <= 0x2FA1F
    )


class WordSplitter:
    """Splits texts into words: optionally lower case without accents; symbols and CJK apart."""

    def __init__(self, lowercase: bool) -> None:
        self._lowercase = lowercase
        self._characters = _Characters(drop_marks=lowercase)

    def __call__(self, text: str) -> List[str]:
        if self._lowercase:
            text = unicodedata.normalize("NFD", text.lower())
        return text.translate(self._characters).split()


class Tokenizer:
    """A WordPiece tokenizer. ``tokens[i]`` is the token with id i."""

    def __init__(self, tokens: Sequence[str], lowercase: bool = True, source: str = "") -> None:
        self.tokens = list(tokens)
        self.lowercase = lowercase
        self._ids = {token: i for i, token in enumerate(self.tokens)}
        missing = [token for token in REQUIRED if token not in self._ids]
        where = source or "vocabulary"
        if missing:
            raise DataError(
                f"{where}: {len(self.tokens):,} tokens without {', '.join(missing)}; a BERT "
                f"vocabulary has one token per line and {', '.join(REQUIRED)} among them"
            )
        if self._ids["[PAD]"] != 0:
            raise DataError(
                f"{where}: [PAD] is line {self._ids['[PAD]'] + 1}; it must be the first, because "
                "bert4keras takes id 0 for padding"
            )
        self._pieces = HFTokenizer(
            WordPiece(vocab=self._ids, unk_token="[UNK]", max_input_chars_per_word=WORD_MAX_CHARS)
        )
        self._split = WordSplitter(lowercase)
        self._forget()

    @classmethod
    def load(cls, vocab_path: str, lowercase: bool = True) -> Tokenizer:
        """Read a Google-format ``vocab.txt``: one token per line, its id the line number from 0."""
        return cls(load_vocab(vocab_path), lowercase, source=vocab_path)

    @classmethod
    def train(
        cls, texts: Sequence[str], vocab_size: int = 8000, lowercase: bool = True
    ) -> Tokenizer:
        """Learn a WordPiece vocabulary of at most ``vocab_size`` tokens from ``texts``."""
        split = WordSplitter(lowercase)
        return cls(train_vocab((split(text) for text in texts), vocab_size), lowercase)

    @classmethod
    def from_assets(cls, asset: Callable[[str], str]) -> Tokenizer:
        """Read the files of ``assets``; ``asset`` returns the path of each by its name."""
        with open(asset("tokenizer_config.json"), encoding="utf-8") as file:
            return cls.load(asset("vocab.txt"), bool(json.load(file)["do_lower_case"]))

    def save(self, path: str) -> None:
        """Write ``vocab.txt``; ``load`` of it gives the same ids."""
        durable.write(Path(path), "".join(token + "\n" for token in self.tokens).encode("utf-8"))

    def save_settings(self, path: str) -> None:
        """Write ``tokenizer_config.json``: the settings beside the vocabulary."""
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"do_lower_case": self.lowercase}, file)
            file.write("\n")

    @property
    def assets(self) -> Dict[str, Callable[[str], None]]:
        """File name -> function that writes it: the tokenizer's files in a checkpoint."""
        return {"vocab.txt": self.save, "tokenizer_config.json": self.save_settings}

    def warnings(self, encoded: Encoded) -> str:
        """Return ``vocabulary.warnings`` about the encoded training texts."""
        ids = encoded.token_ids
        total = int(((ids != self.cls_id) & (ids != self.sep_id)).sum())
        return warnings(self.tokens, int((ids == self.unk_id).sum()), total)

    @property
    def vocab_size(self) -> int:
        """Number of ids: rows of the embedding matrix."""
        return len(self.tokens)

    @property
    def pad_id(self) -> int:
        """Always 0."""
        return self._ids["[PAD]"]

    @property
    def unk_id(self) -> int:
        """Id of words that the vocabulary cannot spell."""
        return self._ids["[UNK]"]

    @property
    def cls_id(self) -> int:
        """Id of the first token of every sample."""
        return self._ids["[CLS]"]

    @property
    def sep_id(self) -> int:
        """Id of the token that ends each text."""
        return self._ids["[SEP]"]

    @property
    def mask_id(self) -> int:
        """Id of [MASK]; raises ``DataError`` if the vocabulary has none."""
        if MASK not in self._ids:
            raise DataError("the vocabulary has no [MASK]; masked language modelling needs one")
        return self._ids[MASK]

    @property
    def hidden_id(self) -> int:
        """Id that replaces a hidden token: [MASK], or [UNK] without one."""
        return self._ids.get(MASK, self.unk_id)

    def encode_masked(self, text: str) -> List[int]:
        """Return ``[CLS] text [SEP]``; ``[MASK]`` in the text becomes the token of that name."""
        parts = [self.pieces([part])[0].tolist() for part in text.split(MASK)]
        ids = [self.cls_id, *parts[0]]
        for part in parts[1:]:
            ids += [self.mask_id, *part]
        return [*ids, self.sep_id]

    def encode(
        self,
        texts: Sequence[str],
        pairs: Optional[Sequence[Optional[str]]] = None,
        max_length: Optional[int] = None,
    ) -> Encoded:
        """Return ``[CLS] text [SEP]`` or ``[CLS] text [SEP] pair [SEP]`` of each text.

        A sample of more than ``max_length`` tokens loses tokens from the end of its text, a pair
        always from its longer side, as in bert4keras' ``encode(maxlen=max_length)``. A pair that is
        None leaves its text alone.
        """
        least = 2 if pairs is None else 3
        if max_length is not None and max_length < least:
            raise DataError(f"max_length is {max_length}; [CLS] and [SEP] alone take {least}")
        first, first_counts = self.pieces(texts)
        if pairs is None:
            counts = first_counts
            if max_length is not None:
                counts = np.minimum(counts, max_length - 2)
            return self._joined([(first, first_counts, counts)])
        if len(pairs) != len(texts):
            raise DataError(f"{len(texts):,} texts but {len(pairs):,} second texts")
        second, second_counts = self.pieces([pair or "" for pair in pairs])
        alone = np.array([pair is None for pair in pairs], np.int64)  # no second [SEP] then
        # As in bert4keras: with [CLS] and [SEP] on each side, the longer side, at a tie the first,
        # loses a token until both fit max_length + 1.
        a, b = first_counts + 2, second_counts + 2 - alone
        if max_length is not None:
            room = max_length + 1
            a_kept = np.where(a + b <= room, a, np.minimum(a, np.maximum(room // 2, room - b)))
            b = np.minimum(b, room - a_kept)
            a = a_kept
        return self._joined([(first, first_counts, a - 2), (second, second_counts, b - 2)])

    def _joined(self, sides: Sequence[Tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Encoded:
        """Return [CLS], then each side's first ``kept`` pieces and [SEP]; nothing if that is -1."""
        lengths = 1 + sum(kept + 1 for _, _, kept in sides)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        out = np.full(int(offsets[-1]), self.sep_id, np.int32)
        out[offsets[:-1]] = self.cls_id
        target = offsets[:-1] + 1
        for pieces, counts, kept in sides:
            source = np.cumsum(counts) - counts
            taken = np.maximum(kept, 0)
            out[_ranges(target, taken)] = pieces[_ranges(source, taken)]
            target = target + kept + 1
        return Encoded(out, offsets, (sides[0][2] + 2).astype(np.int32))

    def pieces(self, texts: Sequence[str]) -> Tuple[np.ndarray, np.ndarray]:
        """Return the piece ids of all texts end to end (int32), and the count per text (int64)."""
        pieces: List[np.ndarray] = [np.zeros(0, np.int32)]
        counts: List[np.ndarray] = [np.zeros(0, np.int64)]
        for start in range(0, len(texts), CHUNK):
            cut = [self._split(text) for text in texts[start : start + CHUNK]]
            words = [word for text in cut for word in text]
            if len(self._words) > MAX_KNOWN_WORDS:
                self._forget()
            index = np.fromiter(map(self._words.__getitem__, words), np.int64, len(words))
            self._learn()
            lengths = self._word_lengths[index]
            pieces.append(self._word_pieces[_ranges(self._word_starts[index], lengths)])
            ends = np.concatenate([[0], np.cumsum(lengths)])
            words_end = np.cumsum([len(text) for text in cut])
            counts.append(np.diff(np.concatenate([[0], ends[words_end]])))
        return np.concatenate(pieces), np.concatenate(counts).astype(np.int64)

    def _forget(self) -> None:
        self._words = Words()
        self._word_pieces: np.ndarray = np.zeros(0, np.int32)
        self._word_starts: np.ndarray = np.zeros(0, np.int64)
        self._word_lengths: np.ndarray = np.zeros(0, np.int64)

    def _learn(self) -> None:
        """Cut the new words and remember their pieces."""
        new = self._words.take_new()
        if not new:
            return
        # Too long words are looked up whole, as in bert4keras; so are half surrogate pairs, which
        # cannot pass into Rust.
        cut = [word for word in new if len(word) <= WORD_MAX_CHARS and _encodable(word)]
        encodings = self._pieces.encode_batch(cut, add_special_tokens=False)
        pieces = {word: encoding.ids for word, encoding in zip(cut, encodings)}
        ids = [pieces.get(word) or [self._ids.get(word, self.unk_id)] for word in new]
        lengths = np.array([len(piece) for piece in ids], np.int64)
        starts = len(self._word_pieces) + np.cumsum(lengths) - lengths
        flat = np.array([piece for word in ids for piece in word], np.int32)
        self._word_pieces = np.concatenate([self._word_pieces, flat])
        self._word_starts = np.concatenate([self._word_starts, starts])
        self._word_lengths = np.concatenate([self._word_lengths, lengths])


class Words(Dict[str, int]):
    """Word -> number; the first look-up of a word gives it the next number."""

    def __init__(self) -> None:
        super().__init__()
        self._new: List[str] = []

    def __missing__(self, word: str) -> int:
        self._new.append(word)
        self[word] = number = len(self)
        return number

    def take_new(self) -> List[str]:
        """Return the new words since the last call, in the order of their numbers."""
        new, self._new = self._new, []
        return new


def _encodable(word: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in word)


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return starts[0], starts[0] + 1, ..., (lengths[0] of them), starts[1], ..."""
    total = int(lengths.sum())
    shift = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    return np.arange(total, dtype=np.int64) + shift
