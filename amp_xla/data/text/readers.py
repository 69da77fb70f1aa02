"""Read labelled texts: columns with or without a header, or JSON lines; may be gzipped."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from amp_xla.data.text.lines import (
    BadLine,
    Line,
    called,
    is_csv,
    plain_name,
    read_lines,
    text_problem,
)  # fmt: skip
from amp_xla.errors import DataError

JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
EXAMINED = 100  # keys of this many JSON lines are collected: the first line may lack a key
SHOWN_BAD_LINES = 5
# Number of columns in a file without a header -> their names
WITHOUT_HEADER = {1: ["text"], 2: ["text", "label"], 3: ["text", "pair", "label"]}
LABELLED, LABELLED_PAIRS = ("text", "label"), ("text", "pair", "label")  # required fields
KNOWN_OTHERS = ("index", "id", "idx")


class Known(NamedTuple):
    """Names of fields that are recognized without a flag.

    Attributes:
      texts: (name of the text, name of the second text or ""); the first pair in a file is used.
      labels: names of the label.
    """

    texts: Sequence[Tuple[str, str]]
    labels: Sequence[str] = ()


def _names(listed: str) -> List[Tuple[str, str]]:
    return [(name.partition("/")[0], name.partition("/")[2]) for name in listed.split(", ")]


# GLUE's (MRPC has "#1 String") and CLUE's, then usual names.
USUAL = Known(
    _names(
        "text/pair, sentence1/sentence2, question1/question2, premise/hypothesis, "
        "question/sentence, #1 string/#2 string, text_a/text_b, text1/text2, query/title, "
        "sentence, text, review, content, question, text_a, 文本, 内容, 评论"
    ),
    "label gold_label is_duplicate quality score labels class category sentiment 标签 类别".split(),
)
# Source and target: CSL's titles, LCSTS, then usual names. The first is the longer text.
TARGETS = Known(
    _names(
        "text/pair, source/target, abst/title, abstract/title, content/title, text/title, "
        "text/summary, content/summary, article/summary, document/summary"
    )
)


class Fields(NamedTuple):
    """Names of the fields to read; None = there is no such field, or no flag names it."""

    text: Optional[str]
    pair: Optional[str]
    label: Optional[str]


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Texts in file order, with second texts and labels if the file has them.

    ``bad_lines`` were left out.
    """

    texts: List[str]
    pairs: Optional[List[str]] = None
    labels: Optional[List[str]] = None
    bad_lines: List[BadLine] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.texts)

    def fingerprint(self) -> str:
        """Return the SHA-256 (hex) of texts, pairs and labels in order."""
        digest = hashlib.sha256()
        for column in (self.texts, self.pairs, self.labels):
            digest.update(b"-" if column is None else b"%d:" % len(column))
            for value in column or ():
                data = value.encode("utf-8", "surrogatepass")
                digest.update(b"%d:" % len(data))  # so that ["ab"] and ["a", "b"] differ
                digest.update(data)
        return digest.hexdigest()

    def warnings(self) -> str:
        """Return a line break and a warning if lines were left out, else an empty string."""
        if not self.bad_lines:
            return ""
        return f"\nwarning: {len(self.bad_lines):,} lines left out, such as {self.bad_lines[0]}"

    def take(self, indices: Iterable[int]) -> Dataset:
        """Return the samples at ``indices``, in that order."""
        chosen = [int(i) for i in indices]
        return dataclasses.replace(
            self,
            texts=[self.texts[i] for i in chosen],
            pairs=None if self.pairs is None else [self.pairs[i] for i in chosen],
            labels=None if self.labels is None else [self.labels[i] for i in chosen],
        )


