"""The meaning of a file's columns: decided once from the training file, and stored in the run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from amp_xla.data.text.lines import Table, cells_of, count, json_object, keys, numbers
from amp_xla.errors import DataError
from amp_xla.process import json_files

LAYOUT = "layout.json"
WIDTH = 92  # characters of a sample that is shown
LABELLED, LABELLED_PAIRS = ("text", "label"), ("text", "pair", "label")  # required fields


class Known(NamedTuple):
    """Names of fields that are recognized without a flag.

    ``texts`` has pairs: the name of the text, and the name of the second text or "". The first pair
    whose names a file has is used.
    """

    texts: Sequence[Tuple[str, str]]
    labels: Sequence[str] = ()

    def of_texts(self) -> List[str]:
        """Return the known names of the columns that hold texts or second texts."""
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
# Source and target: CSL's titles, LCSTS, and usual names.
TARGETS = Known(
    _names(
        "text/pair, source/target, abst/title, abstract/title, content/title, text/title, "
        "text/summary, content/summary, article/summary, document/summary, article/highlights, "
        "article/headline, text/headlines, question/answer, "
        "instruction/output, input/output, input/target, prompt/response, prompt/completion, "
        "query/response, dialogue/summary, src/tgt, ask/answer"
    )
)


class Fields(NamedTuple):
    """Names of the fields to read; None = there is no such field, or no flag names it."""

    text: Optional[str] = None
    pair: Optional[str] = None
    label: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Layout:
    """The meaning of a file's columns.

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
    def named(self) -> bool:
        """Whether columns have names."""
        return self.header or self.format == "json"

    @property
    def places(self) -> Dict[str, int]:
        """Field -> index of its column."""
        places = {field: getattr(self, field) for field in Fields._fields}
        return {field: place for field, place in places.items() if place is not None}

    @property
    def names(self) -> Dict[str, str]:
        """Field -> name of its column, or the field itself if columns have no names."""
        return {f: self.columns[i] if self.named else f for f, i in self.places.items()}

    def __str__(self) -> str:
        """Return the line to print at the start of a run."""
        shown = list(self.columns)
        if self.named:
            shown = [json.dumps(name, ensure_ascii=False) for name in shown]
        if self.header:
            shown = [f"{i} {name}" for i, name in enumerate(shown)]
        used = ", ".join(f"{field} = {shown[i]}" for field, i in self.places.items())
        unused = ", ".join(name for i, name in enumerate(shown) if i not in self.places.values())
        kind = {"json": "JSON", "conll": "CoNLL"}.get(self.format, "header")
        kind = kind if self.header or kind != "header" else "no header"
        return f"columns: {used} ({kind})" + (f"; {unused} unused" if unused else "")

    def values(self, content: Any) -> Dict[str, Any]:
        """Return a row's values by name; raise ``ValueError`` if it is a header or does not fit."""
        if self.format == "json":
            return json_object(content)
        cells = content.split("\t")
        if len(cells) != len(self.columns):
            hint = "; is a quotation mark missing above?" * ("\n" in content)
            raise ValueError(f"{count(cells)}, not {len(self.columns)}{hint}")
        if self.header and tuple(map(str.strip, cells)) == self.columns:
            raise ValueError("the header again")
        return {name: cells[self.places[field]] for field, name in self.names.items()}

    def encoded(self) -> bytes:
        """Return the layout as JSON, the content of ``layout.json``."""
        return json_files.encode(dataclasses.asdict(self), indent=None)

    @classmethod
    def of_objects(cls, names: Sequence[str], labels: Sequence[str], text: str = "text") -> Layout:
        """Return the layout of JSON objects with the keys ``names``.

        The label's key is the first of ``labels`` that is one of ``names``.
        """
        place, label = (
            next((names.index(name) for name in each if name in names), None)
            for each in ([text], labels)
        )
        return cls("json", False, tuple(names), place, label=label)

    @classmethod
    def load(cls, path: str) -> Layout:
        """Read a file that ``encoded`` wrote; raise ``DataError`` if it cannot be used."""
        stored = json_files.read(Path(path), {"format": str, "header": bool, "columns": [str]})
        index = (json_files.Whole(0, len(stored["columns"]) - 1), type(None))
        values = {field: stored.get(field) for field in Fields._fields}
        try:
            json_files.require(values, dict.fromkeys(values, index))
        except ValueError as error:
            raise DataError(f"cannot use {path}: {error}") from None
        return cls(stored["format"], stored["header"], tuple(stored["columns"]), **values)

    def applied(self, table: Table, needs: Sequence[str]) -> Optional[Layout]:
        """Return this layout for another file; None if that file has other columns.

        Columns are found by name, in any order, or by number if there is no header; a label that
        is not needed may be missing.
        """
        columns = keys(table) if table.format == "json" else cells_of(table.rows[0][1])
        if self.named and {self.names[f] for f in needs if f in self.names} <= set(columns):
            found = {f: columns.index(name) for f, name in self.names.items() if name in columns}
            return Layout(table.format, table.format != "json", tuple(columns), **found)
        places = self.places
        if "label" not in needs and self.label == len(columns) == len(self.columns) - 1:
            del places["label"]
        elif len(columns) != len(self.columns):
            return None
        if "json" in (self.format, table.format):
            return None
        return Layout(table.format, False, numbers(columns), **places)


def sample(**values: Optional[str]) -> str:
    """Return a line of about 100 characters that shows the parts of a sample as it was read."""
    parts = {name: value for name, value in values.items() if value is not None}
    shown: Dict[str, str] = {}
    room = WIDTH
    for name in sorted(parts, key=lambda name: len(parts[name])):
        most, value = room // (len(parts) - len(shown)) - len(name) - len(' = "", '), parts[name]
        value = value if len(value) <= most else f"{value[: most - 3]}..."
        shown[name] = f"{name} = {json.dumps(value, ensure_ascii=False)}"
        room -= len(shown[name])
    return f"sample: {', '.join(shown[name] for name in parts)}"
