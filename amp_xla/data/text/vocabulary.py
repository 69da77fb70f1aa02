"""WordPiece vocabularies, read from files or trained; rules that split texts into words.

The rules of bert4keras and of Hugging Face decide which characters are spaces, punctuation or CJK,
and which are dropped. They differ for private-use and newly assigned characters. bert4keras' rules
are a table for `str.translate`; Hugging Face's rules are applied by its library.
"""

from __future__ import annotations

import collections
import hashlib
import io
import os
import string
import unicodedata
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence

from tokenizers import Tokenizer as HFTokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, WhitespaceSplit
from tokenizers.trainers import WordPieceTrainer

from amp_xla.data.text.unpacked import read_bytes
from amp_xla.errors import DataError
from amp_xla.process import json_files, regular
from amp_xla.process.progress import note

WORD_MAX_CHARS = 200  # bert4keras' word_maxlen: a longer word is not cut
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# The trainer takes words without counts, so each word is repeated, at most this often.
MAX_REPEATS = 100_000
UNKNOWN_WARNED, UNKNOWN_REFUSED = 0.1, 0.5  # above these shares of [UNK]: a warning, an error
SETTINGS, WHOLE = "tokenizer_config.json", "tokenizer.json"
_HF = "hugging_face"
# First and last code points of Chinese characters
_CJK = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip
_LARGEST_ID = 2**22 - 1
# Part of tokenizer.json -> the only type supported here
_PARTS = {
    "model": "WordPiece", "normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer",
}  # fmt: skip
# Field of Rules -> its key in tokenizer_config.json, and in tokenizer.json's normalizer
_KEYS = {
    "lowercase": ("do_lower_case", "lowercase"),
    "strip_accents": ("strip_accents", "strip_accents"),
    "chinese": ("tokenize_chinese_chars", "handle_chinese_chars"),
}


class Rules(NamedTuple):
    """Rules for splitting a text into words.

    Attributes:
      lowercase: lower-case the text; with bert4keras' rules, also strip accents.
      hugging_face: use the rules of Hugging Face's library, not bert4keras'.
      strip_accents: only for Hugging Face's rules: strip accents; None = same as ``lowercase``.
      chinese: only for Hugging Face's rules: put spaces around Chinese characters.
    """

    lowercase: bool = True
    hugging_face: bool = False
    strip_accents: Optional[bool] = None
    chinese: bool = True

    def splitter(self) -> Callable[[str], List[str]]:
        """Return a function from a text to its words."""
        return self._hugging_face() if self.hugging_face else self._bert4keras()

    def _bert4keras(self) -> Callable[[str], List[str]]:
        characters = _Characters(drop_marks=self.lowercase)

        def split(text: str) -> List[str]:
            if self.lowercase:
                text = unicodedata.normalize("NFD", text.lower())
            return text.translate(characters).split()

        return split

    def _hugging_face(self) -> Callable[[str], List[str]]:
        normalizer = BertNormalizer(
            clean_text=True, handle_chinese_chars=self.chinese,
            strip_accents=self.strip_accents, lowercase=self.lowercase,
        )  # fmt: skip
        pre_tokenizer = BertPreTokenizer()

        def split(text: str) -> List[str]:
            # Half a surrogate pair cannot be passed to Rust.
            clean = text.encode("utf-8", "ignore").decode("utf-8")
            words = pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(clean))
            return [word for word, _ in words]

        return split


class _Characters(Dict[int, str]):
    """Code point -> replacement as in bert4keras' `_tokenize`, computed at the first look-up."""

    def __init__(self, drop_marks: bool) -> None:
        super().__init__()
        self._drop_marks = drop_marks

    def __missing__(self, code: int) -> str:
        char = chr(code)
        category = unicodedata.category(char)
        is_cjk = any(first <= code <= last for first, last in _CJK)
        if self._drop_marks and category == "Mn":
            new = ""
        # In ASCII, symbols such as + and $ count as punctuation, too
        elif is_cjk or category.startswith("P") or char in string.punctuation:
            new = f" {char} "
        elif char in " \n\r\t" or category == "Zs":
            new = " "
        elif code == 0xFFFD or category in ("Cc", "Cf"):
            new = ""
        else:
            new = char
        self[code] = new
        return new


