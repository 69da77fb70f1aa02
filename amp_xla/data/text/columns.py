"""Which column or key of a file is the text, the second text and the label."""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Sequence, Tuple

from amp_xla.errors import DataError

# Names that are known without being asked for, (text, pair), first hit wins: GLUE's and CLUE's,
# then what exports are commonly called.
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


class Asked(NamedTuple):
    """What the user said: --text-field, --pair-field, --label-field."""

    text: Optional[str]
    pair: Optional[str]
    label: Optional[str]

    @property
    def given(self) -> List[str]:
        """The names that were said, in this order."""
        return [name for name in self if name is not None]


class Fields(NamedTuple):
    """Names of the fields that are read."""

    text: str
    pair: Optional[str]
    label: Optional[str]


class Unusable(Exception):
    """Why the line at hand gives no sample."""


def choose(path: str, found: Sequence[str], asked: Asked, require_labels: bool) -> Fields:
    """Names that were asked for must be among ``found``; the others are looked up in it.

    Raises:
      DataError: a name is missing, or the same for two things; the message lists ``found``.
    """
    names = ", ".join(map(repr, found))
    for kind, name in zip(Asked._fields, asked):
        if name is not None and name not in found:
            raise DataError(f"{path}: no field {name!r} for --{kind}-field; found: {names}")
    lower = {name.strip().lower(): name for name in reversed(found)}
    text, pair, label = asked
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
        if label is None and require_labels:
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
    """Do the cells of a first line look like names of columns?"""
    names = {name.strip().lower() for name in columns}
    texts = names & {name for known in KNOWN_TEXTS for name in known if name is not None}
    # A test file has no label column; a second text or an index gives its header away.
    return bool(texts) and (len(texts) > 1 or bool(names & {*KNOWN_LABELS, *KNOWN_OTHERS}))
