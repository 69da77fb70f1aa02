"""Text tables and JSON for the reports of inspection, compilation and rehearsal."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Dict, Sequence


class JsonReport:
    """Base class of the reports, which are dataclasses."""

    def to_json(self) -> Dict[str, Any]:
        """Return the report as JSON values; non-finite numbers as text, because JSON has none."""
        text = json.dumps(dataclasses.asdict(self))  # type: ignore[call-overload]
        values: Dict[str, Any] = json.loads(text, parse_constant=lambda word: str(float(word)))
        return values


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a text table; the first column is left-aligned, others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * max(len(line) for line in lines))
    return "\n".join(lines)


def si(number: float) -> str:
    """Return a number with an SI prefix, e.g. 1234567 as ``1.23 M``."""
    number = float(f"{number:.3g}")  # 999,600 is 1 M
    for factor, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {letter}"
    return f"{number:.3g} "
