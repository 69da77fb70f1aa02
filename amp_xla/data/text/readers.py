"""Read labelled texts: columns with or without a header, or JSON; compressed or not."""

from __future__ import annotations

import ast
import collections
import contextlib
import dataclasses
import hashlib
import io
import json
import math
import re
import tokenize
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

from amp_xla.data.text.columns import Request, decide, doubt
from amp_xla.data.text.labels import as_number, is_number
from amp_xla.data.text.layout import LABELLED, USUAL, Fields, Known, Layout
from amp_xla.data.text.lines import BadLine, LineError, Table, numbers, text_problem
from amp_xla.data.text.unpacked import called
from amp_xla.errors import DataError

SHOWN_BAD_LINES = 5
LISTED = re.compile(r"\[\s*(['\"\d].*)?\]", re.DOTALL)  # a list as text
QUOTED = re.compile('"[^"]*(""[^"]*)+"')  # as programs quote


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Texts in file order, with second texts and labels if the file has them.

    ``bad_lines`` were left out. ``layout``: what the file's columns are; None = built-in texts.
    ``remark``: a line break and a warning, or an empty string.
    """

    texts: List[str]
    pairs: Optional[List[str]] = None
    labels: Optional[List[str]] = None
    bad_lines: List[BadLine] = dataclasses.field(default_factory=list)
    layout: Optional[Layout] = None
    remark: str = ""

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def fields(self) -> Dict[str, List[str]]:
        """Name of each field that the file has -> its values."""
        columns = zip(Fields._fields, (self.texts, self.pairs, self.labels))
        return {field: values for field, values in columns if values is not None}

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

    @property
    def columns(self) -> Layout:
        """The layout; built-in texts get one without a header."""
        places = {field: i for i, field in enumerate(self.fields)}
        return self.layout or Layout("tab", False, numbers(list(places)), **places)

    @property
    def all_texts(self) -> List[str]:
        """The texts and second texts, from which a vocabulary is learned."""
        return [*self.texts, *(self.pairs or [])]

    def warnings(self) -> str:
        """Return the warnings of the file, each after a line break; empty if there are none."""
        bad = self.bad_lines
        left = f"\nwarning: {len(bad):,} lines left out, such as {bad[0]}" if bad else ""
        return self.remark + left

    def take(self, indices: Iterable[int]) -> Dataset:
        """Return the samples at ``indices``, in that order."""
        chosen = [int(i) for i in indices]
        each: Any = {f"{f}s": [values[i] for i in chosen] for f, values in self.fields.items()}
        return dataclasses.replace(self, **each)


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
    header: Optional[str] = None,
    run: Optional[Layout] = None,
) -> Dataset:
    """Read a file of texts and labels; its name and its lines show the format.

    docs/files.md lists the formats: columns with or without a header, and JSON. Labels may be text,
    numbers or booleans; they become text. Blank lines are skipped.

    Args:
      path: the file; ``-`` is standard input.
      text_field, pair_field, label_field, header, needs, known: see ``columns.Request``.
      on_bad_line: ``"error"`` raises for unusable lines, ``"skip"`` returns them in ``bad_lines``.
      numbers: labels must be finite numbers; they are returned with up to 12 digits, 1.0 as "1".
      separator: text between the labels of a sample; a JSON list of labels is allowed, too. With
        a separator, a sample may have no label; with None, each sample has one label.
      run: layout of the training file; see ``columns.decide``.
    """
    table = Table.read(path)
    if not table.rows:
        return collected(path, (), list, table.bad, on_bad_line)  # raises
    if table.bad and on_bad_line == "error":  # before the other rows are interpreted
        raise unusable(path, table.bad, len(table.rows) + len(table.bad))
    fields = Fields(text_field, pair_field, label_field)
    layout = decide(table, Request(fields, header, needs, known), run)

    names = layout.names

    def sample(content: Any) -> List[Optional[str]]:
        record = layout.values(content)
        refuse_rejected(record)
        values = [text_value(record, names[f]) if f in names else None for f in ("text", "pair")]
        label = label_value(record, names["label"], separator) if "label" in names else None
        return [*values, _number(label, names["label"]) if numbers and label else label]

    data = collected(path, table.rows[layout.header :], sample, table.bad, on_bad_line)
    if run is None and not any(fields):
        problem = doubt(layout, known, data.fields)
        if problem:
            raise DataError(f"{called(path)}: {problem}")
    remark = _quoted(data.texts) if table.format == "tab" else ""
    return dataclasses.replace(data, layout=layout, remark=remark)


def _quoted(texts: Sequence[str]) -> str:
    """Return a warning if most texts are between quotation marks, or some have doubled ones."""
    quoted = [text for text in texts if text[0] == text[-1] == '"']
    quoted = quoted if 2 * len(quoted) > len(texts) else list(filter(QUOTED.fullmatch, quoted))
    remark = f"\nwarning: {len(quoted):,} texts are between quotation marks, which are read as text"
    return f"{remark}, such as {quoted[0][:60]}" if quoted else ""


def collected(
    path: str,
    places: Iterable[Tuple[int, Any]],
    sample: Callable[[Any], Sequence[Optional[str]]],
    bad: List[BadLine],
    on_bad_line: str,
    total: int = 0,
) -> Dataset:
    """Return the samples of a file; raise ``DataError`` for bad lines, or if there are no samples.

    ``places`` has (line number, content) of each sample. ``sample`` turns a content into (text,
    second text, label), or raises ``ValueError`` with the reason. ``bad``: lines already known to
    be unusable. ``on_bad_line``: as for ``read``. ``total``: line count; 0 = samples + bad lines.
    """
    samples: List[Sequence[Optional[str]]] = []
    for number, content in places:
        try:
            samples.append(sample(content))
        except ValueError as reason:
            bad.append(BadLine(path, number, str(reason)))
    bad.sort(key=lambda line: line.line)
    if bad and (on_bad_line == "error" or not samples):
        raise unusable(path, bad, total or len(samples) + len(bad), bool(samples))
    if not samples:
        raise DataError(f"{called(path)}: the file is empty, or has no sample below its header")
    columns: Any = [None if values[0] is None else list(values) for values in zip(*samples)]
    texts, pairs, labels = columns
    return Dataset(texts, pairs, labels, bad)


def text_value(record: Dict[str, Any], field: str, allowed: str = "a text is a string") -> str:
    """Return the text in a field; raise ``ValueError`` if it is missing, blank or no text."""
    if field not in record:
        raise ValueError(f"no field {field!r}; found: {', '.join(map(repr, record))[:60]}")
    value = record[field]
    if not isinstance(value, str):
        raise ValueError(f"{field} is {json.dumps(value, ensure_ascii=False)[:40]}; {allowed}")
    problem = text_problem(value)
    if problem:
        raise ValueError(f"{field}: {problem}")
    if not value.strip():
        raise ValueError(f"{field} is empty")
    return value


def label_value(record: Dict[str, Any], field: str, separator: Optional[str] = None) -> str:
    """Return a field's label, or its labels joined by ``separator``; else raise ``ValueError``."""
    value = record.get(field)
    if isinstance(value, str) and LISTED.fullmatch(value):
        value = _listed(value, field)
    if isinstance(value, list) and len(value) > 2 and all(part in (0, 1) for part in value):
        raise ValueError(f"{field} is {value}; needed: names of labels, not 0 or 1 per label")
    if separator is not None and field in record:
        parts = value if isinstance(value, list) else split(value, separator)
        names = [label_value({field: part}, field) for part in parts]
        if any(separator in name for name in names):
            raise ValueError(f"{field}: a label contains {separator!r}, which separates labels")
        return separator.join(names)
    allowed = "a label is a string, a number or a boolean"
    if isinstance(value, list):
        value = value[0] if len(value) == 1 else value
        allowed += "; several labels need --multilabel ," * isinstance(value, list)
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return json.dumps(value)  # true, 3, 0.5: as in the file
    record = {**record, field: value} if field in record else record
    return text_value(record, field, allowed).strip()


