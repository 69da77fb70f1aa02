"""What the columns of a file are: decided once from the training file, and stored in the run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
import shlex
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from amp_xla.data.text.lines import Table, called, json_object, read_bytes
from amp_xla.errors import DataError

LAYOUT = "layout.json"
EXAMINED = 10_000  # rows that decide what a column is
EXAMINED_KEYS = 100  # JSON objects whose keys are collected: the first may lack a key
ENOUGH = 5  # rows from which on a column of different numbers or codes is an id
# Number of columns in a file without a header -> what they are
WITHOUT_HEADER = {1: ["text"], 2: ["text", "label"], 3: ["text", "pair", "label"]}
LABELLED, LABELLED_PAIRS = ("text", "label"), ("text", "pair", "label")  # required fields
KNOWN_OTHERS = ("index", "id", "idx", "qid", "guid")
_CODE = re.compile(r"[\x21-\x7e]+")
_WORD = re.compile(r"[\x21-\x7e]+|\S{1,4}")  # rather the name of a class than a text
_DIGIT = re.compile(r"\d")


class Known(NamedTuple):
    """Names of fields that are recognized without a flag.

    Attributes:
      texts: (name of the text, name of the second text or ""); the first pair in a file is used.
      labels: names of the label.
    """

    texts: Sequence[Tuple[str, str]]
    labels: Sequence[str] = ()

    def of_texts(self) -> List[str]:
        """Return the names of texts and second texts."""
        return [name for pair in self.texts for name in pair if name]


def _names(listed: str) -> List[Tuple[str, str]]:
    return [(name.partition("/")[0], name.partition("/")[2]) for name in listed.split(", ")]


# GLUE's (MRPC has "#1 String") and CLUE's, then usual names.
USUAL = Known(
    _names(
        "text/pair, sentence1/sentence2, question1/question2, premise/hypothesis, "
        "question/sentence, #1 string/#2 string, text_a/text_b, text1/text2, query/title, "
        "sentence, text, review, content, question, comment, message, tweet, utterance, text_a, "
        "文本, 内容, 评论, 评论内容"
    ),
    "label gold_label is_duplicate quality score labels class category sentiment intent emotion "
    "标签 类别 情感 意图".split(),
)
# Source and target: CSL's titles, LCSTS, then usual names. The first is the longer text.
TARGETS = Known(
    _names(
        "text/pair, source/target, abst/title, abstract/title, content/title, text/title, "
        "text/summary, content/summary, article/summary, document/summary, question/answer, "
        "input/output, prompt/response"
    )
)
_NAMES = {*USUAL.of_texts(), *TARGETS.of_texts(), *USUAL.labels, *KNOWN_OTHERS}


class Fields(NamedTuple):
    """Names of the fields to read; None = there is no such field, or no flag names it."""

    text: Optional[str] = None
    pair: Optional[str] = None
    label: Optional[str] = None


class Request(NamedTuple):
    """What a recipe needs of a file.

    Attributes:
      fields: names that flags give.
      header: ``yes``, ``no``; None = the first line shows whether it is a header.
      needs: names of ``Fields`` that a file must have.
      known: names of fields that are recognized without a flag.
      separator: text between the labels of a sample; None = each sample has one label.
      ask: raise an error if the first line may be a header; else it is then a sample.
    """

    fields: Fields = Fields()
    header: Optional[str] = None
    needs: Sequence[str] = LABELLED
    known: Known = USUAL
    separator: Optional[str] = None
    ask: bool = True


@dataclasses.dataclass(frozen=True)
class Layout:
    """What the columns of a file are.

    Attributes:
      format: as in ``Table``, or ``conll``.
      header: the first line has the names of the columns.
      columns: their names or, without a header, their numbers from 0.
      text, pair, label: indices into ``columns``; None = there is no such column.
    """

    format: str
    header: bool
    columns: Tuple[str, ...]
    text: Optional[int] = None
    pair: Optional[int] = None
    label: Optional[int] = None

    @property
    def places(self) -> Dict[str, int]:
        """Field -> index of its column."""
        places = {"text": self.text, "pair": self.pair, "label": self.label}
        return {field: place for field, place in places.items() if place is not None}

    def __str__(self) -> str:
        """Return the line to print at the start of a run."""
        numbered, named = self.format != "json", self.header or self.format == "json"
        shown = [
            " ".join([str(i)] * numbered + [json.dumps(name, ensure_ascii=False)] * named)
            for i, name in enumerate(self.columns)
        ]
        kind = {"json": "JSON", "conll": "CoNLL"}.get(self.format, "header")
        kind = f"no {kind}" if kind == "header" and not self.header else kind
        used = ", ".join(f"{field} = {shown[i]}" for field, i in self.places.items())
        unused = [name for i, name in enumerate(shown) if i not in self.places.values()]
        return f"columns: {used} ({kind})" + (f"; {', '.join(unused)} unused" if unused else "")

    def values(self, content: Any) -> Tuple[Dict[str, Any], Dict[str, str]]:
        """Return a row's values by name, and the names of its fields.

        Raises:
          ValueError: it is no JSON object, or has another number of columns.
        """
        if self.format == "json":
            return json_object(content), {f: self.columns[i] for f, i in self.places.items()}
        cells = content.split("\t")
        if len(cells) != len(self.columns):
            raise ValueError(f"{count(cells)}, not {len(self.columns)}")
        if self.header and [cell.strip() for cell in cells] == list(self.columns):
            raise ValueError("the header again")
        names = {f: self.columns[i] if self.header else f for f, i in self.places.items()}
        return {names[f]: cells[i] for f, i in self.places.items()}, names

    def encoded(self) -> bytes:
        """Return the layout as JSON, the content of ``layout.json``."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False).encode() + b"\n"

    @classmethod
    def load(cls, path: str) -> Layout:
        """Read a file that ``encoded`` wrote; its checksum is verified with the checkpoint."""
        stored = json.loads(read_bytes(path).decode("utf-8"))
        return cls(**{**stored, "columns": tuple(stored["columns"])})

    def applied(self, table: Table, request: Request) -> Optional[Layout]:
        """Return the layout of another file with the same columns; None if it has others.

        Columns are found by name, in any order, or by number if there is no header; a label that
        is not needed may be missing.
        """
        own = {field: self.columns[i] for field, i in self.places.items()}
        columns = keys(table) if table.format == "json" else first_cells(table)
        needed = {own[field] for field in request.needs if field in own}
        if (self.header or self.format == "json") and needed <= set(columns):
            found = {field: columns.index(name) for field, name in own.items() if name in columns}
            return Layout(table.format, table.format != "json", tuple(columns), **found)
        fewer = len(self.columns) - len(columns)
        label_missing = fewer == 1 and self.label == len(columns) and "label" not in request.needs
        if "json" in (self.format, table.format) or (fewer and not label_missing):
            return None
        label = None if label_missing else self.label
        return Layout(table.format, False, _numbers(columns), self.text, self.pair, label)


