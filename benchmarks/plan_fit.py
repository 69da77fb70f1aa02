"""Fit the constants of `amp-xla plan` to published training speeds, and report the residuals.

    python -m benchmarks.plan_fit

Writes amp_xla/speed/plan/constants.json and the tables of docs/plan.md.
"""

from __future__ import annotations

import collections
import copy
import itertools
import json
import math
import sys
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from amp_xla.process import durable
from amp_xla.process.exits import exit_code
from amp_xla.process.progress import note
from amp_xla.speed.plan import forecast
from benchmarks import ROOT, markdown, plan_rows
from benchmarks.plan_rows import Row

PAGE = ROOT / "docs" / "plan.md"
RECORD = ROOT / "docs" / "results" / "gpu.json"  # of benchmarks.gpu: fitted and compared too
MARK = "<!-- from here on written by benchmarks/plan_fit.py -->"
HUBER = 0.1  # residuals above 10% count linearly
PRIOR = 0.03  # weight of the starting values: log(value / start) ** 2
STEPS = (0.2, 0.05, 0.0125)
TENSORFLOW = ("tensorflow", "nvidia_pretraining", "official")
# Constant -> starting value, and the programs that it is of; none: all.
START: Dict[str, Tuple[float, Tuple[str, ...]]] = {
    "tensor_share": (0.68, ()),
    "before_ampere": (0.75, ()),
    "float32_share": (0.80, ()),
    "clock_power": (0.25, ()),
    "fused": (0.6, ()),
    "update_bytes": (60.0, ()),
    "unfused": (0.6, TENSORFLOW),
    "unfused_half": (1.25, TENSORFLOW),
    "unfused_power": (0.3, TENSORFLOW),
    "update": (5e-5, TENSORFLOW),
    "casts": (3e-4, ("nvidia_pretraining", "official")),
    "casts ": (1e-4, ("tensorflow",)),
    "fixed": (4e-3, ("tensorflow", "apex", "autocast")),
    "fixed ": (45e-3, ("nvidia_pretraining", "official")),
    "inside": (4.0, ("tensorflow", "nvidia_pretraining", "apex", "autocast")),
    "between": (1.0, ("tensorflow", "nvidia_pretraining", "apex", "autocast")),
    "inside ": (13.0, ("official",)),
    "between ": (4.5, ("official",)),
    "unfused ": (0.4, ("apex", "autocast")),
    "scale": (1.0, ("apex",)),
    "scale ": (1.5, ("autocast",)),
    "launch": (3.4e-4, ("apex", "autocast")),
}
_NOT_TENSORFLOW: Dict[str, float] = {"update": 0, "casts": 0, "unfused_half": 1, "unfused_power": 0}
# Not fitted: what a program does not have.
GIVEN: Dict[str, Dict[str, float]] = {
    "tensorflow": {"scale": 1, "launch": 0, "updates": 1, "half_gradients": 1},
    "nvidia_pretraining": {"scale": 1, "launch": 0, "updates": 1, "half_gradients": 1},
    "official": {"scale": 1, "launch": 0, "updates": 1, "half_gradients": 0},
    "apex": {"updates": 1, "half_gradients": 1, **_NOT_TENSORFLOW},
    "autocast": {"updates": 0, "half_gradients": 0, **_NOT_TENSORFLOW},
}
# Fixed bytes, bytes per parameter, and shares of the activations in float32 that stay in memory.
MEMORY = {
    "fixed": 3.4e9, "per_parameter": 19.9, "fused": 1.23, "fused_half": 0.50, "unfused": 1.24,
    "unfused_half": 0.81,
}  # fmt: skip
# Of recipes, whose derivatives keep less: an H100's peaks (BERT-base, 64 x 384: 29.0,
# 16.2, 29.2, 27.6 GiB) and a tenth more.
RECIPE_MEMORY = {**MEMORY, "fused": 0.79, "fused_half": 0.36, "unfused": 0.80, "unfused_half": 0.73}
Constants = Dict[str, Any]


