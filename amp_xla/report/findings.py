"""The report's answers about a run (did it learn, ...), and the problems found in it."""

from __future__ import annotations

import math
import textwrap
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

from amp_xla.report.record import Record, dictionary, number

_FEW = 3  # a trend needs at least this many values


class Answer(NamedTuple):
    """A question and answer at the top of the page; ``tone`` is good, bad, warn or plain."""

    question: str
    answer: str
    detail: str
    tone: str


class Problem(NamedTuple):
    """A problem or a possible improvement, and how to fix it.

    Attributes:
      level: ``error``, ``warning`` or ``note``.
      what: a sentence that describes it.
      fix: a sentence or flags that help; may be empty.
    """

    level: str
    what: str
    fix: str


def answers(run: Record, findings: List[Problem]) -> List[Answer]:
    """Return the four answers at the top of the page."""
    serious = [f for f in findings if f.level != "note"]
    if not serious:
        wrong = "Nothing found", "", "good" if run.steps else "plain"
    else:
        worst, count = serious[0], f"{len(serious)} finding{'s' if len(serious) > 1 else ''}"
        what = textwrap.shorten(worst.what, 114, placeholder=" ...")
        wrong = count, what, "bad" if worst.level == "error" else "warn"
    return [
        Answer("Did it learn?", *_learned(run)),
        Answer("Is it the best so far?", *_best(run)),
        Answer("Is mixed precision on?", *_precision(run)),
        Answer("Is anything wrong?", *wrong),
    ]


