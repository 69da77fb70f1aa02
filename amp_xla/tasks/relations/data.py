"""Texts with triples (subject, predicate, object): files, and targets as positions."""

from __future__ import annotations

import collections
import dataclasses
import json
import re
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

import numpy as np
from typing_extensions import Annotated

from amp_xla.config import MAY_CHANGE
from amp_xla.data.alignment import WITHIN, AlignedTexts, labelled
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.labelled import Labelled, Preparation
from amp_xla.data.text import corpora
from amp_xla.data.text.layout import Layout
from amp_xla.data.text.lines import Table, json_object, keys
from amp_xla.data.text.options import TaggedFiles
from amp_xla.data.text.readers import Dataset, collected, text_value

FIELDS = ["spo_list", "triple_list"]  # names of the list of triples
LISTS = " or ".join(FIELDS)
VALUE = "@value"
Cell = Tuple[int, int, int]  # plane, row and column of a score


class Triple(NamedTuple):
    """A relation, as words of a text and the name of a predicate."""

    subject: str
    predicate: str
    object: str

    @property
    def label(self) -> str:
        """The predicate."""
        return self.predicate

    def shown(self, text: str = "") -> str:
        """Return the triple for people to read."""
        return f"({self.subject}, {self.predicate}, {self.object})"

    def touches(self, other: Triple) -> bool:
        """Return whether the predicates are equal, the subjects overlap and the objects overlap.

        Texts overlap if one contains the other.
        """
        pairs = zip(self[::2], other[::2])
        return self.label == other.label and all(a in b or b in a for a, b in pairs)


def unpack(label: str) -> List[Triple]:
    """Return the triples of a text's label, a JSON list."""
    return [Triple(*triple) for triple in json.loads(label)]


@dataclasses.dataclass(frozen=True)
class RelationFiles(TaggedFiles):
    """Training texts and dev texts with triples."""

    train: Annotated[Optional[str], MAY_CHANGE] = None
    """training file: JSON lines or an array, with text and spo_list (DuIE, CMeIE) or triple_list
    (NYT, WebNLG), also .gz; none = built-in"""

    def built_in(self) -> Tuple[Dataset, Dataset]:
        return corpora.relations()

    def dataset(self, path: str, run: Optional[Layout] = None, nested: bool = True) -> Dataset:
        """Return the texts of a file; the label of a text is its triples in JSON."""
        table = Table.read(path)
        data = collected(path, table.rows, _sample, table.bad, self.on_bad_line)
        return dataclasses.replace(data, layout=Layout.of_objects(keys(table), FIELDS))


def _sample(content: Any) -> Tuple[str, None, str]:
    try:
        record = json_object(content)
    except ValueError as error:
        raise ValueError(f"{error}; needed: JSON objects with the keys text and {LISTS}") from None
    text = text_value(record, "text")
    given = next((record[name] for name in FIELDS if name in record), None)
    if not isinstance(given, list):
        raise ValueError(
            f"the field {LISTS} must be a list; the fields are {', '.join(map(repr, record))[:60]}"
        )
    triples = sorted({triple for each in given for triple in _triples(each)})
    return text, None, json.dumps(triples, ensure_ascii=False)


def _triples(given: Any) -> List[Triple]:
    """Return the triples of a list entry: one, or several if its object is a dictionary."""
    values = [given.get(role) for role in Triple._fields] if isinstance(given, dict) else given
    triples: List[Any] = []
    if isinstance(values, list) and len(values) == 3:
        subject, predicate, parts = values
        for part, words in (parts if isinstance(parts, dict) else {VALUE: parts}).items():
            name = predicate if part == VALUE else f"{predicate}_{part}"
            triples.append((subject, name, words))
    if not triples or not all(isinstance(x, str) and x.strip() for t in triples for x in t):
        raise ValueError(
            f"triple {json.dumps(given, ensure_ascii=False)[:80]}; needed: three texts, as "
            "[subject, predicate, object] or as a JSON object with these keys; "
            '"object" may be {"@value": text}'
        )
    return [Triple(*(x.strip() for x in triple)) for triple in triples]


def span(aligned: AlignedTexts, text: int, words: str) -> Tuple[int, int, str]:
    """Return first and last token of ``words``, and the reason if they are not found, else "".

    If ``words`` occur several times, the first occurrence at token boundaries is used.
    """
    found = 1, 0, "not in their text"
    for match in re.finditer(f"(?={re.escape(words)})", aligned.texts[text]):
        found = aligned.span(text, match.start(), match.start() + len(words))
        if found[2] != WITHIN:
            break
    return found


def cells_of(
    gold: List[List[Triple]], aligned: AlignedTexts, numbers: Dict[str, int], missed: Any
) -> List[List[Cell]]:
    """Return, for each text, the cells whose scores should be positive.

    A cell (plane, row, column) stands for two tokens. Plane 0: first and last token of a subject.
    Plane 1: first and last token of an object. Plane 2 + p, for predicate p: first token of the
    subject, first token of the object. Plane 2 + predicates + p: last tokens of these two.
    For a triple that is not found, its subject or object is added to ``missed``: reason -> words.
    """
    cells: List[List[Cell]] = []
    for text, triples in enumerate(gold):
        positive: Set[Cell] = set()
        for triple in triples:
            (sh, st, lost), (oh, ot, lost_object) = (span(aligned, text, x) for x in triple[::2])
            if lost or lost_object:
                name = triple.subject if lost else triple.object
                missed.setdefault(lost or lost_object, []).append(name)
                continue
            p = 2 + numbers[triple.predicate]
            positive |= {(0, sh, st), (1, oh, ot), (p, sh, oh), (p + len(numbers), st, ot)}
        cells.append(sorted(positive))
    return cells


def with_targets(batch: Batch, cells: List[List[Cell]], planes: int, most: int) -> Batch:
    """Add labels to a batch: each cell as row * L + column, int32 [R, planes, most].

    Unused places are 0: the cell ([CLS], [CLS]), which is never positive.
    """
    rows, length = batch["token_ids"].shape
    targets = np.zeros((rows, planes, most), np.int32)
    for row, sample in enumerate(batch["sample_ids"]):
        used: Dict[int, int] = collections.Counter()
        for plane, first, last in cells[sample] if sample >= 0 else ():
            targets[row, plane, used[plane]] = first * length + last
            used[plane] += 1
    return {**batch, "labels": targets}


def read(files: RelationFiles, preparation: Preparation) -> Labelled:
    """Read the files, or the built-in corpus if there are none."""
    parts = files.read(preparation.seed)
    gold = [[unpack(label) for label in part.labels or []] for part in parts]

    def changes(targets: Any, labels: int) -> List[Any]:
        planes = (collections.Counter(p for p, *_ in text) for part in targets for text in part)
        most = max(max(count.values(), default=1) for count in planes)
        return [
            lambda batch, *_, cells=part: with_targets(batch, cells, 2 + 2 * labels, most)
            for part in targets
        ]

    return labelled(parts, gold, preparation, files.train_fraction, "triples", cells_of, changes)