def main() -> int:
    """Fit the constants, and write them with the page."""
    rows = plan_rows.published()
    recorded = list(plan_rows.measured(RECORD)) if RECORD.exists() else []
    everything = [*rows, *recorded]
    note(f"{len(rows)} published rows, {len(recorded)} of {RECORD.name}")
    constants = fit(everything)
    residuals = left_out(everything, lambda row: row.gpu.name)
    models = left_out(everything, lambda row: row.model)
    constants["ranges"] = ranges(everything * 2, np.concatenate([residuals, models]))
    text = json.dumps(constants, indent=1) + "\n"
    durable.replace(forecast.CONSTANTS, text.encode())
    count = len(rows)
    parts = page(rows, residuals[:count], recorded, residuals[count:], constants)
    head = PAGE.read_text(encoding="utf-8").split(MARK)[0] if PAGE.exists() else ""
    durable.replace(PAGE, f"{head}{MARK}\n\n{parts}\n".encode())
    print(parts)
    return 0


def assemble(values: Sequence[float]) -> Constants:
    """Return the constants of the vector that is fitted."""
    constants: Constants = {"time": {}, "programs": copy.deepcopy(GIVEN), "memory": MEMORY}
    constants["recipe_memory"] = RECIPE_MEMORY
    for (name, (_, programs)), value in zip(START.items(), values):
        targets = [constants["programs"][p] for p in programs] if programs else [constants["time"]]
        for target in targets:
            target[name.strip()] = float(f"{value:.4g}")
    return constants


def errors(rows: Sequence[Row], constants: Constants) -> np.ndarray:
    """Return log(forecast speed / published speed) of rows."""
    programs = {name: forecast.program(name, constants) for name in GIVEN}
    forecasts = [
        sum(forecast.seconds(row.work, row.gpu, row.mode, programs[row.program])) for row in rows
    ]
    return np.log([row.seconds for row in rows]) - np.log(forecasts)


def fit(rows: Sequence[Row]) -> Constants:
    """Search constants one at a time, in smaller and smaller steps, for the least robust loss."""
    start = np.log([value for value, _ in START.values()])
    x = start.copy()

    def loss(candidate: np.ndarray) -> float:
        size = np.abs(errors(rows, assemble(np.exp(candidate))))
        robust = np.where(size < HUBER, size**2 / (2 * HUBER), size - HUBER / 2)
        return float(robust.mean() + PRIOR * ((candidate - start) ** 2).sum())

    best = loss(x)
    for step in STEPS:
        improved = True
        while improved:
            improved = False
            for index, sign in itertools.product(range(len(x)), (1, -1)):
                while True:
                    candidate = x.copy()
                    candidate[index] += sign * step
                    value = loss(candidate)
                    if value >= best - 1e-7:
                        break
                    x, best, improved = candidate, value, True
    return assemble(np.exp(x))


def left_out(rows: Sequence[Row], group: Callable[[Row], str]) -> np.ndarray:
    """Return the residual of each row in a fit without the rows of its group."""
    residuals = np.zeros(len(rows))
    groups = np.array([group(row) for row in rows])
    for name in sorted(set(groups)):
        constants = fit([row for row, other in zip(rows, groups) if other != name])
        inside = np.flatnonzero(groups == name)
        residuals[inside] = errors([rows[i] for i in inside], constants)
        note(f"fitted without {name}")
    return residuals


def ranges(rows: Sequence[Row], residuals: np.ndarray) -> Dict[str, Tuple[float, float]]:
    """Return GPU -> 10th and 90th percentile of measured / forecast time.

    ``residuals`` are those of ``left_out``: a fit is too close to its own rows. A GPU has the wider
    of the range of its rows and ``other``, that of all TensorFlow rows.
    """

    def of(chosen: Sequence[float]) -> Tuple[float, float]:
        low, high = np.quantile(chosen, (0.1, 0.9))
        return round(math.exp(low), 3), round(math.exp(high), 3)

    other = of([d for row, d in zip(rows, residuals) if row.tensorflow])
    found = {"other": other}
    for gpu in sorted({row.gpu.name for row in rows}):
        of_gpu = [(row, d) for row, d in zip(rows, residuals) if row.gpu.name == gpu]
        tensorflow = [d for row, d in of_gpu if row.tensorflow]
        enough = tensorflow if len(tensorflow) >= 5 else [
            d for row, d in of_gpu if row.program != "autocast"
        ]  # fmt: skip
        low, high = of(enough)
        found[gpu] = (min(low, other[0]), max(high, other[1]))
    return found


