"""Read texts with named entities: columns as in CoNLL, or JSON; compressed or not."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import re
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

from amp_xla.data.text.layout import Layout
from amp_xla.data.text.lines import TAG, BadLine, Table, every_line, json_object, keys, numbers
from amp_xla.data.text.readers import Dataset, collected, joined, refuse_rejected, text_value
from amp_xla.data.text.unpacked import called
from amp_xla.errors import DataError

DOCUMENT = "-DOCSTART-"  # separates documents in CoNLL 2003
# Labels of CoNLL 2003's third column
CHUNKS = set(" NP VP PP ADJP ADVP SBAR PRT CONJP INTJ LST UCP NC VC PC".split(" "))
SCHEMES = ("BI", "BIES", "BMES", "BILU")
_BETWEEN_TAGS = re.compile(r"[\s\x02]+")
POSITION = re.compile(r".\d")
FIELDS = ["entities", "label", "labels", "spans"]  # names of the list of entities
TAGS = ["ner_tags", "tags", "labels"]  # names of the list of tags, in objects with tokens
# Names of an entity's start, end, label and words
KEYS = (
    ("start", "start_idx", "start_offset"), ("end", "end_idx", "end_offset"),
    ("label", "type", "entity_type", "labels"), ("text", "entity", "word", "mention"),
)  # fmt: skip


class Entity(NamedTuple):
    """An entity of a text: the characters ``text[start:end]``."""

    start: int
    end: int
    label: str

    def shown(self, text: str) -> str:
        """Return positions, label and words, for people to read."""
        return f"{self.start}:{self.end} {self.label} {text[self.start : self.end]}"


def pack(entities: Sequence[Entity]) -> str:
    """Return entities as JSON, ``[[start, end, label], ...]``, sorted and without duplicates."""
    return json.dumps(sorted(set(entities)), ensure_ascii=False)


def unpack(label: str) -> List[Entity]:
    """Return the entities that ``pack`` wrote."""
    return [Entity(*entity) for entity in json.loads(label)]


def chunks(tags: Sequence[str]) -> List[Entity]:
    """Return the entities of BIO, BIOES, BMES or BILOU tags; start and end are indices.

    An invalid sequence, such as I after O, begins a new entity, as in seqeval.
    """
    entities: List[Entity] = []
    begin, before, label = 0, "O", ""
    for i, tag in enumerate([*tags, "O"]):
        kind, _, name = tag.partition("-")
        new = kind in "OBSU" or before in "OELSU" or name != label
        if new and before != "O":
            entities.append(Entity(begin, i, label))
        if new:
            begin, label = i, name
        before = kind
    return entities


def read(path: str, nested: bool = True, on_bad_line: str = "error") -> Dataset:
    """Read a file of texts with entities; its name and its first line show the format.

    docs/tasks/tagging.md lists the formats: columns of tokens and tags, and two kinds of JSON.

    Args:
      path: the file; ``-`` is standard input.
      nested: False = overlapping entities are an error.
      on_bad_line: ``"error"`` raises for unusable lines, ``"skip"`` returns them in ``bad_lines``.

    Returns:
      The texts; the label of a text is its entities as ``pack`` writes them.
    """
    lines, bad = every_line(path)
    table, remark, total = Table.of(path, lines, bad), "", 0
    read_one: Callable[[Any], Tuple[str, List[Entity]]] = _joined
    if table.format == "json":
        names = keys(table)
        tags = [name for name in TAGS if name in names and "tokens" in names]
        if tags and not ("text" in names and {*names} & {*FIELDS}):
            layout = Layout.of_objects(names, tags, "tokens")
            places = _texts(path, _tagged(table, tags[0]), bad)
        else:
            layout = Layout.of_objects(names, FIELDS)
            read_one, places = _from_json, table.rows
    else:
        rows = list(map(split, lines))
        for before, row in zip([[], *rows], rows):
            if row[:1] == ["#"] and not before and not TAG.fullmatch(row[-1]):
                row.clear()  # a comment before a text, as in GermEval and MultiCoNER
        total = sum(map(bool, rows)) + len(bad)
        layout, remark = _columns(path, rows, table.format)
        places = _texts(path, enumerate(rows, 1), bad)

    def sample(content: Any) -> Tuple[str, None, str]:
        text, entities = read_one(content)
        ordered = sorted(set(entities))
        for one, other in zip(ordered, ordered[1:]):
            if other.start < one.end and not nested:
                raise ValueError(
                    f"entities {one.start}:{one.end} and {other.start}:{other.end} overlap, which "
                    "this head cannot predict; use --head global_pointer"
                )
        return text, None, pack(entities)

    data = collected(path, places, sample, bad, on_bad_line, total)
    return dataclasses.replace(data, layout=layout, remark=remark)


def _columns(path: str, rows: Sequence[List[str]], kind: str) -> Tuple[Layout, str]:
    """Return the layout, and warnings; raise ``DataError`` if tokens or tags are misplaced."""
    filled = [row for row in rows if row and row[0] != DOCUMENT] or [["", ""]]
    cells, first = numbers(filled[0]), [row[0] for row in filled]
    again = sum(a == b for a, b in zip(first, first[1:]))
    numbered = 2 * again > len(first) or all(map(str.isdigit, first))
    if len(cells) > 2 and numbered and kind != "comma":
        raise DataError(
            f"{called(path)}: column 0 numbers the tokens or the texts (1, 2, ...); the token must "
            f"be in column 0, and its tag in the last column (cut -f 2- removes column 0)"
        )
    _refuse_two_tags(path, filled)
    remark = _positions(first)
    filled_lines = [number for number, row in enumerate(rows) if row]
    if 512 < len(first) == filled_lines[-1] - filled_lines[0] + 1:  # probably several texts
        remark += f"\nwarning: no blank line ends a text: all {len(first):,} tokens are one text"
    return Layout("conll", False, cells, 0, label=len(cells) - 1), remark


def _refuse_two_tags(path: str, rows: Sequence[List[str]]) -> None:
    """Raise ``DataError`` if two columns have entity tags, as in GermEval; allow chunk tags."""
    columns = list(zip(*(row for row in rows if len(row) == len(rows[0]))))
    for i, column in enumerate(columns[1:-1], 1):
        names = {tag.partition("-")[2] for tag in column} - CHUNKS
        if names and all(map(TAG.fullmatch, column)):
            raise DataError(
                f"{called(path)}: column {i} has tags, too, e.g. of {min(names)!r}, "
                f"but only the last column, {len(columns) - 1}, is read; remove one of the two"
            )


def split(line: str) -> List[str]:
    """Return the cells of a line, [] for a blank line; leading spaces are one cell."""
    if not line.strip() or "\t" in line:
        return line.split("\t") if line.strip() else []
    first, *others = re.split(" +", line.rstrip())
    return [first or " ", *others]


def _positions(tokens: Sequence[str]) -> str:
    """Return a warning if most tokens are a character and a digit, such as a0, b1."""
    numbered = [token for token in tokens if POSITION.fullmatch(token)]
    if 10 * len(numbered) < 9 * len(tokens):
        return ""
    return (
        f"\nwarning: tokens such as {numbered[0]!r} end with a digit, which becomes a part of the "
        "text; if it is the position in a word, as in Weibo NER's second edition, remove it"
    )


def _from_json(content: Any) -> Tuple[str, List[Entity]]:
    record = json_object(content)
    text = text_value(record, "text")
    refuse_rejected(record)
    given = next((record[name] for name in FIELDS if name in record), None)
    with contextlib.suppress(AttributeError, TypeError, ValueError):
        if isinstance(given, dict):  # CLUENER: {label: {words: [[first, last], ...]}}
            given = [
                {"start": first, "end": last, "label": label, "text": words}
                for label, entities in given.items()
                for words, places in entities.items()
                for first, last in places
            ]
    if not isinstance(given, list):
        fields = ", ".join(map(repr, record))[:60]
        raise ValueError(f"the field {FIELDS[0]!r} must be a list; the fields are {fields}")
    return text, [_entity(text, each) for each in given]


def _entity(text: str, given: Any) -> Entity:
    """Return the entity that ``given``, parsed JSON, describes in a text.

    If ``given`` has the entity's words, they decide whether its end is inclusive.
    """
    shown, values, words = json.dumps(given, ensure_ascii=False)[:60], given, None
    if isinstance(given, dict):
        *values, words = (next((given[k] for k in names if k in given), None) for names in KEYS)
        values[2:] = values[2] if isinstance(values[2], list) else values[2:]  # Label Studio
        if words is None and "end_idx" in given:
            raise ValueError(
                f'entity {shown}: add its words as "entity": they show whether end_idx is inclusive'
            )
    if isinstance(values, list) and [type(value) for value in values] == [int, int, str]:
        start, end, label = values
        if words not in (None, text[start:end]):
            if text[start : end + 1] != words:
                raise ValueError(
                    f"entity {shown}: at this place the text has {text[start : end + 1]!r}"
                )
            end += 1
        if 0 <= start < end <= len(text) and label.strip():
            return Entity(start, end, text_value({"label": label}, "label"))
    raise ValueError(
        f"entity {shown}; needed: [start, end, label] with 0 <= start < end <= {len(text)}, the "
        "length of the text in characters"
    )


def _tagged(table: Table, name: str) -> Iterator[Tuple[int, List[str]]]:
    """Turn JSON objects into rows for ``_texts``: (line number, [token, tag]); [] ends a text."""
    for number, content in table.rows:
        try:
            record: Any = json_object(content)
            tokens, tags = record.get("tokens"), record.get(name)
            fit = isinstance(tokens, list) and isinstance(tags, list) and len(tokens) == len(tags)
            if fit and any(isinstance(tag, int) for tag in tags):
                raise ValueError(f"{name} are numbers without names in the file; write label names")
            if not fit or not all(isinstance(word, str) for word in tokens + tags):
                both = json.dumps([tokens, tags], ensure_ascii=False)[1:-1][:60]
                raise ValueError(
                    f"tokens and {name} are {both}; needed: equally long lists of strings"
                )
            text_value({"tokens": "".join(tokens + tags)}, "tokens")
        except ValueError as reason:
            table.bad.append(BadLine(table.path, number, str(reason)))
        else:
            yield from ((number, [*cells]) for cells in [*zip(tokens, tags), ()])


def _texts(
    path: str, rows: Iterable[Tuple[int, List[str]]], bad: List[BadLine]
) -> Iterable[Tuple[int, Any]]:  # fmt: skip
    """Yield (number of the first line, (tokens, tags)) per text; append bad lines to ``bad``.

    ``rows`` are line numbers and cells; a line without cells ends a text.
    """
    refused = {line.line for line in bad}
    first_line: Dict[str, int] = {}  # kind of tag, such as B -> first line that has it
    tokens: List[str] = []
    tags: List[str] = []
    begin, broken = 1, False
    rows = [*rows, (0, [])]
    sizes = collections.Counter(len(cells) for _, cells in rows if cells and cells[0] != DOCUMENT)
    usual = max(sizes, key=sizes.__getitem__, default=2)
    for number, cells in rows:
        if number in refused:
            broken = True
        elif not cells or cells[0] == DOCUMENT:
            if tokens and not broken:
                yield begin, (tokens, tags)
            tokens, tags, broken = [], [], False
        elif len(cells) != max(usual, 2) or not (cells[0] and TAG.fullmatch(cells[-1].strip())):
            shown = f"{cells[0][:40]!r}, {cells[-1][:40]!r}" if len(cells) > 1 else "1 column"
            if len(cells) != usual and len(cells) > 1 and TAG.fullmatch(cells[-1].strip()):
                shown = f"{len(cells)} columns, not {usual}"
            needed = "a token and its tag: O, or B-, I-, E-, S-, M-, L- or U- and a label"
            listed = _BETWEEN_TAGS.split(cells[-1].strip())
            if len(cells) > 1 < len(listed) and all(map(TAG.fullmatch, listed)):
                shown, needed = f"{len(listed)} tags in a line, {shown}", f"per line, {needed}"
            bad.append(BadLine(path, number, f"{shown}; needed: {needed}"))
            broken = True
        else:
            begin = begin if tokens else number
            tokens.append(cells[0].strip() or cells[0])  # a space may be a token
            tags.append(cells[-1].strip())
            first_line.setdefault(tags[-1][0], number)
    kinds = set(first_line) - {"O"}
    if not any(kinds <= set(scheme) for scheme in SCHEMES):
        places = ", ".join(f"{kind}- in line {first_line[kind]:,}" for kind in sorted(kinds))
        raise DataError(f"{path}: tags of two schemes: {places}; needed: BIO, BIOES, BMES or BILOU")


def _joined(content: Tuple[List[str], List[str]]) -> Tuple[str, List[Entity]]:
    """Join tokens to a text; return it, and the entities of the tags as positions in the text."""
    tokens, tags = content
    text = joined(tokens)
    if not text.strip():
        raise ValueError("the text is blank")
    space = len(text) > sum(map(len, tokens))
    ends, end = [], -space
    for token in tokens:
        end += space + len(token)
        ends.append(end)
    return text, [
        Entity(ends[first] - len(tokens[first]), ends[last - 1], label)
        for first, last, label in chunks(tags)
    ]