def load_vocab(path: str) -> List[str]:
    """Return the tokens of a file in the order of their ids; a blank line is a token, too."""
    try:
        text = read_bytes(path, regular.LARGEST).decode("utf-8").lstrip("\ufeff")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a UTF-8 vocabulary: {error}") from None
    # Only the first word of a line, as in bert4keras: some files have counts after the token.
    return [(line.split() or [""])[0] for line in io.StringIO(text)]


def path(folder: str) -> str:
    """Return the file that has the tokens: ``tokenizer.json`` if it exists, else ``vocab.txt``."""
    whole = os.path.join(folder, WHOLE)
    return whole if os.path.isfile(whole) else os.path.join(folder, "vocab.txt")


def tokens(folder: str) -> List[str]:
    """Return the tokens in the order of their ids; unused ids get tokens that occur in no text."""
    source = path(folder)
    if os.path.basename(source) != WHOLE:
        return load_vocab(source)
    whole = _whole(folder)
    try:
        ids: Dict[str, int] = {**whole["model"]["vocab"]}
        for token in whole.get("added_tokens") or []:
            json_files.require(token, {"content": str})
            ids[token["content"]] = token["id"]
        json_files.require(ids, dict.fromkeys(ids, json_files.Whole(0, _LARGEST_ID)), "id of ")
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{source}: cannot read model.vocab or added_tokens: {error}") from None
    # In vocab.txt a space would end the token. Words have no spaces, so replacing it is safe.
    named = {number: "\u2581".join(token.split(" ")) for token, number in ids.items()}
    return [named.get(number, f"[none{number}]") for number in range(max(named, default=-1) + 1)]


def rules(folder: str, warn: bool = False) -> Rules:
    """Return a folder's tokenizer rules; ``tokenizer_config.json`` overrides ``tokenizer.json``.

    A run's checkpoint states whose rules it used. In other folders, they are bert4keras' if there
    is a ``bert_config.json`` and no ``tokenizer.json``, else Hugging Face's. ``warn``: print a
    warning if the folder's tokenizer would cut Chinese text into words.
    """
    settings_of = json_file(os.path.join(folder, SETTINGS))
    if warn and str(settings_of.get("tokenizer_class", "")).startswith("RoFormer"):
        note(
            f"warning: the tokenizer of {folder} cuts Chinese text into words with jieba; here "
            "Chinese is cut into characters, so results may be worse"
        )
    normalizer = _whole(folder).get("normalizer")
    fields: Dict[str, Any] = {}
    for field, (key, other) in _KEYS.items():
        value = settings_of.get(key, (normalizer or {}).get(other))
        if value is not None and not isinstance(value, bool):
            raise DataError(f"{os.path.join(folder, SETTINGS)}: {key} is {value!r}, not a boolean")
        if value is not None:
            fields[field] = value
    google = normalizer is None and os.path.isfile(os.path.join(folder, "bert_config.json"))
    of_checkpoint = settings_of.get("rules")
    return Rules(
        hugging_face=not google if of_checkpoint is None else of_checkpoint == _HF, **fields
    )


def settings(rules: Rules) -> Dict[str, Any]:
    """Return the content of a ``tokenizer_config.json`` from which ``rules`` can be read again."""
    values = {key: getattr(rules, field) for field, (key, _) in _KEYS.items()}
    return {**values, "rules": _HF if rules.hugging_face else "bert4keras"}


def _whole(folder: str) -> Dict[str, Any]:
    """Return the content of ``tokenizer.json``, {} without it; refuse tokenizers unlike BERT's."""
    source = os.path.join(folder, WHOLE)
    whole = json_file(source)
    for part, kind in _PARTS.items() if whole else ():
        value = whole.get(part) or {}
        if not isinstance(value, dict):
            raise DataError(f"{source}: its {part} must be an object")
        # Old files do not name the model's type.
        old = part == "model" and "continuing_subword_prefix" in value
        actual = value.get("type", kind if old else None)
        if actual != kind:
            raise DataError(f"{source}: its {part} is {actual}; only BERT's {kind} is supported")
    return whole


