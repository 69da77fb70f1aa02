"""Decide what the columns of a file are, or raise an error that names the ways to read it."""

from __future__ import annotations

import contextlib
import math
import operator
import re
import shlex
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from amp_xla.data.text.labels import as_number, is_number
from amp_xla.data.text.layout import LABELLED, LABELLED_PAIRS, TARGETS, USUAL, Fields, Known, Layout
from amp_xla.data.text.lines import EXAMINED, Table, cells_of, count, json_object, keys, numbers
from amp_xla.data.text.unpacked import called
from amp_xla.errors import DataError

ENOUGH = 8  # rows from which on a column of different numbers or codes is an id
# Number of columns in a file without a header -> what they are
WITHOUT_HEADER = {1: ["text"], 2: ["text", "label"], 3: ["text", "pair", "label"]}
KNOWN_OTHERS = ("index", "id", "idx", "qid", "guid")
_NAMES = {*USUAL.of_texts(), *TARGETS.of_texts(), *USUAL.labels, *KNOWN_OTHERS}
_CODE = re.compile(r"[\x21-\x7e]+")
_WORD = re.compile(r"[\x21-\x7e]+|\S{1,4}")  # rather the name of a class than a text
_MARKS = (";", "|", ",")  # of columns in other files
# How each line of other formats begins -> their name, and the program of sed that converts them
_FORMATS = {
    r"__label__\S": ("fastText", r"s/^((__label__\S+ +)+)(.*)/\3\t\1/; s/__label__//g"),
    r"[A-Z]+:\w+ ": ("TREC", r"s/^([A-Z]+:\w+) +(.*)/\2\t\1/"),
}
_DIGIT, _LABELS = re.compile(r"\d"), re.compile("[,;|]")


class Request(NamedTuple):
    """The fields that a file must have, and the names by which columns are found.

    Attributes:
      fields: the columns or JSON fields that flags name.
      header: ``yes``, ``no``; None = the first line shows whether it is a header.
      needs: names of ``Fields`` that the file must have.
      known: names of fields that are recognized without a flag.
      ask: raise an error if the first line may be a header; False = read that line as a sample.
    """

    fields: Fields = Fields()
    header: Optional[str] = None
    needs: Sequence[str] = LABELLED
    known: Known = USUAL
    ask: bool = True


def decide(table: Table, request: Request, run: Optional[Layout] = None) -> Layout:
    """Return what the columns of a file are.

    Args:
      table: the rows of the file.
      request: the fields that are needed, and the columns that flags name.
      run: layout of the training file, which applies if this file has the same columns.

    Raises:
      DataError: a field is missing or the file can be read in two ways (such an error also lists
        the columns of ``run``); two columns have one name; or two flags name one column.
    """
    try:
        layout = _decided(table, request, run)
    except DataError as error:
        known = "" if run is None else f"; the training file has: {run}"
        raise DataError(error.problem + known, error.advice * request.ask) from None
    used = [layout.columns[i] for i in layout.places.values()]
    for name in used:
        if layout.columns.count(name) > 1:
            problem = f"{layout.columns.count(name)} columns are named {name!r}; rename them"
        elif used.count(name) > 1:
            fields = [field for field, other in zip(layout.places, used) if other == name]
            problem = f"column {name!r} cannot be {' and '.join(fields)}; name different ones"
        else:
            continue
        raise DataError(f"{called(table.path)}: {problem}")
    return layout


def _decided(table: Table, request: Request, run: Optional[Layout]) -> Layout:
    if table.format != "json" and (run is None or run.header):
        table = _with_row_names(table)
    layout = run.applied(table, request.needs) if run else None
    if layout is not None and layout.named:
        return layout
    if table.format == "json":
        names = keys(table)
        texts = request.known.of_texts()
        empty = [name.lower() in texts and not _has_values(table, name) for name in names]
        kinds = ["empty" if each else "text" for each in empty]
        return Layout("json", False, tuple(names), **_by_name(table, names, kinds, request))
    first, *others = _refuse_other_formats(table, request.needs)
    # If the training file has no header, an unknown label shows that this file has one.
    ask = request.ask and (run is None or run.header or run.label is None)
    header = _has_header(table, first, others, request._replace(ask=ask))
    names = first if header else list(numbers(first))
    columns = list(zip(*(others if header else [first, *others]))) or [()] * len(first)
    kinds = list(map(_kind, columns))
    if run is not None and layout is not None and not header:
        # If a column is missing, it is the label only if the unused ones are no texts.
        unused = set(range(len(first))) - {*layout.places.values()}
        other = len(first) < len(run.columns) and any(kinds[i] == "text" for i in unused)
        if not other and not _doubtful(layout.places, columns, kinds):
            return layout
    if any(request.fields) or (header and _NAMES & set(map(str.lower, first))):
        places = _by_name(table, names, kinds, request)
    else:
        places = _by_number(table, columns, kinds, request)
    return Layout(table.format, header, tuple(names), **places)


