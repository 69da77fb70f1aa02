"""Curves as SVG paths, with fewer points and with axes.

Paths are drawn in a square of 1,000 by 1,000 units, which the page stretches to the screen's width.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

MOST_POINTS = 2000
_SIZE = 1000.0
_LOG_RATIO = 50.0  # an axis is logarithmic if largest / smallest value is at least this


@dataclasses.dataclass(frozen=True)
class Series:
    """One line of a figure; ``run`` is the index of the run on the page.

    ``x`` and ``y`` are float64 [N]; points that are not finite are left out. ``style`` is ``line``,
    ``faint``, ``dots`` (a line with a dot per point, up to 60 points) or ``steps``.
    """

    label: str
    run: int
    x: np.ndarray
    y: np.ndarray
    style: str = "line"


def thin(x: np.ndarray, y: np.ndarray, most: int = MOST_POINTS) -> Tuple[np.ndarray, np.ndarray]:
    """Return at most ``most`` points: first, last, and the extremes of parts of equal length.

    Args:
      x, y: float64 [N], without NaN.
    """
    if len(x) <= most:
        return x, y
    edges = np.linspace(0, len(x), (most - 2) // 2 + 1).astype(int)
    keep = {0, len(x) - 1}
    for begin, end in zip(edges[:-1], edges[1:]):
        part = y[begin:end]
        keep.update((begin + int(part.argmin()), begin + int(part.argmax())))
    chosen = np.array(sorted(keep))
    return x[chosen], y[chosen]


def smoothed(y: np.ndarray, window: int) -> np.ndarray:
    """Return the moving average of finite values around each point; NaN if none is finite."""
    finite = np.isfinite(y)
    total = np.concatenate([[0.0], np.where(finite, y, 0.0).cumsum()])
    count = np.concatenate([[0], finite.cumsum()])
    place = np.arange(len(y))
    reach = np.minimum(window // 2, np.minimum(place, place[::-1]))  # symmetric up to the ends
    begin, end = place - reach, place + reach + 1
    seen = count[end] - count[begin]
    return np.where(seen > 0, (total[end] - total[begin]) / np.maximum(seen, 1), np.nan)


def short(value: float) -> str:
    """Return a number as short text: ``15k``, ``0.25``, ``2e-5``."""
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if limit <= size < 1e12:
            return f"{value / (1e3 if unit == 'k' else limit):.4g}{unit}"
    if size and (size < 1e-3 or size >= 1e12):
        mantissa, _, exponent = f"{value:.3g}".partition("e")
        return f"{mantissa}e{int(exponent)}" if exponent else f"{value:.3g}"
    return f"{value:.4g}"


class Axis:
    """A scale from values to 0 .. 1, with ticks.

    Args:
      values: float64 [N], finite, at least one.
      fit: True = no margins around the values, as for an axis of steps.
      log: True = logarithmic if all values are positive and far apart.
    """

    def __init__(self, values: np.ndarray, fit: bool = False, log: bool = False) -> None:
        low, high = float(values.min()), float(values.max())
        self.log = log and low > 0 and high / low >= _LOG_RATIO
        if self.log:
            low, high = math.log10(low), math.log10(high)
        if low == high:
            margin = abs(low) * 0.1 or 1.0
            low, high = (low, high + margin) if fit else (low - margin, high + margin)
        elif not fit:
            margin = (high - low) * 0.06
            floor = 0.0 if not self.log and low >= 0 else -math.inf
            low, high = max(low - margin, floor), high + margin
        self.low, self.high = low, high

    def __call__(self, values: Any) -> np.ndarray:
        """Return the positions of values on the axis: 0 = low end, 1 = high end."""
        scaled = np.log10(values) if self.log else np.asarray(values, np.float64)
        return (scaled - self.low) / (self.high - self.low)

    def ticks(self) -> List[Dict[str, Any]]:
        """Return about six ticks at round numbers: ``at``, in percent of the axis, and ``text``."""
        rough = max((self.high - self.low) / 6, 1e-300)
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(f * power for f in (1.0, 2.0, 2.5, 5.0, 10.0) if f * power >= rough * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        numbers = [round(number * step, 12) + 0.0 for number in range(first, last + 1)]
        if self.log:
            whole = [t for t in numbers if t == int(t)]
            numbers = [10.0**t for t in whole or numbers]
        return [{"at": round(float(self(n)) * 100, 2), "text": short(n)} for n in numbers]


def figure(
    title: str,
    series: Sequence[Series],
    summary: str = "",
    marks: Sequence[Tuple[int, np.ndarray]] = (),
    log: bool = False,
    steps: float = 0.0,
) -> Optional[Dict[str, Any]]:
    """Return the data of a figure for the page's template; None if no point is finite.

    Args:
      summary: description of the curves for screen readers.
      marks: pairs of a run's index and its skipped steps.
      log: whether the y axis may be logarithmic.
      steps: end of the x axis, the same for all figures of a page.
    """
    clean = []
    for line in series:
        finite = np.isfinite(line.y) & np.isfinite(line.x)
        if finite.any():
            x, y = thin(line.x[finite], line.y[finite])
            clean.append(dataclasses.replace(line, x=x, y=y))
    if not clean:
        return None
    across = Axis(np.concatenate([[0.0, max(steps, 1.0)], *(line.x for line in clean)]), fit=True)
    up = Axis(np.concatenate([line.y for line in clean]), log=log)
    styles = ("points" if line.style == "dots" else line.style for line in clean)
    keys = dict.fromkeys(zip((line.label for line in clean), styles))
    return {
        "title": title,
        "summary": summary,
        "log": up.log,
        "x_ticks": across.ticks(),
        "y_ticks": up.ticks(),
        # Without keys, all lines have one label and style.
        "keys": list(keys) * (len(keys) > 1)
        + [("skipped step", "mark")] * any(len(places) for _, places in marks),
        "lines": [
            {
                "label": line.label, "run": line.run, "style": line.style,
                "path": _path(across(line.x), 1.0 - up(line.y), line.style == "steps"),
                "dots": _dots(across(line.x), 1.0 - up(line.y)) if line.style == "dots" else "",
            }
            for line in clean
        ],
        "marks": [
            {"run": run, "path": _marks(across(places))} for run, places in marks if len(places)
        ],
        "data": {
            "low": across.low, "high": across.high,
            "lines": [
                [line.label, line.run, line.x.tolist(), [float(f"{v:.5g}") for v in line.y]]
                for line in clean
                if line.style != "faint"
            ],
        },
    }  # fmt: skip


def _path(x: np.ndarray, y: np.ndarray, steps: bool = False) -> str:
    if steps:  # horizontal lines from each value to the next
        x, y = np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]
    points = [f"{a:.1f} {b:.1f}" for a, b in zip(x * _SIZE, y * _SIZE)]
    return "M" + "L".join(points if len(points) > 1 else points * 2)


def _dots(x: np.ndarray, y: np.ndarray) -> str:
    """Return a path of zero-length lines, drawn as dots; '' if there are more than 60 points."""
    if len(x) > 60:
        return ""
    return "".join(f"M{a:.1f} {b:.1f}h0" for a, b in zip(x * _SIZE, y * _SIZE))


def _marks(x: np.ndarray) -> str:
    places = sorted({round(float(a) * _SIZE) for a in x if 0 <= a <= 1})
    return "".join(f"M{place} 1000V955" for place in places)