def json_file(source: str) -> Dict[str, Any]:
    """Return the JSON object in a file; an empty one if there is no such file."""
    if not os.path.lexists(source):
        return {}
    content: Dict[str, Any] = json_files.read(Path(source), links=True)
    return content


def fingerprint(tokens: Sequence[str]) -> str:
    """Return the SHA-256 (hex) of the tokens in order."""
    return hashlib.sha256("\n".join(tokens).encode()).hexdigest()


def warnings(tokens: Sequence[str], unknown: int, total: int) -> str:
    """Return warnings, each after a line break, if the vocabulary may be wrong for the texts.

    Duplicate tokens are no error: some published vocabularies have them, and removing one would
    change all ids after it.

    Args:
      unknown, total: number of [UNK], and of all tokens, in the training texts.

    Raises:
      DataError: most tokens are [UNK].
    """
    lines = ""
    counts = collections.Counter(filter(None, tokens))
    twice = [token for token, count in counts.items() if count > 1]
    if twice:
        places = [i for i, token in enumerate(tokens, start=1) if token == twice[0]]
        lines += (
            f"\nwarning: {len(twice):,} tokens occur more than once in the vocabulary, e.g. "
            f"{twice[0]!r} in lines {', '.join(map(str, places[:5]))}; the last one counts"
        )
    share = unknown / max(total, 1)
    if share > UNKNOWN_WARNED:
        message = (
            f"{share:.0%} of the tokens of the training texts are [UNK]: does the vocabulary fit "
            "their language, and does it need --lowercase or --no-lowercase?"
        )
        if share > UNKNOWN_REFUSED:
            raise DataError(message)
        lines += f"\nwarning: {message}"
    return lines


def train_vocab(words_of_texts: Iterable[Sequence[str]], vocab_size: int) -> List[str]:
    """Return at most ``vocab_size`` tokens: special ones, frequent characters, learned pieces.

    The package ``tokenizers`` repeatedly merges the most frequent pair of pieces, as long as a pair
    occurs twice. The result does not depend on the order of the texts.
    """
    counts: collections.Counter = collections.Counter()
    for words in words_of_texts:
        counts.update(words)
    room = vocab_size - len(SPECIAL_TOKENS)
    if not counts or room < 1:
        raise DataError(
            f"cannot train a vocabulary of {vocab_size} tokens on {len(counts):,} distinct words; "
            f"needed: more than {len(SPECIAL_TOKENS)} tokens, and at least one word"
        )
    characters: collections.Counter = collections.Counter()
    for word, count in counts.items():
        characters[word[0]] += count
        for char in word[1:]:
            characters["##" + char] += count
    # At most half of the tokens are single characters.
    commonest = sorted(characters, key=lambda piece: (-characters[piece], piece))
    alphabet = sorted(commonest[: max(1, room // 2)], key=lambda piece: (len(piece), piece))
    allowed = set(alphabet)
    # A word with a character outside the alphabet cannot be spelled, so its pairs do not count.
    spellable = sorted(
        word
        for word in counts
        if len(word) <= WORD_MAX_CHARS
        and word[0] in allowed
        and all("##" + char in allowed for char in word[1:])
    )
    # The trainer numbers characters in random order, and ids decide ties between pairs, so two
    # runs would learn different vocabularies. Declaring the alphabet fixes the ids.
    trainer = WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS) + alphabet,
        continuing_subword_prefix="##",
        limit_alphabet=len(set("".join(spellable))),
        show_progress=False,
    )
    # Without this, each fork after the use of threads would print a warning.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    scale = max(1, max(counts.values()) // MAX_REPEATS)
    hf = HFTokenizer(WordPiece(unk_token="[UNK]"))
    hf.pre_tokenizer = WhitespaceSplit()
    hf.train_from_iterator(
        (" ".join([word] * -(-counts[word] // scale)) for word in spellable), trainer=trainer
    )
    vocab = hf.get_vocab()
    return sorted(vocab, key=lambda token: vocab[token])