def _with_row_names(table: Table) -> Table:
    """Add an empty first cell to the header if it has one cell less than the rows, as from R.

    Do so only if the first cells of all rows differ. If commas separate cells, the first cells
    must also be numbers.
    """
    (number, head), *below = table.rows[:EXAMINED]
    names = [row.partition("\t")[0] for _, row in below]
    numbered = len(set(names)) == len(names)
    numbered &= table.format != "comma" or all(map(str.isdigit, names))
    columns = {row.count("\t") for _, row in below}
    if numbered and "\t" in head and columns == {head.count("\t") + 1}:
        return table._replace(rows=[(number, f"\t{head}"), *table.rows[1:]])
    return table


def _refuse_other_formats(table: Table, needs: Sequence[str]) -> List[List[str]]:
    """Return the rows with as many cells as the first; raise ``DataError`` for other formats."""
    for begin, (name, program) in _FORMATS.items():
        if "label" in needs and all(re.match(begin, line) for _, line in table.rows):
            raise DataError(
                f"{called(table.path)}: looks like {name}: the label is before the text; "
                f"sed -E '{program}' {table.path} > new-file converts it"
            )
    rows = [cells_of(line) for _, line in table.rows[:EXAMINED]]
    even = [row for row in rows if len(row) == len(rows[0])]
    marks = [mark for mark in _MARKS if all(mark in line for _, line in table.rows)]
    uneven = len(rows[0]) == 1 or 2 * len(even) < len(rows) + 1
    if marks and uneven and len(needs) > 1:
        raise DataError(
            f"{called(table.path)}: {count(rows[0])}, but every line has {marks[0]!r}; only tabs "
            f"and, in a .csv file, commas separate columns. First line: {table.rows[0][1][:80]!r}"
        )
    return even


def _has_values(table: Table, name: str) -> bool:
    """Return whether a JSON field is more than blank text, null, 0, false or empty in any row."""
    for _, content in table.rows:
        with contextlib.suppress(ValueError):
            if str(json_object(content).get(name) or "").strip():
                return True
    return False


def _has_words(cell: str) -> bool:
    """Return whether a cell has more letters than digits, unlike times and prices."""
    return sum(map(str.isalpha, cell)) > sum(map(str.isdigit, cell))


def _kind(cells: Sequence[str]) -> str:
    """Return what the values of a column are: empty, number, id or text."""
    filled = [cell for cell in cells if cell]
    if not filled:
        return "empty" if cells else "text"
    differ = len(set(cells)) == len(cells) >= ENOUGH
    if all(math.isfinite(as_number(cell)) for cell in filled):  # 1,5 may be a code
        return "id" if differ and all(map(str.isdigit, filled)) else "number"
    digits, codes = (all(map(each, filled)) for each in (_DIGIT.search, _CODE.fullmatch))
    numeric = digits and not any(map(_has_words, filled))
    same_length = len(set(map(len, filled))) == 1 and len(filled[0]) >= ENOUGH
    if differ and (numeric or (codes and (digits or same_length))):
        return "id"
    return "number" if numeric else "text"


def _has_header(
    table: Table, first: Sequence[str], others: Sequence[Sequence[str]], request: Request
) -> bool:
    """Return whether the first row is a header; raise ``DataError`` if that is not clear."""
    if request.header or any(name and not name.isdigit() for name in request.fields):
        return request.header != "no"
    columns = list(zip(*others)) or [()] * len(first)
    values = set().union(*(row for row in others if row != first))  # joined files repeat a header
    usual = [cell for cell in first if cell.lower() in _NAMES and cell not in values]
    signs = list(filter(None, map(_sign, first, columns)))
    if len(others) > 2 and not any(map(operator.contains, columns, first)):
        lengths = [(len(name), min(map(len, column))) for name, column in zip(first, columns)]
        if any(2 * own < least for own, least in lengths) or all(a < b for a, b in lengths):
            signs.append("its values never occur again and are shorter than others")
    if len(usual) > 1 or (usual and (signs or len(first) == 1)):
        return True
    signs += [f"{name!r} is a usual name of a column" for name in usual]
    if signs and request.ask:
        number, line = table.rows[0]
        raise DataError(
            f"{called(table.path)}:{number}: is {line[:60]!r} a header? {signs[-1]}",
            f". If it is, give --header yes, or its names: {_flags(request.needs, ['NAME'] * 3)}; "
            "if it is a sample, --header no; if it is neither, such as a title, delete it",
        )
    return False


