"""Split texts into words, by the rules of bert4keras or of Hugging Face.

The rules decide which characters are spaces, punctuation or CJK, and which are dropped. They differ
for private-use and newly assigned characters. bert4keras' rules are a table for `str.translate`;
Hugging Face's rules are applied by its library.
"""

from __future__ import annotations

import unicodedata
from typing import Callable, Dict, List, NamedTuple, Optional

from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

WORD_MAX_CHARS = 200  # bert4keras' word_maxlen: a longer word is not cut


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

    @property
    def word_max_chars(self) -> int:
        """Maximum characters of a word that is cut into pieces."""
        return 100 if self.hugging_face else WORD_MAX_CHARS

    def splitter(self) -> Callable[[str], List[str]]:
        """Return a function from a text to its words."""
        return HuggingFaceSplitter(self) if self.hugging_face else WordSplitter(self.lowercase)


class _Characters(Dict[int, str]):
    """Code point -> replacement, computed at the first look-up, as bert4keras' `_tokenize` does."""

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
    """Splits texts by bert4keras' rules: symbols and CJK characters are words."""

    def __init__(self, lowercase: bool) -> None:
        self._lowercase = lowercase
        self._characters = _Characters(drop_marks=lowercase)

    def __call__(self, text: str) -> List[str]:
        if self._lowercase:
            text = unicodedata.normalize("NFD", text.lower())
        return text.translate(self._characters).split()


class HuggingFaceSplitter:
    """Splits texts as ``BertNormalizer`` and ``BertPreTokenizer`` do."""

    def __init__(self, rules: Rules) -> None:
        self._normalizer = BertNormalizer(
            clean_text=True, handle_chinese_chars=rules.chinese,
            strip_accents=rules.strip_accents, lowercase=rules.lowercase,
        )  # fmt: skip
        self._pre_tokenizer = BertPreTokenizer()

    def __call__(self, text: str) -> List[str]:
        # Half a surrogate pair cannot be passed to Rust.
        clean = text.encode("utf-8", "ignore").decode("utf-8")
        words = self._pre_tokenizer.pre_tokenize_str(self._normalizer.normalize_str(clean))
        return [word for word, _ in words]
