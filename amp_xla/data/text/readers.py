"""Read text files: tab separated with or without a header, JSON lines, gzip of each."""

from __future__ import annotations

import os
from typing import List, Optional, Sequence, Tuple

from amp_xla.data.text import json_lines, tab_separated
from amp_xla.data.text.columns import FieldNames, Fields, Unusable
from amp_xla.data.text.dataset import BadLine, Dataset
from amp_xla.data.text.lines import read_lines
from amp_xla.errors import DataError

__all__ = ["BadLine", "DataError", "Dataset", "read"]

JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
SHOWN_BAD_LINES = 5

Sample = Tuple[str, Optional[str], str]


def read(
    path: str,
    text_field: Optional[str] = None,
    label_field: Optional[str] = None,
    pair_field: Optional[str] = None,
    on_bad_line: str = "error",
) -> Dataset:
    """Read a file of texts and labels; its name and its first line show the format.

    - ``text<TAB>label`` or ``text<TAB>pair<TAB>label`` without a header;
    - tab separated with a header (GLUE, CLUE);
    - one JSON object per line (``.jsonl``, ``.json``, or a first line that starts with ``{``).

    Each may be gzipped. Labels may be text, numbers or booleans; they become text. Blank lines are
    skipped.

    Args:
      path: the file; ``-`` is standard input.
      text_field, label_field, pair_field: names of columns or keys; None = the usual ones. In a
        file without a header, column numbers from 0.
      on_bad_line: ``"error"`` raises for unusable lines, ``"skip"`` returns them in ``bad_lines``.

    Raises:
      DataError: The file is missing or empty, lacks a field, or has bad lines.
    """
    if on_bad_line not in ("error", "skip"):
        raise DataError(f"on_bad_line={on_bad_line!r}; allowed: 'error', 'skip'")
    path = os.fspath(path)
    lines, bad = read_lines(path)
    if not lines:
        raise _unusable(path, bad, len(bad))
    names = FieldNames(text_field, pair_field, label_field)
    plain = path[:-3] if path.endswith(".gz") else path
    if plain.endswith(JSON_SUFFIXES) or lines[0][1].lstrip().startswith("{"):
        parser = json_lines.parser(path, lines, names)
    else:
        parser = tab_separated.parser(path, lines, names)
    fields = parser.fields

    samples: List[Sample] = []
    for number, line in parser.lines:
        try:
            samples.append(_checked(parser.parse(line), fields))
        except Unusable as reason:
            bad.append(BadLine(path, number, str(reason)))
    bad.sort(key=lambda line: line.line)
    if bad and (on_bad_line == "error" or not samples):
        raise _unusable(path, bad, len(samples) + len(bad))
    if not samples:
        raise DataError(f"{path}: a header and no sample below it")
    texts, pairs, labels = zip(*samples)
    return Dataset(
        texts=list(texts),
        pairs=None if fields.pair is None else list(pairs),
        labels=list(labels),
        source=path,
        bad_lines=bad,
    )


def _checked(sample: Sample, fields: Fields) -> Sample:
    for value, field in zip(sample, fields):
        if value is None or field is None:
            continue
        if not value.strip():
            raise Unusable(f"{field} is empty")
        if "\0" in value:
            raise Unusable(f"{field} holds a NUL character")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:  # JSON's \ud800 without its other half
            place = error.start + 1
            raise Unusable(f"{field}: character {place} is half a surrogate pair") from None
    text, pair, label = sample
    return text, pair, label.strip()


def _unusable(path: str, bad: Sequence[BadLine], total: int) -> DataError:
    shown = [f"  {line}" for line in bad[:SHOWN_BAD_LINES]]
    if len(bad) > len(shown):
        shown.append(f"  ... and {len(bad) - len(shown):,} more")
    listed = "\n".join(shown)
    advice = (
        "Correct them, or leave them out with --on-bad-line skip."
        if len(bad) < total
        else "No line is left. Is it the right file? Are the field names right?"
    )
    return DataError(f"{path}: {len(bad):,} of {total:,} lines cannot be used:\n{listed}\n{advice}")