def _ends(values: np.ndarray) -> Optional[Tuple[float, float]]:
    """Return the means of the first and the last tenth of ``values``; None if there are too few."""
    values = values[np.isfinite(values)]
    if len(values) < _FEW:
        return None
    part = max(1, len(values) // 10)
    return float(values[:part].mean()), float(values[-part:].mean())


def _learned(run: Record) -> Tuple[str, str, str]:
    ends = _ends(run.train.get("loss", np.zeros(0)))
    if ends is None:
        return "Too early to say", f"{run.steps:,} steps so far", "plain"
    first, last = ends
    detail = f"training loss {first:.4g} → {last:.4g}"
    losses = run.train["loss"]
    if not math.isfinite(losses[-1]):
        return "No: it diverged", detail + ", then not finite", "bad"
    if last > first:
        return "No: the loss rose", detail, "bad"
    if last > 0.98 * first:
        return "Hardly", detail, "warn"
    return "Yes", detail, "good"


def _best(run: Record) -> Tuple[str, str, str]:
    if run.best is None:
        return "Not evaluated yet", "", "plain"
    name = words(run.monitor)
    detail = f"{name} {run.best_value:.4f} at step {run.best_step:,}"
    latest = run.dev[run.monitor][-1]
    if latest == run.best_value:  # an earlier evaluation may be as good
        return "Yes", detail, "good"
    return "No: it was better before", f"{detail}; now {latest:.4f}", "warn"


def _precision(run: Record) -> Tuple[str, str, str]:
    nodes, half = number(run.executed.get("nodes")), number(run.executed.get("half_nodes"))
    clusters = number(run.executed.get("clusters"))
    rest = []
    scale = run.last("loss_scale")
    if clusters >= 0:
        rest.append(f"{clusters:.0f} XLA clusters" if clusters else "XLA off")
    if math.isfinite(scale):
        rest.append(f"loss scale {scale:g}")
    skipped = run.last("skipped_steps")
    if skipped >= 0:
        rest.append(f"{skipped:,.0f} of {run.steps:,} steps skipped")
    detail = ", ".join(rest)
    if run.process.get("policy"):  # JAX
        return f"Policy {run.process['policy']}", detail, "plain"
    if not nodes > 0:
        return "Unknown", detail or "the first step has not run", "plain"
    if not half > 0:
        return "No: float32", detail, "plain"
    dtype = run.executed.get("half_dtype") or "half precision"
    share = f"{half:.0f} of {nodes:.0f} nodes ({half / nodes:.0%})"
    return f"Yes: {dtype}", f"{share}, {detail}", "good"


def words(field: str) -> str:
    """Return the readable name of a logged field: ``dev_macro_f1`` -> ``dev macro F1``."""
    return field.replace("_", " ").replace("f1", "F1")


def findings(run: Record) -> List[Problem]:
    """Return the problems of a run, the worst first."""
    problems = [*_state(run), *_numbers(run), *_learning(run)]
    return sorted(problems, key=lambda problem: ("error", "warning", "note").index(problem.level))


def _state(run: Record) -> List[Problem]:
    message = str(run.status.get("message", ""))
    again = str(run.status.get("continuing", ""))
    killed = f"The run ended without a message after step {run.steps:,}; was it killed?"
    of_states = {
        "killed": Problem("error", killed, again),
        "failed": Problem("error", f"The run ended with an error: {message}", again),
        "stopped": Problem("note", f"The run was {message or 'stopped'}.", again),
        "empty": Problem("warning", "The run has no log yet.", ""),
    }
    return [of_states[run.state]] if run.state in of_states else []


def _numbers(run: Record) -> Iterator[Problem]:
    skipped, steps = run.last("skipped_steps"), run.steps
    if skipped > 0:
        level = "warning" if skipped > 0.01 * steps else "note"
        fix = f"a lower {_flag(run, 'loss_scale')}, or a dynamic one" if level == "warning" else ""
        what = f"{skipped:,.0f} of {steps:,} steps were skipped: a gradient was not finite."
        yield Problem(level, what, fix)
    losses = run.train.get("loss", np.zeros(0))
    bad = ~np.isfinite(losses)
    if bad.any():
        first = run.train["step"][int(bad.argmax())]
        what = f"The loss was not finite in {bad.sum():,} log lines, first at step {first:,.0f}."
        fix = "--on-nonfinite report" if run.config else "Run(..., on_nonfinite='report')"
        yield Problem("error", what, f"{fix} names the first operation that is not finite")
    if run.is_cut:
        yield Problem("warning", "The log is too large: its last part is not shown.", "")
    for text in run.nonfinite:
        yield Problem("error", f"The overflow finder's report: {text.strip()}", "")


def _flag(run: Record, setting: str) -> str:
    """Return the flag of a setting, or the setting's name in words if the run has no such flag."""
    return f"--{setting.replace('_', '-')}" if setting in run.config else setting.replace("_", " ")


def _learning(run: Record) -> Iterator[Problem]:
    rate, epochs = _flag(run, "learning_rate"), _flag(run, "epochs")
    losses = run.train.get("loss", np.zeros(0))
    ends = _ends(losses) if np.isfinite(losses).all() else None
    if ends and run.steps >= 100 and ends[1] > 0.98 * ends[0]:
        fix = f"if it rose, a lower {rate}; if not, a higher one or more {epochs}"
        yield Problem("warning", "The training loss did not fall.", fix)
    if run.monitor == "dev_f1" and run.dev[run.monitor][-1] == 0:
        fix = f"more {epochs}; if it stays 0 while the loss falls, a higher {rate}"
        if ends and ends[1] > ends[0]:
            fix = f"a lower {rate}, because the loss rose"
        yield Problem("warning", "The dev F1 is 0: no prediction is right.", fix)
    dev = run.dev.get("dev_loss", np.zeros(0))
    finite = np.flatnonzero(np.isfinite(dev))
    if len(finite) >= _FEW:
        lowest = int(finite[dev[finite].argmin()])
        if lowest < finite[-1] and dev[finite[-1]] > 1.1 * dev[lowest]:
            what = (
                f"The dev loss has risen since step {run.dev['step'][lowest]:,.0f} "
                f"({dev[lowest]:.4g} → {dev[finite[-1]]:.4g}): the run overfits."
            )
            early = "--patience 2" if "patience" in run.config else "early stopping"
            yield Problem("warning", what, f"{early}, fewer {epochs}, or more data")
    evaluated = len(run.dev.get("step", ()))
    if run.state == "done" and evaluated >= _FEW and run.best == evaluated - 1:
        values = run.dev[run.monitor]
        gain = abs(values[-1] - values[-2])
        if gain > 0.02 * abs(values[-1] - values[0]):
            lengths = [(name, number(run.config.get(name))) for name in ("epochs", "steps")]
            longer = [f"--{name} {2 * value:.0f} --resume" for name, value in lengths if value > 0]
            fix = longer[0] if longer else "train longer"
            what = "The last evaluation is the best, and it was still improving."
            yield Problem("note", what, fix)
    padding = number(run.plan.get("padding_share"))
    if padding > 0.3:
        what = f"{padding:.0%} of the tokens are padding."
        flags = {"packed": "--packed", "shapes": "more --shapes"}
        fix = ", or ".join(flag for name, flag in flags.items() if name in run.config)
        yield Problem("warning", what, fix)


def differing(runs: List[Record]) -> Dict[str, List[Any]]:
    """Return the settings that differ between runs: name -> value of each run, None = not set."""
    names = dict.fromkeys(name for run in runs for name in run.config)
    values = {name: [run.config.get(name) for run in runs] for name in names}
    return {name: row for name, row in values.items() if any(v != row[0] for v in row)}


def changed(run: Record) -> Dict[str, Tuple[Any, Any]]:
    """Return the settings that differ from the recipe's defaults: name -> (value, default)."""
    defaults = dictionary(run.plan.get("defaults"))
    return {
        name: (value, defaults[name])
        for name, value in run.config.items()
        if name in defaults and value != defaults[name]
    }
