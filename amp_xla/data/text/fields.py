"""The columns or keys of a file that hold the text, the second text and the label."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence, Tuple

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
    *((name, None) for name in ("sentence", "text", "review", "content", "question")),
    *((name, None) for name in ("文本", "内容", "评论")),
)
KNOWN_LABELS = tuple(
    "label gold_label is_duplicate quality labels class category sentiment 标签 类别".split()
)
KNOWN_OTHERS = ("index", "id", "idx")


class Fields(NamedTuple):
    """Names of the fields to read; None = no second text, or not given by a flag."""

    text: Optional[str]
    pair: Optional[str]
    label: Optional[str]


def choose(path: str, columns: Sequence[str], given: Fields) -> Fields:
    """Return the fields to read: those ``given`` by flags, and known names for the others.

    Raises:
      DataError: A name is missing, or two are the same; the message lists ``columns``.
    """
    names = ", ".join(map(repr, columns))
    for kind, name in zip(Fields._fields, given):
        if name is not None and name not in columns:
            raise DataError(f"{path}: no field {name!r} for --{kind}-field; found: {names}")
    lower = {name.strip().lower(): name for name in reversed(columns)}
    text, pair, label = given
    if text is None:
        for known, known_pair in KNOWN_TEXTS:
            if known in lower and (known_pair is None or known_pair in lower):
                text = lower[known]
                if pair is None and known_pair is not None:
                    pair = lower[known_pair]
                break
    if label is None:
        label = next((lower[known] for known in KNOWN_LABELS if known in lower), None)
    for kind, name in (("text", text), ("label", label)):
        if name is None:
            raise DataError(
                f"{path}: which field is the {kind}? found: {names}; name it with --{kind}-field"
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