def _sign(cell: str, column: Sequence[str]) -> str:
    """Return why the first cell of a column looks like a header; empty if it does not."""
    numbers = set(map(is_number, column))
    if cell and len(column) > 1 and numbers == {not is_number(cell)}:
        return f"only {cell[:40]!r} is {'a' if is_number(cell) else 'no'} number in its column"
    if cell and cell.isascii() and len(column) > 2 and not any(map(str.isascii, column)):
        return f"only {cell[:40]!r} is ASCII in its column"
    # A sample may have several labels.
    own, parts = (
        {p.strip() for c in cells for p in _LABELS.split(c)} for cells in ([cell], column)
    )
    recur = len(column) > 2 and len(column) >= 2 * len(set(column))
    return f"{cell[:40]!r} never occurs again" if cell and recur and not own & parts else ""


def _flags(fields: Sequence[str], names: Sequence[Any]) -> str:
    return " ".join(f"--{f}-field {shlex.quote(str(name))}" for f, name in zip(fields, names))


def _by_name(
    table: Table, columns: Sequence[str], kinds: Sequence[str], request: Request
) -> Dict[str, int]:
    """Return field -> column, found by flags, by known names, or as the only column left."""
    wanted, needs, known = request.fields, request.needs, request.known
    is_json, places = table.format == "json", {}
    shown = (f"{name!r}{' (empty)' * (k == 'empty')}" for name, k in zip(columns, kinds))
    listed = f"found: {', '.join(shown)[:300]}"

    def error(problem: str, advice: str = "") -> DataError:
        return DataError(f"{called(table.path)}: {problem}", advice)

    for field, name in wanted._asdict().items():
        if name in columns:
            places[field] = columns.index(name)
        elif name and name.isdigit() and int(name) < len(columns) and not is_json:
            places[field] = int(name)
        elif name is not None:
            raise error(f"no field {name!r} for --{field}-field; {listed}")
    free = [i for i, k in enumerate(kinds) if i not in places.values() and k != "empty"]
    lower = {columns[i].lower(): i for i in reversed(free) if columns[i]}
    pairs = [(a, b) for a, b in known.texts if a in lower and (not b or b in lower)]
    if "text" not in places and pairs:
        places = {**{f: lower[n] for f, n in zip(Fields._fields, pairs[0]) if n}, **places}
    # XLSum has a title and a summary of a text; Alpaca an instruction and its input.
    whole = [pair for pair in pairs if pair[1] and set(pair) & set(pairs[0])]
    if len(whole) > 1 and "pair" in needs and not any(wanted):
        ways = ", or ".join(_flags(Fields._fields, [columns[lower[n]] for n in p]) for p in whole)
        raise error(f"{listed}; which are the texts?", f" Name them: {ways}")
    labels = list(dict.fromkeys(columns[i] for i in free if columns[i].lower() in known.labels))
    if "label" not in places and labels:
        if len(labels) > 1:
            raise error(f"{' and '.join(labels)} may be the label", "; name it with --label-field")
        places["label"] = columns.index(labels[0])
    free = [i for i in free if i not in places.values() and kinds[i] != "id"]
    free = [i for i in free if columns[i].lower() not in KNOWN_OTHERS]
    texts = {i: columns[i].lower() for i in free if kinds[i] == "text"}
    if not is_json and not any(wanted):
        places.update(_only_left(texts, free, places, request))
    rivals = [columns[i] for i, name in texts.items() if name in known.of_texts()]
    rivals = [name for name in rivals if columns.count(name) == 1]  # others are refused
    if rivals and pairs and "pair" not in places and wanted.text is None:
        text = columns[places["text"]]
        both = _flags(("text", "pair"), (rivals[0], text))
        raise error(
            f"which is the text? {listed}",
            f"; name the text: {_flags(['text'], [text])}, or both: {both}",
        )
    for field in filter(lambda field: field not in places, needs):
        kind = "second text" if field == "pair" else field
        raise error(f"which field is the {kind}? {listed}", f"; name it with --{field}-field")
    return places


def _only_left(
    texts: Dict[int, str], free: Sequence[int], places: Dict[str, int], request: Request
) -> Dict[str, int]:
    """Return field -> column for fields not in ``places``; empty if several columns would do."""
    if "text" not in places and ("label" in places or "label" not in request.needs):
        alike = len({re.sub("[12ab]$", "", name) for name in texts.values()}) == 1
        if len(texts) == 1 or (len(texts) == 2 and (alike or "pair" in request.needs)):
            return dict(zip(("text", "pair"), texts))
    elif request.known.labels and "text" in places and "label" not in places and len(free) == 1:
        return {"label": free[0]}
    return {}