def relative(residuals: np.ndarray) -> np.ndarray:
    """Return |forecast speed / published speed - 1|."""
    return np.abs(np.expm1(residuals))


def summary(residuals: np.ndarray) -> str:
    """Return count, median and tails in one line."""
    e = relative(residuals)
    return (
        f"{len(e)} rows, median error {np.median(e):.1%}, {np.mean(e <= 0.2):.0%} of rows within "
        f"20%, {np.mean(e <= 0.25):.0%} within 25%"
    )


def by_gpu(row: Row) -> Tuple[str, ...]:
    """Return the group of a row in the first table."""
    return (row.framework, row.gpu.name)


def grouped(rows: Sequence[Row], residuals: np.ndarray, key: Callable[[Row], Any]) -> str:
    """Return the residuals of groups as a table."""
    groups: Dict[Any, List[float]] = collections.defaultdict(list)
    for row, residual in zip(rows, residuals):
        groups[key(row)].append(residual)
    body = []
    for name, values in sorted(groups.items(), key=str):
        e = relative(np.array(values))
        body.append(
            [", ".join(map(str, name)), str(len(e)), f"{np.median(e):.1%}",
             f"{np.median(np.expm1(values)):+.1%}", f"{np.mean(e <= 0.2):.0%}",
             f"{np.mean(e <= 0.25):.0%}"]
        )  # fmt: skip
    head = ("rows", "number", "median error", "median, signed", "within 20%", "within 25%")
    return markdown(head, body)


def factors(rows: Sequence[Row], residuals: np.ndarray, what: str) -> Tuple[int, float, float]:
    """Compare the factors between pairs of rows that differ in precision, or in XLA.

    Returns:
      The number of pairs; the shares in the right order, and within 20%.
    """
    groups: Dict[Any, Dict[bool, Dict[int, Tuple[Row, float]]]] = {}
    for row, residual in zip(rows, residuals):
        mode, folder = row.mode, row.folder
        other = mode.precision if what == "xla" else mode.xla
        key = (folder, row.program, row.model, row.task, row.gpu.name, mode.gpus, row.length, other)
        side = mode.xla if what == "xla" else mode.precision == "amp"
        groups.setdefault(key, {True: {}, False: {}})[side][row.batch] = (row, residual)
    order, near, count = 0, 0, 0
    for group in groups.values():
        # Where precisions were measured with other batches, the largest of each.
        sizes = [(size, size) for size in set(group[True]) & set(group[False])]
        if not sizes and what == "precision" and group[True] and group[False]:
            sizes = [(max(group[True]), max(group[False]))]
        for size_on, size_off in sizes:
            (on, d_on), (off, d_off) = group[True][size_on], group[False][size_off]
            speeds = math.log(on.batch / on.seconds) - math.log(off.batch / off.seconds)
            count += 1
            order += (speeds > 0) == (speeds + d_on - d_off > 0)
            near += abs(math.expm1(d_on - d_off)) <= 0.2
    return count, order / max(count, 1), near / max(count, 1)


