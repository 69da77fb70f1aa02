"""Outcomes as a table that fits a terminal and is Markdown too."""

from __future__ import annotations

from typing import List, Optional, Sequence

from amp_xla.speed.measure import Outcome

HEAD = (
    "combination", "samples/s", "spread", "step ms", "peak MiB", "compile s", "compiled",
    "loss", "result",
)  # fmt: skip


def spread(values: Sequence[float]) -> float:
    """(max - min) / median, as a share; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    middle = sorted(values)[len(values) // 2]
    return (max(values) - min(values)) / middle if middle else 0.0


def rows(outcomes: Sequence[Outcome]) -> List[List[str]]:
    """One list of cells for each outcome, bad ones too."""
    out = []
    for o in outcomes:
        measured = bool(o.samples_per_second)
        out.append([
            o.name,
            f"{o.median:.1f}" if measured else "-",
            f"{spread(o.samples_per_second):.0%}" if measured else "-",
            f"{o.step_ms:.1f}" if measured else "-",
            f"{o.peak_bytes / 2**20:.0f}" if o.peak_bytes else "-",
            f"{o.warm_seconds:.1f}" if o.warm_seconds else "-",
            str(o.compilations) if o.xla != "off" and measured else "-",
            f"{o.loss:.4f} @{o.steps}" if o.loss is not None else "-",
            o.status + (f": {o.why}" if o.why else ""),
        ])  # fmt: skip
    return out


def markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """An aligned Markdown table."""
    widths = [max(len(str(row[i])) for row in [head, *body]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(str(c).ljust(w) for c, w in zip(cells, widths)) + " |"

    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([line(head), rule, *[line(row) for row in body]])


def render(outcomes: Sequence[Outcome]) -> str:
    """The table of ``tune`` and ``bench``."""
    return markdown(HEAD, rows(outcomes))


def fastest(outcomes: Sequence[Outcome]) -> Optional[Outcome]:
    """The one with the highest median among those that are ok and finite."""
    good = [o for o in outcomes if o.status == "ok" and o.loss is not None]
    return max(good, key=lambda o: o.median) if good else None
