"""The columns or keys of a file that hold the text, the second text and the label."""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

from amp_xla.errors import DataError

# Names that need no flag, (text, pair), the first match wins: GLUE's and CLUE's, then usual names.
KNOWN_TEXTS: Tuple[Tuple[str, Optional[str]], ...] = (
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),  # GLUE QNLI
    ("#1 string", "#2 string"),  # GLUE MRPC
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("query", "title"),
    ("sentence", None),
    ("text", None),
    ("review", None),
    ("content", None),
    ("question", None),
    ("文本", None),
    ("内容", None),
    ("评论", None),
)
KNOWN_LABELS = (
    "label",
    "gold_label",
    "is_duplicate",
    "quality",
    "labels",
    "class",
    "category",
    "sentiment",
    "标签",
    "类别",
)
KNOWN_OTHERS = ("index", "id", "idx")


class FieldNames(NamedTuple):
    """Values of --text-field, --pair-field and --label-field."""

    text: Optional[str]
    pair: Optional[str]
    label: Optional[str]

    @property
    def given(self) -> List[str]:
        """The names that are not None."""
        return [name for name in self if name is not None]


class Fields(NamedTuple):
    """Names of the fields to read."""

    text: str
    pair: Optional[str]
    label: str


class Unusable(Exception):
    """The reason why a line is no sample."""


class Parser(NamedTuple):
    """The lines below a header, the fields, and a function from a line to (text, pair, label).

    The function raises ``Unusable``.
    """

    lines: List[Tuple[int, str]]
    fields: Fields
    parse: Callable[[str], Any]


def choose(path: str, columns: Sequence[str], wanted: FieldNames) -> Fields:
    """Return the fields to read: those ``wanted`` by name, and known names for the others.

    Raises:
      DataError: A name is missing, or two are the same; the message lists ``columns``.
    """
    names = ", ".join(map(repr, columns))
    for kind, name in zip(FieldNames._fields, wanted):
        if name is not None and name not in columns:
            raise DataError(f"{path}: no field {name!r} for --{kind}-field; found: {names}")
    lower = {name.strip().lower(): name for name in reversed(columns)}
    text, pair, label = wanted
    if text is None:
        for known, known_pair in KNOWN_TEXTS:
            if known in lower and (known_pair is None or known_pair in lower):
                text = lower[known]
                if pair is None and known_pair is not None:
                    pair = lower[known_pair]
                break
        else:
            raise DataError(
                f"{path}: which field is the text? found: {names}; name it with --text-field"
            )
    if label is None:
        label = next((lower[known] for known in KNOWN_LABELS if known in lower), None)
        if label is None:
            raise DataError(
                f"{path}: which field is the label? found: {names}; name it with --label-field"
            )
    used = [name for name in (text, pair, label) if name is not None]
    if len(set(used)) < len(used):
        raise DataError(
            f"{path}: text, second text and label must be different fields; they are "
            f"{', '.join(map(repr, used))} of {names}"
        )
    return Fields(text, pair, label)


def is_header(columns: Sequence[str]) -> bool:
    """Return whether the cells of a first line look like names of columns."""
    names = {name.strip().lower() for name in columns}
    texts = names & {name for known in KNOWN_TEXTS for name in known if name is not None}
    return bool(texts) and (len(texts) > 1 or bool(names & {*KNOWN_LABELS, *KNOWN_OTHERS}))