def decide(table: Table, request: Request, run: Optional[Layout] = None) -> Layout:
    """Return what the columns of a file are.

    Args:
      table: its rows.
      request: what is needed, and what flags name.
      run: layout of the training file, which applies if this file has the same columns.

    Raises:
      DataError: a field is missing, or the file can be read in two ways.
    """
    layout = run.applied(table, request) if run else None
    if layout is not None and (layout.header or layout.format == "json"):
        return layout
    if table.format == "json":
        names = keys(table)
        choice = _Choice(table, names, ["text"] * len(names), request)
        places = choice.by_name()
        pair = places.get("pair")
        free = pair is not None and "pair" not in request.needs and not request.fields.pair
        if free and all(_is_blank(content, names[pair]) for _, content in table.rows):
            choice.kinds[pair] = "empty"
            places = choice.by_name()
        return Layout("json", False, tuple(names), **places)
    first, *others = [
        [cell.strip() for cell in line.split("\t")] for _, line in table.rows[:EXAMINED]
    ]
    others = [row for row in others if len(row) == len(first)]
    # If the training file has no header, a header is found by its labels, which nobody has seen.
    ask = request.ask and (run is None or run.header)
    header = _has_header(table, first, others, request._replace(ask=ask))
    names = first if header else _numbers(first)
    columns: Any = list(zip(*(others if header else [first, *others]))) or [()] * len(first)
    choice = _Choice(table, names, list(map(_kind, columns)), request)
    if layout is not None and not header and choice.kinds[layout.places["text"]] != "number":
        return layout
    named = any(request.fields) or (header and _NAMES & set(map(str.lower, first)))
    places = choice.by_name() if named else choice.by_number(columns)
    return Layout(table.format, header, tuple(names), **places)


def first_cells(table: Table) -> List[str]:
    """Return the cells of the first row."""
    return [cell.strip() for cell in table.rows[0][1].split("\t")]


def keys(table: Table) -> List[str]:
    """Return the keys of the first JSON objects."""
    found: Dict[str, None] = {}
    for _, content in table.rows[:EXAMINED_KEYS]:
        with contextlib.suppress(ValueError):  # reported later, with the line number
            found.update(dict.fromkeys(json_object(content)))
    if not found:
        number, content = table.rows[0]
        raise DataError(
            f"{called(table.path)}:{number}: not a JSON object: {str(content)[:60]!r}; objects "
            "are needed, one per line or in an array"
        )
    return list(found)


def _numbers(cells: Sequence[str]) -> Tuple[str, ...]:
    return tuple(map(str, range(len(cells))))