def read(
    path: str,
    text_field: Optional[str] = None,
    pair_field: Optional[str] = None,
    label_field: Optional[str] = None,
    on_bad_line: str = "error",
    needs: Sequence[str] = LABELLED,
    numbers: bool = False,
    separator: Optional[str] = None,
    known: Known = USUAL,
) -> Dataset:
    """Read a file of texts and labels; its name and its first line show the format.

    - ``text<TAB>label`` or ``text<TAB>pair<TAB>label`` without a header;
    - tab separated with a header (GLUE, CLUE);
    - the same columns separated by commas (``.csv``);
    - one JSON object per line (``.jsonl``, ``.json``, or a first line that starts with ``{``).

    Each may be compressed. Labels may be text, numbers or booleans; they become text. Blank lines
    are skipped.

    Args:
      path: the file; ``-`` is standard input.
      text_field, pair_field, label_field: names of columns or keys; None = the usual ones. In a
        file without a header, column numbers from 0.
      on_bad_line: ``"error"`` raises for unusable lines, ``"skip"`` returns them in ``bad_lines``.
      needs: names of ``Fields`` that a file must have; other fields are read if they exist.
      numbers: labels must be finite numbers; they become their shortest text (``1.0`` is ``1``).
      separator: text between the labels of a sample, which in JSON may be a list; a sample may have
        no label. None = each sample has one label.
      known: names of fields that are recognized without a flag.
    """
    lines, bad = read_lines(path)
    if not lines:
        return collected(path, (), list, bad, on_bad_line)  # raises
    requested = Fields(text_field, pair_field, label_field)
    if is_json(path, lines[0][1]):
        columns = _keys(path, lines)
        parse = json_object
    else:
        columns, has_header = _columns(path, lines[0], requested, needs, known)
        lines = lines[1:] if has_header else lines
        parse = functools.partial(_cells, columns)
    fields = _choose(path, columns, requested, needs, known)

    def sample(line: str) -> List[Optional[str]]:
        record = parse(line)
        names = fields._asdict().items()
        values = [name and text_value(record, name, kind, separator) for kind, name in names]
        if numbers and values[2] is not None:
            values[2] = _number(values[2], fields.label)
        return values

    return collected(path, lines, sample, bad, on_bad_line)


def is_json(path: str, first: str) -> bool:
    """Return whether a file is JSON lines, by its name or its first line; raise for an array."""
    named = plain_name(path).endswith(JSON_SUFFIXES)
    if named and first.lstrip().startswith("["):
        raise DataError(
            f"{path} is one JSON array; one object per line is needed (jq -c '.[]' converts it)"
        )
    return named or first.lstrip().startswith("{")


def collected(
    path: str,
    places: Iterable[Tuple[int, Any]],
    sample: Callable[[Any], Sequence[Optional[str]]],
    bad: List[BadLine],
    on_bad_line: str,
) -> Dataset:
    """Return the samples of a file; raise ``DataError`` for bad lines, or if there are no samples.

    Args:
      path, on_bad_line: as for ``read``.
      places: line number and content of each sample.
      sample: content -> text, second text and label; raises ``ValueError`` with the reason.
      bad: lines already known to be unusable.
    """
    samples: List[Sequence[Optional[str]]] = []
    for number, content in places:
        try:
            samples.append(sample(content))
        except ValueError as reason:
            bad.append(BadLine(path, number, str(reason)))
    bad.sort(key=lambda line: line.line)
    if bad and (on_bad_line == "error" or not samples):
        raise unusable(path, bad, len(samples) + len(bad))
    if not samples:
        raise DataError(f"{called(path)}: the file is empty, or has no sample below its header")
    columns: Any = [None if values[0] is None else list(values) for values in zip(*samples)]
    texts, pairs, labels = columns
    return Dataset(texts, pairs, labels, bad)


def _columns(
    path: str, first: Line, requested: Fields, needs: Sequence[str], known: Known
) -> Tuple[List[str], bool]:
    """Return the names of the columns, and whether the first line is a header."""
    number, line = first
    cells = [name.strip() for name in line.split("\t")]
    header = _is_header(cells, known)
    names = [name for name in requested if name is not None]
    if names and not header and all(map(str.isdigit, names)):
        return [str(i) for i in range(len(cells))], False
    if names or header:
        return cells, True
    usual = WITHOUT_HEADER.get(len(cells), [])
    usual = ["text", "pair"] if len(cells) == 2 and "pair" in needs else usual
    if set(needs) <= set(usual) and (known.labels or "label" not in usual):
        return usual, False
    marks, mark = ("commas", ",") if is_csv(path) else ("tabs", "<TAB>")
    forms = dict.fromkeys(mark.join(form) for form in (needs, known.labels and LABELLED_PAIRS))
    listed = ", or ".join(filter(None, forms)).replace("pair", "second text")
    flags = " and ".join(f"--{name}-field" for name in needs)
    raise DataError(
        f"{path}:{number}: {_count(cells)} between {marks}, and no known header. Needed: {listed}; "
        f"or a header line, with {flags} if its names are unusual; or {flags} with column numbers "
        f"from 0. First line: {line[:80]!r}"
    )


def _cells(columns: Sequence[str], line: str) -> Dict[str, Any]:
    """Return the value of each column. Quotation marks have no meaning, as in GLUE."""
    cells = line.split("\t")
    if len(cells) != len(columns):
        raise ValueError(f"{_count(cells)}, not {len(columns)}")
    return dict(zip(reversed(columns), reversed(cells)))  # the first of two equal names


def _count(columns: Sequence[str]) -> str:
    return "1 column" if len(columns) == 1 else f"{len(columns)} columns"


