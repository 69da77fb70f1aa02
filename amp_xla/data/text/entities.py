"""Read texts with named entities: columns as in CoNLL, or JSON lines; may be gzipped."""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

from amp_xla.data.text.lines import BadLine, every_line
from amp_xla.data.text.readers import Dataset, collected, is_json, json_object, text_value
from amp_xla.errors import DataError

DOCUMENT = "-DOCSTART-"  # a line between the documents of CoNLL 2003
TAG = re.compile(r"O|[BIESM]-.*\S")
SCHEMES = ("BI", "BIES", "BMES")


class Entity(NamedTuple):
    """A part of a text: ``text[start:end]`` is the entity."""

    start: int
    end: int
    label: str


def pack(entities: Sequence[Entity]) -> str:
    """Return entities as JSON, ``[[start, end, label], ...]``, each once, in order."""
    return json.dumps(sorted(set(entities)), ensure_ascii=False)


def unpack(label: str) -> List[Entity]:
    """Return the entities that ``pack`` wrote."""
    return [Entity(*entity) for entity in json.loads(label)]


def chunks(tags: Sequence[str]) -> List[Entity]:
    """Return the entities of BIO, BIOES or BMES tags; start and end count tags.

    Where tags contradict each other, as I after O, an entity begins, as in seqeval.
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

    - a token and its tag per line, between them tabs or spaces and any other columns; a blank
      line ends a text. Tags are BIO, BIOES or BMES.
    - one JSON object per line (``.jsonl``, ``.json``, or a first line that starts with ``{``):
      ``{"text": ..., "entities": [[start, end, label], ...]}``, positions in characters.

    Tokens are joined by spaces; without, if each is one character, as in Chinese.

    Args:
      path: the file; ``-`` is standard input.
      nested: False = entities that overlap are an error.
      on_bad_line: ``"error"`` raises for unusable lines, ``"skip"`` returns them in ``bad_lines``.

    Returns:
      Texts; the label of each is its entities as ``pack`` writes them.

    Raises:
      DataError: The file is missing or empty, its tags are of two schemes, or it has bad lines.
    """
    lines, bad = every_line(path)
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    read_one: Callable[[Any], Tuple[str, List[Entity]]] = _joined
    places: Iterable[Tuple[int, Any]] = _columns(path, lines, bad)
    if numbered and is_json(path, numbered[0][1]):
        read_one, places = _from_json, numbered

    def sample(content: Any) -> Tuple[str, None, str]:
        text, entities = read_one(content)
        ordered = sorted(set(entities))
        for one, other in zip(ordered, ordered[1:]):
            if other.start < one.end and not nested:
                raise ValueError(
                    f"entities {one.start}:{one.end} and {other.start}:{other.end} overlap, which "
                    "only the heads of spans take: --head global_pointer"
                )
        return text, None, pack(entities)

    return collected(path, places, sample, bad, on_bad_line)


def _from_json(line: str) -> Tuple[str, List[Entity]]:
    record = json_object(line)
    text = text_value(record, "text", "text")
    entities = record.get("entities")
    if not isinstance(entities, list):
        raise ValueError("no list 'entities'")
    for entity in entities:
        if not (
            isinstance(entity, list)
            and [type(value) for value in entity] == [int, int, str]
            and 0 <= entity[0] < entity[1] <= len(text)
            and entity[2].strip()
        ):
            raise ValueError(
                f"entity {json.dumps(entity)[:60]}; needed: [start, end, label] "
                f"with 0 <= start < end <= {len(text)}, the characters of the text"
            )
    return text, [Entity(*entity) for entity in entities]


def _columns(
    path: str, lines: Sequence[str], bad: List[BadLine]
) -> Iterator[Tuple[int, Any]]:  # fmt: skip
    """Yield number of the first line, tokens and tags of each text; append bad lines to ``bad``."""
    refused = {line.line for line in bad}
    first_line: Dict[str, int] = {}  # of each kind of tag
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
            found = f"{cells[0][:40]!r}, {cells[-1][:40]!r}" if len(cells) > 1 else "1 column"
            needed = "a token and its tag: O, or B-, I-, E-, S- or M- and a label"
            bad.append(BadLine(path, number, f"{found}; needed: {needed}"))
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
