"""Texts with triples (subject, predicate, object): files, tokens, and targets as positions."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import json
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
from typing_extensions import Annotated

from amp_xla.config import MAY_CHANGE
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.labelled import Labelled, Preparation
from amp_xla.data.text.labels import Labels
from amp_xla.data.text.layout import Layout, keys
from amp_xla.data.text.lines import Table, called, json_object
from amp_xla.data.text.options import Files
from amp_xla.data.text.readers import Dataset, collected, text_value
from amp_xla.data.text.tokenizer import Encoded, Tokenizer
from amp_xla.errors import DataError
from amp_xla.tasks.relations import documented

FIELDS = ["spo_list", "triple_list"]  # names of the list of triples
ROLES = ("subject", "predicate", "object")
VALUE = "@value"
CUT, WITHIN = "cut off by --max-length", "beginning or ending where no token does"
ABSENT = "not in their text"
Cell = Tuple[int, int, int]  # plane, row and column of a score


class Triple(NamedTuple):
    """A relation, as words of a text and the name of a predicate."""

    subject: str
    predicate: str
    object: str

    def __str__(self) -> str:
        return f"({self.subject}, {self.predicate}, {self.object})"

    def touches(self, other: Triple) -> bool:
        """Return whether the predicate is the same, and names contain each other."""
        pairs = zip(self[::2], other[::2])
        return self.predicate == other.predicate and all(a in b or b in a for a, b in pairs)


def gold_of(data: Dataset) -> List[List[Triple]]:
    """Return the triples of each text; ``labels`` are lists of them in JSON."""
    return [[Triple(*triple) for triple in json.loads(label)] for label in data.labels or []]


@dataclasses.dataclass(frozen=True)
class RelationFiles(Files):
    """Training texts and dev texts with triples."""

    train: Annotated[Optional[str], MAY_CHANGE] = None
    """training file: JSON lines or an array, with text and spo_list (DuIE, CMeIE) or triple_list
    (NYT, WebNLG), also .gz; none = built-in"""
    dev: Annotated[Optional[str], MAY_CHANGE] = None
    """dev file, in one of these formats; needed with --train"""

    def built_in(self) -> Tuple[Dataset, Dataset]:
        return documented.relations()

    def dataset(self, path: str, run: Optional[Layout] = None) -> Dataset:
        """Return the texts of a file; the label of a text is its triples in JSON."""
        table = Table.read(path)
        if table.rows and table.format != "json":
            number, line = table.rows[0]
            raise DataError(
                f"{called(path)}:{number}: not JSON: {line[:60]!r}; objects with text and "
                f"{' or '.join(FIELDS)} are needed, one per line or in an array"
            )
        data = collected(path, table.rows, _sample, table.bad, self.on_bad_line)
        names = keys(table)
        text, label = (
            next((i for i, name in enumerate(names) if name in each), None)
            for each in (["text"], FIELDS)
        )
        return dataclasses.replace(
            data, layout=Layout("json", False, tuple(names), text, None, label)
        )

    def questions(
        self, path: str, lines: List[str], run: Layout, single: bool = False
    ) -> Tuple[List[str], Optional[Layout]]:
        if Table.of(path, lines, []).format != "json":
            return lines, None  # each line is a text, with tabs or without
        return super().questions(path, lines, run, single)


def _sample(content: Any) -> Tuple[str, None, str]:
    record = json_object(content)
    text = text_value(record, "text", "text")
    given = next((record[name] for name in FIELDS if name in record), None)
    if not isinstance(given, list):
        raise ValueError(f"no list {' or '.join(FIELDS)}; found: {', '.join(record)[:60]!r}")
    triples = sorted({triple for each in given for triple in _triples(each)})
    return text, None, json.dumps(triples, ensure_ascii=False)


def _triples(given: Any) -> List[Triple]:
    """Return the triple of an element, or several if its object has more parts than ``@value``."""
    values = [given.get(role) for role in ROLES] if isinstance(given, dict) else given
    triples: List[Any] = []
    if isinstance(values, list) and len(values) == 3:
        subject, predicate, parts = values
        for part, words in (parts if isinstance(parts, dict) else {VALUE: parts}).items():
            name = predicate if part == VALUE else f"{predicate}_{part}"
            triples.append((subject, name, words))
    if not triples or not all(isinstance(x, str) and x.strip() for t in triples for x in t):
        raise ValueError(
            f"triple {json.dumps(given, ensure_ascii=False)[:80]}; needed: [subject, predicate, "
            'object] or an object with these keys, all texts; "object" may be {"@value": text}'
        )
    return [Triple(*(x.strip() for x in triple)) for triple in triples]


class Placed(NamedTuple):
    """Texts and their tokens, with [CLS] and [SEP].

    Attributes:
      texts: the texts.
      encoded: the tokens.
      starts, ends: position in characters of each token of each text, without [CLS] and [SEP].
    """

    texts: Sequence[str]
    encoded: Encoded
    starts: List[List[int]]
    ends: List[List[int]]

    @classmethod
    def of(cls, texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> Placed:
        """Return the tokens of texts, at most ``max_length`` of each."""
        ids, starts, ends = zip(*map(tokenizer.placed_pieces, texts)) if texts else ((), (), ())
        room = max_length - 2
        rows = [[tokenizer.cls_id, *each[:room], tokenizer.sep_id] for each in ids]
        return cls(texts, Encoded.of(rows), list(starts), list(ends))

    def span(self, text: int, words: str) -> Any:
        """Return the first and last token of ``words``, or why there are none.

        Of several occurrences, it is the first that begins and ends where tokens do.
        """
        starts, ends, reason = self.starts[text], self.ends[text], ""
        begin = self.texts[text].find(words)
        while begin >= 0:
            first, last = bisect.bisect_left(starts, begin), -1
            if first < len(starts) and starts[first] == begin:
                last = bisect.bisect_left(ends, begin + len(words))
            if 0 <= last < len(ends) and ends[last] == begin + len(words):
                room = int(self.encoded.lengths[text]) - 2
                return (first + 1, last + 1) if last < room else CUT
            reason = WITHIN
            begin = self.texts[text].find(words, begin + 1)
        return reason or ABSENT

    def words(self, text: int, first: int, last: int) -> str:
        """Return the characters of tokens ``first`` to ``last``."""
        return self.texts[text][self.starts[text][first - 1] : self.ends[text][last - 1]]


def cells_of(
    gold: Sequence[Sequence[Triple]], placed: Placed, names: Sequence[str], kind: str
) -> Tuple[List[List[Cell]], str]:
    """Return the positive scores of each text, as GPLinker has them.

    Planes 0 and 1 have the first and last token of subjects and of objects; plane 2 + p has the
    first tokens of the subject and the object of predicate p, plane 2 + len(names) + p the last.

    Args:
      gold: triples of each text.
      placed: tokens of the texts.
      names: names of the predicates.
      kind: "training" or "dev", for the warning.

    Returns:
      The cells; and a line break and a warning if triples cannot be found, else an empty string.
    """
    number = {name: i for i, name in enumerate(names)}
    cells: List[List[Cell]] = []
    missed: Dict[str, List[str]] = collections.defaultdict(list)
    for text, triples in enumerate(gold):
        positive: Set[Cell] = set()
        for subject, predicate, obj in triples:
            first, second = placed.span(text, subject), placed.span(text, obj)
            if isinstance(first, str) or isinstance(second, str):
                lost = (first, subject) if isinstance(first, str) else (second, obj)
                missed[lost[0]].append(lost[1])
                continue
            (sh, st), (oh, ot), p = first, second, 2 + number[predicate]
            positive |= {(0, sh, st), (1, oh, ot), (p, sh, oh), (p + len(names), st, ot)}
        cells.append(sorted(positive))
    reasons = "; ".join(f"{len(w):,} {why}, such as {w[0]!r}" for why, w in missed.items())
    return cells, reasons and (
        f"\nwarning: {sum(map(len, missed.values())):,} of {sum(map(len, gold)):,} {kind} triples "
        f"cannot be found and count as missed; names: {reasons}"
    )


def with_targets(batch: Batch, cells: List[List[Cell]], planes: int, most: int) -> Batch:
    """Add labels to a batch: the cells in row * L + column, int32 [R, planes, most].

    Free places are 0, the cell of [CLS] and [CLS], which is never positive.
    """
    rows, length = batch["token_ids"].shape
    targets = np.zeros((rows, planes, most), np.int32)
    for row, sample in enumerate(batch["sample_ids"]):
        used: Dict[int, int] = collections.Counter()
        for plane, first, last in cells[sample] if sample >= 0 else ():
            targets[row, plane, used[plane]] = first * length + last
            used[plane] += 1
    return {**batch, "labels": targets}


def read(files: RelationFiles, how: Preparation) -> Labelled:
    """Read the files, or the built-in corpus if there are none."""
    parts = train, dev = files.read(how.seed)
    gold = list(map(gold_of, parts))
    names, dev_names = ([t.predicate for text in part for t in text] for part in gold)
    if not names:
        raise DataError(f"training data: none of the {len(train):,} texts has a triple")
    labels = Labels(tuple(sorted(set(names))))
    labels.ids(dev_names, files.train_fraction)
    tokenizer = how.vocabulary.tokenizer(train.texts, how.bert)
    placed = [Placed.of(part.texts, tokenizer, how.options.max_length) for part in parts]
    several = zip(gold, placed, ("training", "dev"))
    cells, warnings = zip(*(cells_of(part, p, labels.names, kind) for part, p, kind in several))
    planes = 2 + 2 * len(labels)
    counts = [collections.Counter(plane for plane, *_ in text) for part in cells for text in part]
    most = max(max(count.values(), default=1) for count in counts)
    return how.labelled(
        parts, labels, tokenizer, [part.encoded for part in placed],
        changes=[
            lambda batch, *_, each=part: with_targets(batch, each, planes, most) for part in cells
        ],
        counts=f"{len(train)} training and {len(dev)} dev texts, {len(names):,} and "
        f"{len(dev_names):,} triples, {len(labels)} predicates",
        warnings=labels.warnings(dev_names) + "".join(warnings), placed=placed[1],
    )  # fmt: skip