def count(cells: Sequence[str]) -> str:
    """Return the number of columns as words."""
    return "1 column" if len(cells) == 1 else f"{len(cells)} columns"


def _is_blank(content: Any, field: str) -> bool:
    with contextlib.suppress(ValueError):
        value = json_object(content).get(field)
        return value is None or (isinstance(value, str) and not value.strip())
    return True


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _kind(cells: Sequence[str]) -> str:
    """Return what the values of a column are: empty, number, id or text."""
    filled = [cell for cell in cells if cell]
    if cells and not filled:
        return "empty"
    if filled and all(map(_is_number, filled)):
        is_id = _differ(cells) and all(map(str.isdigit, filled))
        return "id" if is_id else "number"
    coded = all(map(_CODE.fullmatch, filled)) and _differ(cells)
    same = len(set(map(len, filled))) == 1 and len(filled[0]) >= ENOUGH
    return "id" if coded and (same or all(map(_DIGIT.search, filled))) else "text"


def _differ(cells: Sequence[str]) -> bool:
    return len(set(cells)) == len(cells) >= ENOUGH


def _has_header(
    table: Table, first: Sequence[str], others: Sequence[Sequence[str]], request: Request
) -> bool:
    """Return whether the first row is a header; raise ``DataError`` if that is not clear."""
    if request.header or any(name and not name.isdigit() for name in request.fields):
        return request.header != "no"
    columns = list(zip(*others)) or [()] * len(first)
    values = set().union(*(row for row in others if row != first))  # files joined repeat headers
    usual = [cell for cell in first if cell.lower() in _NAMES and cell not in values]
    signs = [
        f"of column {number}, {sign}"
        for number, (cell, column) in enumerate(zip(first, columns))
        for sign in [_sign(cell, column, request.separator)]
        if sign
    ]
    if "label" not in request.needs and all(map(_is_short, first, columns)):
        signs.append("each of its values is shorter than all others of the column")
    if len(usual) > 1 or (usual and (signs or len(first) == 1)):
        return True
    signs += [f"{name!r} is a usual name of a column" for name in usual]
    if signs and request.ask:
        number, line = table.rows[0]
        raise DataError(
            f"{called(table.path)}:{number}: is {line[:60]!r} a header? {signs[-1]}. If it is, "
            f"give --header yes, or its names: {_flags(request.needs, ['NAME'] * 3)}; if it is a "
            "sample, --header no"
        )
    return False


def _sign(cell: str, column: Sequence[str], separator: Optional[str]) -> str:
    """Return why the first cell of a column seems to be its name; an empty string if it does not.

    Args:
      cell, column: the first cell, and the others.
      separator: text between several labels in a cell.
    """
    numbers = set(map(_is_number, column))
    if len(column) > 1 and cell and numbers == {not _is_number(cell)}:
        return f"only {cell[:40]!r} is {'a' if _is_number(cell) else 'no'} number"
    recur = len(column) > 2 and len(column) >= 2 * len(set(column))
    if recur and cell and not _parts([cell], separator) & _parts(column, separator):
        return f"{cell[:40]!r} never occurs again, and other values do"
    return ""


def _parts(cells: Sequence[str], separator: Optional[str]) -> Set[str]:
    if separator is None:
        return set(cells)
    return {part.strip() for cell in set(cells) for part in cell.split(separator)}


def _is_short(cell: str, column: Sequence[str]) -> bool:
    return len(column) >= ENOUGH and len(cell) < min(map(len, column))


def _flags(fields: Sequence[str], names: Sequence[Any]) -> str:
    """Return flags that name columns, for a message."""
    named = zip(fields, map(str, names))
    return " ".join(f"--{field}-field {shlex.quote(name)}" for field, name in named)


