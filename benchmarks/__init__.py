"""Benchmarks: one file per question, run as ``./amp-xla python -m benchmarks.<file>``."""

from pathlib import Path
from typing import Sequence

ROOT = Path(__file__).resolve().parents[1]


def named(name: str, only: str) -> bool:
    """Return whether a name contains one of the texts in ``only``, separated by semicolons."""
    return any(part.strip() in name for part in only.split(";"))


def markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Return an aligned Markdown table."""
    widths = [max(len(str(row[i])) for row in [head, *body]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(str(c).ljust(w) for c, w in zip(cells, widths)) + " |"

    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([line(head), rule, *[line(row) for row in body]])