def page(
    rows: Sequence[Row], residuals: np.ndarray,
    recorded: Sequence[Row], recorded_errors: np.ndarray,
    constants: Mapping[str, Any],
) -> str:  # fmt: skip
    """Return the tables of docs/plan.md."""
    in_fit = errors(rows, dict(constants))
    tensorflow = np.array([row.tensorflow for row in rows])
    apex = np.array([row.program == "apex" for row in rows])
    lines = ["## Errors of forecast speeds", "",
             "Each row was forecast by constants that were fitted without the rows of its GPU.",
             ""]  # fmt: skip
    for name, mask in (("TensorFlow", tensorflow), ("PyTorch, Lambda's scripts (apex)", apex),
                       ("PyTorch, autocast", ~tensorflow & ~apex)):  # fmt: skip
        lines.append(f"- {name}: {summary(residuals[mask])}; with constants fitted to all rows: "
                     f"median error {np.median(relative(in_fit[mask])):.1%}.")  # fmt: skip
    for what, text in (("precision", "amp compared with fp32 or TF32"),
                       ("xla", "XLA on compared with off")):  # fmt: skip
        number, order, near = factors(rows, residuals, what)
        lines.append(f"- {text}: {number} pairs of rows. In {order:.0%} of the pairs the forecast "
                     f"names the faster one; in {near:.0%} the forecast speed-up is within 20% of "
                     f"the measured one.")  # fmt: skip
    lines += [f"- {contradictions(rows)}", "", grouped(rows, residuals, by_gpu), ""]
    chosen = [i for i, row in enumerate(rows) if row.tensorflow]
    some, errs = [rows[i] for i in chosen], residuals[chosen]
    for key in (
        lambda row: (row.program, str(row.mode)),
        lambda row: (row.program, f"{row.length} tokens"),
        lambda row: (row.program, f"{row.mode.gpus} GPUs"),
    ):
        lines += [grouped(some, errs, key), ""]
    lines += ["## Memory", "", memory_lines(), "", "## Forecasts compared with measurements", ""]
    lines += [beside(recorded, recorded_errors)]
    return "\n".join(lines)


def contradictions(rows: Sequence[Row]) -> str:
    """Return by how much several published measurements of the same differ."""
    groups: Dict[Any, List[Row]] = collections.defaultdict(list)
    for row in rows:
        groups[row.program, row.model, row.task, row.gpu.name, row.mode, row.length].append(row)
    ratios = []
    for (program, *_), group in groups.items():
        for one, other in itertools.combinations(group, 2):
            if one.batch == other.batch or (one.folder != other.folder and program == "apex"):
                speeds = [row.batch * row.mode.gpus / row.seconds for row in (one, other)]
                ratios.append(max(speeds) / min(speeds) - 1)
    return (
        f"{len(ratios)} pairs of published rows of the same script, model, GPU and precision, most "
        f"of them with different batches and containers, differ in speed by "
        f"{np.median(ratios):.0%} in the median, and by {max(ratios):.0%} at most."
    )


def memory_lines() -> str:
    """Return how the verdicts agree with the published memory rows."""
    counts: Dict[Tuple[str, bool], int] = collections.Counter()
    for row in plan_rows.memory_rows():
        share = forecast.memory(row.work, row.mode, {"memory": MEMORY}) / (row.gib * 2**30)
        counts[forecast.verdict(share), row.fits] += 1
    body = [
        [verdict, str(counts[verdict, True]), str(counts[verdict, False])]
        for verdict in ("fits", "close", "does not fit")
    ]
    return markdown(("forecast", "batches that fit", "batches that ran out of memory"), body)


def beside(recorded: Sequence[Row], recorded_errors: np.ndarray) -> str:
    """Return the rows that this project measured, beside forecasts that do not know the GPU."""
    if not recorded:
        return "Not measured: no record of `benchmarks.gpu`."
    body = [
        [row.gpu.name, row.model, str(row.length), str(row.batch), str(row.mode),
         f"{row.seconds * 1e3:.0f}", f"{row.seconds * math.exp(-d) * 1e3:.0f}",
         f"{math.expm1(d):+.0%}"]
        for row, d in zip(recorded, recorded_errors)
    ]  # fmt: skip
    head = ("GPU", "model", "length", "batch", "mode", "measured ms", "forecast ms",
            "error of speed")  # fmt: skip
    return markdown(head, body)


if __name__ == "__main__":
    sys.exit(exit_code(main))