def doubt(layout: Layout, known: Known, data: Dict[str, List[str]]) -> str:
    """Return why guessed columns may be wrong, or an empty text; ``data``: field -> its values."""
    names = {field: layout.columns[layout.places[field]] for field in data}
    fields = [field for field in ("text", "pair") if field in data]
    if len(data["text"]) < ENOUGH or len(set(zip(*data.values()))) == 1:
        return ""
    for field in fields:
        if len(set(data[field])) == 1:
            only = data[field][0][:60]
            return f"column {names[field]!r} has only {only!r}; name the {field}: --{field}-field"
    usual = tuple(names[field].lower() for field in fields) in known.texts
    lengths = [sum(map(len, data[field])) for field in fields]
    if known.labels or usual or len(fields) == 1 or 2 * lengths[0] >= lengths[1]:
        return ""
    ways = [_flags(fields, [names[field] for field in each]) for each in (fields[::-1], fields)]
    return (
        f"column {names['pair']!r} is longer than {names['text']!r}; which is the target "
        f"(--pair-field)? {', or '.join(ways)}"
    )


def _differ(cells: Sequence[str]) -> bool:
    """Return whether a column has at least ``ENOUGH`` values, and nearly all of them differ."""
    return len(cells) >= ENOUGH and 10 * len(set(cells)) >= 9 * len(cells)


def _doubtful(
    places: Dict[str, int], columns: Sequence[Sequence[str]], kinds: Sequence[str]
) -> List[int]:
    """Return the columns that were chosen as texts, but seem to be numbers, ids or labels."""
    texts = [places[field] for field in ("text", "pair") if field in places]
    others = [i for i, kind in enumerate(kinds) if kind == "text" and _differ(columns[i])]
    doubtful = [i for i in texts if kinds[i] == "number" or (kinds[i] == "id" and others)]
    label = places.get("label", texts[0])
    text_count, label_count = (len(set(columns[i])) for i in (texts[0], label))
    swapped = kinds[label] == "text" and label_count >= max(ENOUGH, 2 * text_count)
    return doubtful + texts[:1] * swapped


def _by_number(
    table: Table, columns: Sequence[Sequence[str]], kinds: Sequence[str], request: Request
) -> Dict[str, int]:
    """Return field -> column by position; of more columns than needed, skip empty ones and ids."""
    needs, known, last = request.needs, request.known, len(kinds) - 1
    ids = kinds[last] == "id" and all(map(is_number, columns[last]))  # or labels
    free = list(range(len(kinds)))
    if len(free) > len(needs):
        free = [i for i in free if kinds[i] not in ("id", "empty") or (ids and i == last)]
    usual = WITHOUT_HEADER.get(len(free), [])
    usual = ["text", "pair"] if len(free) == 2 and "pair" in needs else usual
    if not (set(needs) <= set(usual) and (known.labels or "label" not in usual)):
        marks, mark = ("commas", ",") if table.format == "comma" else ("tabs", "<TAB>")
        both = dict.fromkeys(mark.join(form) for form in (needs, known.labels and LABELLED_PAIRS))
        forms = ", or ".join(filter(None, both)).replace("pair", "second text")
        flags = " and ".join(f"--{name}-field" for name in needs)
        number, line = table.rows[0]
        raise DataError(
            f"{called(table.path)}:{number}: {count(columns)} separated by {marks}, and no known "
            f"header (first line: {line[:80]!r}). Needed: {forms}",
            f"; or a header line, with {flags} if its names are unusual; or {flags} with column "
            "numbers from 0",
        )
    places = dict(zip(usual, free))
    texts = [places[field] for field in ("text", "pair") if field in places]
    doubtful = _doubtful(places, columns, kinds)
    words = [i for i in free if all(map(_WORD.fullmatch, columns[i]))]
    if "pair" in places and "pair" not in needs:
        sizes = {i: (len(columns[i]), len(set(columns[i]))) for i in texts}
        few = [i for i, (n, k) in sizes.items() if k <= min(n // 2, max(2, n // 10))]
        doubtful += [i for i in texts if i in words] + few + [last] * ids
    if "label" in places:
        label = places["label"]
        is_name = kinds[last] != "id" and not all(map(is_number, columns[last]))
        doubtful += [label] * (is_name and _differ(columns[label]))
        is_text = kinds[last] == "text" and label not in words
        doubtful += [i for i in texts[:1] if is_text and i in words]
    if doubtful and len(free) > 1 and columns[0]:  # else there is no row below the header
        other = [i for i in free if i != doubtful[0]] + doubtful[:1]
        other = free[::-1] if len(free) == 2 else other
        raise DataError(
            f"{called(table.path)}: column {doubtful[0]} ({columns[doubtful[0]][0][:40]!r}, ...) "
            f"does not look like {'a text' if doubtful[0] in texts else 'a label'}",
            f"; name the columns to read, such as {_flags(usual, free)}, or {_flags(needs, other)}",
        )
    return places
