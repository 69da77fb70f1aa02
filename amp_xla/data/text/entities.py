"""Read texts with named entities: columns as in CoNLL, or JSON lines; may be gzipped."""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

from amp_xla.data.text.lines import BadLine, Table, every_line, json_object
from amp_xla.data.text.readers import Dataset, collected, text_value
from amp_xla.errors import DataError

DOCUMENT = "-DOCSTART-"  # separates documents in CoNLL 2003
TAG = re.compile(r"O|[BIESM]-.*\S")
SCHEMES = ("BI", "BIES", "BMES")


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
    """Return the entities of BIO, BIOES or BMES tags; start and end are positions in ``tags``.

    An invalid sequence, such as I after O, begins a new entity, as in seqeval.
    """
    entities: List[Entity] = []
    begin, before, label = 0, "O", ""
    for i, tag in enumerate([*tags, "O"]):
        kind, _, name = tag.partition("-")
        new = kind in "OBS" or before in "OES" or name != label
        if new and before != "O":
            entities.append(Entity(begin, i, label))
        if new:
            begin, label = i, name
        before = kind
    return entities


def read(path: str, nested: bool = True, on_bad_line: str = "error") -> Dataset:
    """Read a file of texts with entities; its name and its first line show the format.

    - columns separated by tabs or spaces: first the token, last its tag (BIO, BIOES or BMES); a
      blank line ends a text.
    - one JSON object per line (``.jsonl``, ``.json``, or a first line that starts with ``{``):
      ``{"text": ..., "entities": [[start, end, label], ...]}``, positions in characters.

    Tokens are joined by spaces, or without spaces if each token is one character, as in Chinese.

    Args:
      path: the file; ``-`` is standard input.
      nested: False = overlapping entities are an error.
      on_bad_line: ``"error"`` raises for unusable lines, ``"skip"`` returns them in ``bad_lines``.

    Returns:
      The texts; the label of a text is its entities as ``pack`` writes them.
    """
    lines, bad = every_line(path)
    table = Table.of(path, lines, bad)
    read_one: Callable[[Any], Tuple[str, List[Entity]]] = _joined
    places: Iterable[Tuple[int, Any]] = _columns(path, lines, bad)
    if table.format == "json":
        read_one, places = _from_json, table.rows

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

    return collected(path, places, sample, bad, on_bad_line)


def _from_json(content: Any) -> Tuple[str, List[Entity]]:
    record = json_object(content)
    text = text_value(record, "text", "text")
    entities = record.get("entities")
    if not isinstance(entities, list):
        raise ValueError(f"no list 'entities'; found: {', '.join(map(repr, record))[:60]}")
    for entity in entities:
        if not (
            isinstance(entity, list)
            and [type(value) for value in entity] == [int, int, str]
            and 0 <= entity[0] < entity[1] <= len(text)
            and entity[2].strip()
        ):
            raise ValueError(
                f"entity {json.dumps(entity, ensure_ascii=False)[:60]}; needed: [start, end, "
                f"label] with 0 <= start < end <= {len(text)}, the length of the text in characters"
            )
    return text, [Entity(*entity) for entity in entities]


def _columns(
    path: str, lines: Sequence[str], bad: List[BadLine]
) -> Iterator[Tuple[int, Any]]:  # fmt: skip
    """Yield (first line's number, (tokens, tags)) of each text; append bad lines to ``bad``."""
    refused = {line.line for line in bad}
    first_line: Dict[str, int] = {}  # kind of tag, such as B -> first line that has it
    tokens: List[str] = []
    tags: List[str] = []
    begin, broken = 1, False
    for number, line in enumerate([*lines, ""], 1):
        cells = line.split("\t") if "\t" in line else line.split()
        if number in refused:
            broken = True
        elif not line.strip() or cells[0] == DOCUMENT:
            if tokens and not broken:
                yield begin, (tokens, tags)
            tokens, tags, begin, broken = [], [], number + 1, False
        elif len(cells) < 2 or not cells[0].strip() or not TAG.fullmatch(cells[-1].strip()):
            shown = f"{cells[0][:40]!r}, {cells[-1][:40]!r}" if len(cells) > 1 else "1 column"
            needed = "a token and its tag: O, or B-, I-, E-, S- or M- and a label"
            bad.append(BadLine(path, number, f"{shown}; needed: {needed}"))
            broken = True
        else:
            tokens.append(cells[0].strip())
            tags.append(cells[-1].strip())
            first_line.setdefault(tags[-1][0], number)
    kinds = set(first_line) - {"O"}
    if not any(kinds <= set(scheme) for scheme in SCHEMES):
        places = ", ".join(f"{kind}- in line {first_line[kind]:,}" for kind in sorted(kinds))
        raise DataError(f"{path}: tags of two schemes: {places}; BIO, BIOES or BMES is needed")


def _joined(content: Tuple[List[str], List[str]]) -> Tuple[str, List[Entity]]:
    """Return the text of tokens and tags, and its entities in characters."""
    tokens, tags = content
    space = "" if all(len(token) == 1 for token in tokens) else " "
    ends, end = [], -len(space)
    for token in tokens:
        end += len(space) + len(token)
        ends.append(end)
    return space.join(tokens), [
        Entity(ends[first] - len(tokens[first]), ends[last - 1], label)
        for first, last, label in chunks(tags)
    ]