def _listed(text: str, field: str) -> Any:
    """Return the list in a text, as JSON or as pandas writes it; else raise ``ValueError``."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text if '"' in text else text.replace("'", '"'))
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        value = ast.literal_eval(text)
        kinds = [part.type for part in tokenize.generate_tokens(io.StringIO(text).readline)]
        kinds = [kind for kind in kinds if kind != tokenize.NL]
        # NumPy writes no commas: Python reads its ['a' 'b'] as ['ab'].
        joined = (tokenize.STRING, tokenize.STRING) in zip(kinds, kinds[1:])
        if not joined and all(isinstance(part, (str, int, float, type(None))) for part in value):
            return value
    raise ValueError(f"{field} is {text[:40]}; commas between labels are needed")


def refuse_rejected(record: Dict[str, Any]) -> None:
    """Raise ``ValueError`` if a user of Prodigy did not accept the labels of a record."""
    if "_task_hash" in record and record.get("answer", "accept") != "accept":
        raise ValueError(f"labels not accepted in Prodigy: answer is {record['answer']!r}")


def joined(tokens: Sequence[str]) -> str:
    """Join tokens with spaces, or without spaces if each token is one character."""
    return ("" if all(len(token) == 1 for token in tokens) else " ").join(tokens)


def one_line(text: str) -> str:
    """Replace tabs and line breaks by spaces, so that a text is one input line of ``predict``."""
    return re.sub(r"[\t\r\n]", " ", text)


def questions(
    path: str, lines: List[str], run: Layout, fields: Sequence[str], known: Known
) -> Tuple[List[str], Optional[Layout]]:
    """Return an input of ``predict`` for each line of a file, or for each object in JSON.

    The input is empty for a header, and for a sample with a blank text.

    Args:
      path, lines: name and content of the file.
      run: layout of the run's training file; the file at ``path`` may lack its label column.
      fields: fields that make an input: ``text``, or ``text`` and ``pair``.
      known: names of fields that are recognized if the file's columns differ from the run's.

    Returns:
      The inputs; and the layout, or None if each line is an input as it is.
    """
    alone = [(name, "") for name, _ in known.texts] * (len(fields) == 1)  # a source, no target
    known = known._replace(texts=[*known.texts, *alone])
    table = Table.of(path, lines, [])
    if table.format == "tab" and run.format == "comma" and run.header and lines:
        commas = Table.of(path, lines, [], comma=True)  # standard input has no name
        found = run.applied(commas, fields) if commas.rows else None
        table = commas if found is not None and found.header else table
    if table.bad:
        raise DataError(str(table.bad[0]._replace(path=called(path))))
    if not table.rows:
        return ([] if table.format == "json" else lines), None
    layout = decide(table, Request(needs=fields, known=known, ask=False), run)
    quoted = table.format == run.format == "quoted" and not run.header
    is_plain = len(layout.columns) == len(fields) and not (layout.named or quoted)
    is_plain &= table.format != "comma"
    fits = is_plain or layout.named or (not run.named and layout == run.applied(table, fields))
    if not fits or (layout.pair is not None and run.pair is None):
        raise DataError(
            f"{called(path)} has other columns ({layout}); the training file has: {run}"
        )
    if is_plain and (len(fields) > 1 or not any("\t" in line for line in lines)):
        return lines, None  # the recipe checks pairs
    used = {field: layout.places[field] for field in fields}
    shown = Layout(layout.format, layout.header, layout.columns, **used)
    return _inputs(table, layout, fields, len(lines)), shown


def _inputs(table: Table, layout: Layout, fields: Sequence[str], count: int) -> List[str]:
    """Return the input of each of ``count`` lines, or of each object of a JSON array."""
    rows, inputs = table.rows[layout.header :], dict.fromkeys(range(1, count + 1), "")
    unit = "line"
    if not isinstance(table.rows[0][1], str):  # of an array, several objects may be in a line
        rows, inputs, unit = [(i, row) for i, (_, row) in enumerate(rows, 1)], {}, "object"
    names = [layout.names[field] for field in fields]
    for number, content in rows:
        try:
            record = layout.values(content)
            tokens = record.get("tokens") if "tokens" in names else None
            if isinstance(tokens, list) and all(isinstance(token, str) for token in tokens):
                record["tokens"] = joined(tokens)
            values = [record.get(name, name) for name in names]  # a missing field is an error
            filled = all(value is not None and str(value).strip() for value in values)
            texts = [text_value(record, name) for name in names if filled]
            inputs[number] = "\t".join(map(one_line, texts))
        except ValueError as reason:
            raise DataError(f"{called(table.path)}, {unit} {number}: {reason}") from None
    return list(inputs.values())


def split(labels: Any, separator: str) -> List[Any]:
    """Split a text into labels, and drop blank ones; a value that is no text is one label."""
    parts = labels.split(separator) if isinstance(labels, str) else [labels]
    return [part for part in parts if not isinstance(part, str) or part.strip()]


def _number(value: str, field: str) -> str:
    """Return a finite number as text, in the shortest form with up to 12 digits."""
    number = as_number({"true": "1", "false": "0"}.get(value.lower(), value))
    if not math.isfinite(number):
        form = " (a point before decimals, no other marks)" * is_number(value)
        raise ValueError(f"{field} is {value[:40]!r}; a number is needed, such as 0.75{form}")
    return f"{number:.12g}"


def split_pairs(lines: Sequence[str]) -> Tuple[List[str], List[str]]:
    """Split lines into two texts at the tab.

    Raises:
      LineError: a line does not have one tab, with a text before and after it.
    """
    pairs = [line.split("\t") for line in lines]
    for i, texts in enumerate(pairs):
        if len(texts) != 2 or not all(map(str.strip, texts)):
            raise LineError(i, "needed: two texts with a tab between them, without a label")
    return [first for first, _ in pairs], [second for _, second in pairs]


def unusable(path: str, bad: Sequence[BadLine], total: int, left: bool = True) -> DataError:
    """Return the error about bad lines; ``total``: all lines; ``left``: some samples are left."""
    kinds = [re.sub(r"{.*}|.*; |0x\w+|\d+", "", line.reason) for line in bad]  # without values
    first = dict(zip(reversed(kinds), reversed(bad)))
    times = collections.Counter(kinds)
    reasons = sorted(first, key=lambda kind: first[kind].line)
    listed = [
        f"line {first[kind].line}: {first[kind].reason}"
        + f" ({times[kind]:,} times)" * (times[kind] > 1)
        for kind in reasons[:SHOWN_BAD_LINES]
    ]
    listed[0] = f"{path}:{first[reasons[0]].line}: {listed[0].partition(': ')[2]}"
    if len(reasons) > len(listed):
        listed.append(f"and {len(reasons) - len(listed):,} more reasons")
    hint, advice = "", "; correct them, or leave them out with --on-bad-line skip"
    if not left:
        hint = "; no sample is left: is it the right file, and are the field names right?"
        if all(line.reason.endswith("such as 0.75") for line in bad):
            hint = "; recipe classification without --regression is for labels that are names"
    if any("not UTF-8" in line.reason for line in bad):
        hint += "; UTF-8 is needed (iconv -f GB18030 -t UTF-8 converts GBK; in Europe the usual "
        hint += "name is CP1252, in Japan CP932)"
    counts = f"{len(bad):,} of {total:,} lines cannot be used"
    problem = f"{called(path)}: {counts}: {'; '.join(listed)}{hint}"
    return DataError(problem, advice * left)