def _keys(path: str, lines: Sequence[Line]) -> List[str]:
    """Return the keys of the first JSON objects."""
    number, first = lines[0]
    keys: Dict[str, None] = {}
    for _, line in lines[:EXAMINED]:
        with contextlib.suppress(ValueError):  # reported later, with the line number
            keys.update(dict.fromkeys(json_object(line)))
    if not keys:
        raise DataError(
            f"{path}:{number}: not a JSON object: {first[:60]!r}; one object per line is needed"
        )
    return list(keys)


def json_object(line: str) -> Dict[str, Any]:
    """Return the object of a line; raise ``ValueError`` with the reason if it is not one."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise ValueError(f"JSON, but not an object: {line.strip()[:40]}")
    return record


def text_value(
    record: Dict[str, Any], field: str, kind: str, separator: Optional[str] = None
) -> str:
    """Return the text in a field, or a label, which may be a number or a boolean in JSON.

    Raises:
      ValueError: the field is missing, empty or of another type.
    """
    if field not in record:
        raise ValueError(f"no field {field!r}; found: {', '.join(map(repr, record))[:60]}")
    value = record[field]
    if kind == "label" and separator is not None:
        parts = value if isinstance(value, list) else split(value, separator)
        names = [text_value({field: part}, field, kind) for part in parts]
        if any(separator in name for name in names):
            raise ValueError(f"{field}: a label contains {separator!r}, which separates labels")
        return separator.join(names)
    allowed = "a text is a string"
    if kind == "label":
        allowed = "a label is a string, a number or a boolean"
        if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
            return json.dumps(value)  # true, 3, 0.5: as in the file
    if not isinstance(value, str):
        raise ValueError(f"{field} is {json.dumps(value, ensure_ascii=False)[:40]}; {allowed}")
    problem = text_problem(value)
    if problem:
        raise ValueError(f"{field}: {problem}")
    if not value.strip():
        raise ValueError(f"{field} is empty")
    return value.strip() if kind == "label" else value


def split(labels: Any, separator: str) -> List[Any]:
    """Split a text into labels, without blank ones; a number is one label."""
    parts = labels.split(separator) if isinstance(labels, str) else [labels]
    return [part for part in parts if not isinstance(part, str) or part.strip()]


def _number(value: str, field: Optional[str]) -> str:
    """Return a finite number as text, in the shortest form."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{field} is {value[:40]!r}; a number is needed")
    return f"{number:.12g}"


def unusable(path: str, bad: Sequence[BadLine], total: int) -> DataError:
    """Return the error that lists the first bad lines of a file of ``total`` lines."""
    listed = [str(line) for line in bad[:SHOWN_BAD_LINES]]
    if len(bad) > len(listed):
        listed.append(f"and {len(bad) - len(listed):,} more")
    advice = (
        "no line is left: is it the right file, in UTF-8 (iconv -f GB18030 -t UTF-8 converts GBK), "
        "and are the field names right?"
    )
    if len(bad) < total:
        advice = "correct them, or leave them out with --on-bad-line skip"
    return DataError(
        f"{path}: {len(bad):,} of {total:,} lines cannot be used: {'; '.join(listed)}; {advice}"
    )


def _choose(
    path: str, columns: Sequence[str], requested: Fields, needs: Sequence[str], known: Known
) -> Fields:
    """Return the fields that flags name (``requested``), or else those with known names."""
    names = ", ".join(map(repr, columns))
    for kind, name in zip(Fields._fields, requested):
        if name is not None and name not in columns:
            raise DataError(f"{path}: no field {name!r} for --{kind}-field; found: {names}")
    lower = {name.strip().lower(): name for name in reversed(columns)}
    text, pair, label = requested
    if text is None:
        for usual, known_pair in known.texts:
            if usual in lower and (not known_pair or known_pair in lower):
                text = lower[usual]
                if pair is None and known_pair:
                    pair = lower[known_pair]
                break
    if label is None:
        label = next((lower[usual] for usual in known.labels if usual in lower), None)
    for kind, name in (("text", text), ("pair", pair), ("label", label)):
        if name is None and kind in needs:
            raise DataError(
                f"{path}: which field is the {'second text' if kind == 'pair' else kind}? found: "
                f"{names}; name it with --{kind}-field"
            )
    return Fields(text, pair, label)


def _is_header(columns: Sequence[str], known: Known) -> bool:
    """Return whether the cells of a first line look like names of columns."""
    names = {name.strip().lower() for name in columns}
    texts = names & {name for pair in known.texts for name in pair if name}
    return bool(texts) and (len(texts) > 1 or bool(names & {*known.labels, *KNOWN_OTHERS}))
