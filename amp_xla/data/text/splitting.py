"""Texts cut into words, by bert4keras' rules for characters or by Hugging Face's.

bert4keras' rules (what is a space, punctuation, CJK, dropped) differ from the BertNormalizer of HF
tokenizers in places: private-use and newly assigned characters. So they are one table for
`str.translate`, and Hugging Face's are what its library does.
"""

from __future__ import annotations

import unicodedata
from typing import Callable, Dict, List, NamedTuple, Optional

from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer


class Rules(NamedTuple):
    """Rules that cut a text into words.

    Attributes:
      lowercase: lower-case the text; bert4keras also strips accents then.
      hugging_face: rules of Hugging Face's library instead of bert4keras'. Only there:
      strip_accents: None = if ``lowercase``.
      chinese: put spaces around Chinese characters.
    """

    lowercase: bool = True
    hugging_face: bool = False
    strip_accents: Optional[bool] = None
    chinese: bool = True

    @property
    def word_max_chars(self) -> int:
        """Maximum length of a word that is split into pieces."""
        return 100 if self.hugging_face else 200  # bert4keras' word_maxlen

    def splitter(self) -> Callable[[str], List[str]]:
        """Return a function: text -> words."""
        return HuggingFaceSplitter(self) if self.hugging_face else WordSplitter(self.lowercase)


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
    """Splits texts into words: optionally lower case without accents; separates symbols and CJK."""

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
        self._breaks = _Breaks()

    def __call__(self, text: str) -> List[str]:
        # Half surrogate pairs cannot pass into Rust.
        clean = text.encode("utf-8", "ignore").decode("utf-8")
        words = self._normalizer.normalize_str(clean).translate(self._breaks).split(" ")
        return [word for word in words if word]


class _Breaks(Dict[int, str]):
    """Code point -> itself, a space, or itself between spaces, as the library splits there."""

    def __init__(self) -> None:
        super().__init__()
        self._split = BertPreTokenizer()

    def __missing__(self, code: int) -> str:
        char = chr(code)
        words = [word for word, _ in self._split.pre_tokenize_str(f"a{char}a")]
        self[code] = char if len(words) == 1 else " " if len(words) == 2 else f" {char} "
        return self[code]
