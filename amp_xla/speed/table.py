"""Outcomes as a table, and the recommended settings."""

from __future__ import annotations

import math
import statistics
from typing import Optional, Sequence, Tuple

from amp_xla.diagnose.report_text import columns
from amp_xla.speed.measure import Outcome

HEAD = ("combination", "samples/s", "spread", "step ms", "compile s", "loss", "result")


def spread(values: Sequence[float]) -> float:
    """Return (max - min) / median as a share; infinity for fewer than two values."""
    if len(values) < 2:
        return math.inf
    return (max(values) - min(values)) / sorted(values)[len(values) // 2]


def render(outcomes: Sequence[Outcome]) -> str:
    """Return the table of all outcomes, including failures."""
    body = []
    for o in outcomes:
        measured = bool(o.samples_per_second)
        body.append([
            o.name,
            f"{o.median:.1f}" if measured else "-",
            _spread_text(o) if measured else "-",
            f"{1e3 * statistics.median(o.step_seconds):.1f}" if measured else "-",
            f"{o.warm_seconds:.1f}" if o.warm_seconds else "-",
            f"{o.loss:.4f} @{o.steps}" if o.loss is not None else "-",
            o.status + (f": {o.why}" if o.why else ""),
        ])  # fmt: skip
    return columns([HEAD, *body])


def recommend(outcomes: Sequence[Outcome]) -> Tuple[Optional[Outcome], str]:
    """Return the outcome to train with, and a sentence that gives the reason.

    A difference counts only if it is larger than the spread of the rounds of either outcome. Among
    the outcomes that do not differ from the fastest, the first, which is the simplest, is
    recommended; none if that is the first finite one of all, or none was finite.
    """
    finite = [o for o in outcomes if o.status == "ok" and o.loss is not None]
    if not finite:
        return None, "in no combination did all numbers stay finite"
    first, fastest = finite[0], max(finite, key=lambda o: o.median)
    noise = {o.name: max(spread(x.samples_per_second) for x in (fastest, o)) for o in finite}
    equals = [o for o in finite if fastest.median / o.median - 1.0 <= noise[o.name]]
    gain = f"{fastest.median / first.median:.2f}x {first.name}"
    if equals == [fastest]:
        return fastest, f"fastest: {fastest.name}, {gain}"
    rivals = [o for o in equals if o is not fastest]
    spreads = ", ".join(f"{o.name} {_spread_text(o)}" for o in equals)
    reason = (
        f"fastest: {fastest.name}, {gain}, but its difference from "
        f"{', '.join(o.name for o in rivals)} is within the spread of the rounds ({spreads})"
    )
    if first in equals:
        return None, f"{reason}: nothing to recommend; repeat with more --rounds on an idle machine"
    return equals[0], f"{reason}; the simplest of these is {equals[0].name}"


def pays_from(best: Outcome, outcomes: Sequence[Outcome]) -> str:
    """Return from which step on the XLA mode of ``best`` pays; '' if that is unknown."""
    off = next((o for o in outcomes if (o.precision, o.xla) == (best.precision, "off")), best)
    times = [statistics.median(o.step_seconds or [0.0]) for o in (off, best)]
    compiling = best.warm_seconds - off.warm_seconds
    if times[0] <= times[1] or compiling <= 0:
        return ""
    return (
        f"{best.name} compiles for {compiling:.0f} s, which pays off after "
        f"{compiling / (times[0] - times[1]):,.0f} steps; --xla auto, the default, decides by the "
        f"speed of an H100\n"
    )


def _spread_text(outcome: Outcome) -> str:
    noise = spread(outcome.samples_per_second)
    return "one round only" if noise == math.inf else f"{noise:.0%}"