class _Choice:
    """Columns to choose from.

    Args:
      table: the rows.
      columns: names of the columns, or their numbers.
      kinds: what the values of each column are, see ``_kind``.
      request: what is needed, and what flags name.
    """

    def __init__(
        self, table: Table, columns: Sequence[str], kinds: List[str], request: Request
    ) -> None:
        self.path, self.columns, self.kinds, self.request = (
            called(table.path),
            columns,
            kinds,
            request,
        )
        self.format, self.first = table.format, table.rows[0]

    def by_name(self) -> Dict[str, int]:
        """Return the columns that flags or known names say, or that alone are left."""
        wanted, needs, known = self.request.fields, self.request.needs, self.request.known
        places: Dict[str, int] = {}
        for field, name in wanted._asdict().items():
            if name in self.columns:
                places[field] = self.columns.index(name)
            elif (
                name and name.isdigit() and int(name) < len(self.columns) and self.format != "json"
            ):
                places[field] = int(name)
            elif name is not None:
                raise self._error(f"no field {name!r} for --{field}-field; found:")
        lower = {
            name.lower(): i for i, name in reversed(list(enumerate(self.columns)))
            if self.kinds[i] != "empty" and i not in places.values()
        }  # fmt: skip
        if "text" not in places:
            for first, second in known.texts:
                if first in lower and (not second or second in lower):
                    places["text"] = lower[first]
                    if second:
                        places.setdefault("pair", lower[second])
                    break
        labels = {lower[name]: name for name in known.labels if name in lower}
        if "label" not in places and labels:
            if len(labels) > 1:
                raise self._error(f"which of {' and '.join(labels.values())} is the label", "label")
            places["label"] = min(labels)
        free = [
            i for i, kind in enumerate(self.kinds)
            if i not in places.values() and kind not in ("id", "empty")
            and self.columns[i].lower() not in KNOWN_OTHERS
        ]  # fmt: skip
        texts = [i for i in free if self.kinds[i] == "text"]
        if self.format != "json" and not any(wanted):
            if "text" not in places and ("label" in places or "label" not in needs):
                names = [re.sub(r"[12ab]$", "", self.columns[i].lower()) for i in texts]
                alike = len(names) == 2 and len(set(names)) == 1
                if len(texts) == 1 or (len(texts) == 2 and ("pair" in needs or alike)):
                    places.update(zip(("text", "pair"), texts))
            elif "text" in places and "label" not in places and len(free) == 1:
                places["label"] = free[0]
        rivals = [self.columns[i] for i in texts if self.columns[i].lower() in known.of_texts()]
        rivals = [name for name in rivals if self.columns.index(name) not in places.values()]
        if wanted.text is None and "text" in places and "pair" not in places and rivals:
            text = self.columns[places["text"]]
            raise self._error(
                f"{text!r} and {rivals[0]!r} may be the text: {_flags(['text'], [text])}, or "
                f" {_flags(('text', 'pair'), (rivals[0], text))}; found:"
            )
        for field in Fields._fields:
            if field in needs and field not in places:
                kind = "second text" if field == "pair" else field
                raise self._error(f"which field is the {kind}", field)
        return places

    def by_number(self, columns: Sequence[Sequence[str]]) -> Dict[str, int]:
        """Return the columns by their order, without empty ones and ids.

        Args:
          columns: the values of each column.
        """
        needs, known, kinds = self.request.needs, self.request.known, list(self.kinds)
        ids = kinds[-1:] == ["id"] and all(map(_is_number, columns[-1]))
        if ids:
            kinds[-1] = "number"  # perhaps labels
        free = list(range(len(kinds)))
        if len(free) > len(needs):
            free = [i for i in free if kinds[i] not in ("id", "empty")]
        usual = WITHOUT_HEADER.get(len(free), [])
        usual = ["text", "pair"] if len(free) == 2 and "pair" in needs else usual
        if not (set(needs) <= set(usual) and (known.labels or "label" not in usual)):
            raise self._unknown()
        places = dict(zip(usual, free))
        texts = [places[field] for field in ("text", "pair") if field in places]
        doubtful = [i for i in texts if kinds[i] == "number"]
        if "pair" in places and "pair" not in needs:
            doubtful += [i for i in texts if all(map(_WORD.fullmatch, columns[i]))]
            doubtful += [len(kinds) - 1] * ids
        if doubtful and len(free) > 1:
            other = [i for i in free if i != doubtful[0]] + doubtful[:1]
            ways = (_flags(*zip(*places.items())), _flags(needs, other))
            raise DataError(
                f"{self.path}: column {doubtful[0]}, such as {columns[doubtful[0]][0][:40]!r}, may "
                f"be no {'label' if doubtful[0] not in texts else 'text'}; name the columns to "
                f"read, such as {ways[0]}, or {ways[1]}"
            )
        return places

    def _error(self, problem: str, field: str = "") -> DataError:
        flag = f"; name it with --{field}-field" if field else ""
        found = "? found:" if field else ""
        names = ", ".join(map(repr, self.columns))
        return DataError(f"{self.path}: {problem}{found} {names}{flag}")

    def _unknown(self) -> DataError:
        needs, known = self.request.needs, self.request.known
        marks, mark = ("commas", ",") if self.format == "comma" else ("tabs", "<TAB>")
        forms = dict.fromkeys(mark.join(form) for form in (needs, known.labels and LABELLED_PAIRS))
        listed = ", or ".join(filter(None, forms)).replace("pair", "second text")
        flags = " and ".join(f"--{name}-field" for name in needs)
        number, line = self.first
        return DataError(
            f"{self.path}:{number}: {count(self.columns)} between {marks}, and no known header. "
            f"Needed: {listed}; or a header line, with {flags} if its names are unusual; or "
            f"{flags} with column numbers from 0. First line: {line[:80]!r}"
        )
