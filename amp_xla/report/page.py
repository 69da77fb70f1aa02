"""``report.html``: one file with the curves, tables and configuration of one or several runs."""

from __future__ import annotations

import base64
import hashlib
import shlex
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import jinja2
import numpy as np
from markupsafe import Markup

from amp_xla import __version__
from amp_xla.process import durable
from amp_xla.process.output import printable
from amp_xla.process.redaction import for_others, without_secrets
from amp_xla.report import record
from amp_xla.report.curves import Series, figure, short, smoothed
from amp_xla.report.findings import answers, changed, differing, findings, words
from amp_xla.report.record import Record, number

REPORT = "report.html"
_TEMPLATES = Path(__file__).parent / "templates"
_LONGEST_COMMAND = 100_000  # characters
_NO_OTHER_FIGURE = (
    "step", "epoch", "samples", "loss", "learning_rate", "loss_scale", "gradient_norm",
    "applied_steps", "skipped_steps", "samples_per_second",
)  # fmt: skip


def write_run(run: Path) -> None:
    """Write ``report.html`` into a run folder."""
    durable.replace(run / REPORT, render([record.read(run)]).encode("utf-8"))


def render(runs: Sequence[Record]) -> str:
    """Return a page as HTML: of one run, or of several runs in the same figures."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(_TEMPLATES)), autoescape=True,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=visible,
    )  # fmt: skip
    environment.filters.update(short=short, words=words, value=value)
    environment.filters["percent"] = lambda share: f"{100 * min(max(share, 0.0), 1.0):.2f}%"
    script = (_TEMPLATES / "report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    with np.errstate(all="ignore"):  # older NumPys warn about NaN, which is usual here
        figures = _figures(list(runs))
    return environment.get_template("report.html").render(
        runs=[_view(run, environment) for run in runs],
        winner=_winner(list(runs)),
        figures=figures,
        data={"runs": [visible(r.name) for r in runs], "figures": [f["data"] for f in figures]},
        style=(_TEMPLATES / "report.css").read_text(encoding="utf-8"),
        script=script,
        script_digest=digest,
        differing=differing(list(runs)) if len(runs) > 1 else {},
        version=__version__,
    )


def _winner(runs: List[Record]) -> Optional[Record]:
    """Return the run with the best value; None if the runs have different metrics or no value."""
    if len({run.monitor for run in runs}) > 1:
        return None
    best: Any = max if runs[0].higher_is_better else min
    scored = (run for run in runs if run.best is not None)
    return best(scored, key=lambda run: run.best_value, default=None)


def visible(value: Any) -> Any:
    """Hide secrets, hosts and home folders in a text; escape controls; return "–" for None."""
    if type(value) is not str:  # Markup, a subclass, is from our templates
        return "–" if value is None else value
    return printable(for_others(value), allowed="\n\t")


def value(setting: Any) -> str:
    """Return the text of a setting's value."""
    if setting is None:
        return "none"
    if isinstance(setting, bool):
        return "yes" if setting else "no"
    if isinstance(setting, list):
        return ", ".join(map(value, setting)) or "none"
    return short(setting) if isinstance(setting, float) else str(setting)


def command(run: Record) -> str:
    """Return the command that repeats the training, as a user would type it; '' if unknown."""
    typed = str(run.process.get("command", ""))
    try:
        # shlex takes time that grows with the square of the length.
        first, *rest = without_secrets(shlex.split(typed if len(typed) <= _LONGEST_COMMAND else ""))
    except ValueError:
        return ""
    path, ranks = Path(first), number(run.process.get("ranks"))
    start = f"horovodrun -np {ranks:.0f} python" if ranks > 1 else "python"
    start += f" {shlex.quote(first)}"
    if path.name in ("__main__.py", "amp-xla"):
        start = "amp-xla"
        if ranks > 1 and rest[:1] == ["train"]:  # ``amp-xla ranks`` starts this command
            rest[:1] = ["ranks", "--np", f"{ranks:.0f}"]
        elif rest[1:2] and rest[1].startswith("--recipe="):  # ``make train`` writes it
            rest[1:3] = [rest[1][len("--recipe=") :]]
    elif path.parent.name == "recipes" and path.suffix == ".py":
        start = "amp-xla train " + path.stem
    return " ".join([start, *map(shlex.quote, rest)])


def _view(run: Record, environment: Any) -> Dict[str, Any]:
    problems, differs = findings(run), changed(run)
    last, best = len(run.dev.get("step", ())), run.best
    return {
        "run": run,
        "answers": answers(run, problems),
        "findings": problems,
        "changed": differs,
        "settings": {name: v for name, v in run.config.items() if name not in differs},
        "process": {k: v for k, v in run.process.items() if k not in ("command", "recipe")},
        "padding": number(run.plan.get("padding_share")),
        "half_ops": record.dictionary(run.executed.get("half_ops")),
        "command": command(run),
        "dev": [name for name in run.dev if name.startswith("dev_")],
        "rows": [i for i in range(last) if i == best or i >= last - 20],
        "evaluations": _evaluations(run, environment),
    }


def _evaluations(run: Record, environment: Any) -> List[Any]:
    """Return each evaluation as HTML, or a sentence if its file has an unexpected form."""
    template, shown = environment.get_template("evaluation.html"), []
    for name, result in run.evaluations.items():
        try:
            shown.append(Markup(template.render(name=name, test=result)))
        except Exception:  # the file may contain anything
            shown.append(f"evaluation/{name}/result.json is not of the expected form.")
    return shown


def _figures(runs: List[Record]) -> List[Dict[str, Any]]:
    dev = [name[4:] for run in runs for name in run.dev if name.startswith("dev_")]
    rest = dict.fromkeys(n for run in runs for n in run.train if n not in {*_NO_OTHER_FIGURE, *dev})
    specs = [
        *(_spec(name, runs, True, log=name == "loss") for name in dict.fromkeys(["loss", *dev])),
        _spec("learning_rate", runs),
        _scale_spec(runs),
        _spec("gradient_norm", runs, smooth=True, log=True),
        _spec("samples_per_second", runs, smooth=True, skip=1),
        *(_spec(n, runs, smooth=True, skip=int(n.endswith("_per_second"))) for n in rest),
    ]
    steps = max(run.steps for run in runs)
    drawn = (figure(steps=steps, **spec) for spec in specs)
    return [each for each in drawn if each is not None]


def _spec(
    name: str, runs: List[Record], smooth: bool = False, skip: int = 0, log: bool = False
) -> Dict[str, Any]:
    """Return the arguments of ``figure`` for a value in training and on the dev set.

    With several runs, training curves are drawn only for the loss or if no run has a dev curve.
    """
    single, series = len(runs) == 1, []
    dev = f"dev_{name}" if any(f"dev_{name}" in run.dev for run in runs) else ""
    label = "training" if dev else words(name)
    for i, run in enumerate(runs):
        if name in run.train and (single or not dev or name == "loss"):
            x, y = run.train["step"][skip:], run.train[name][skip:]
            if smooth:
                window = max(5, len(x) // 40)
                series.append(Series(f"{label}, smoothed", i, x, smoothed(y, window)))
            if single or not smooth:
                series.append(Series(label, i, x, y, "faint" if smooth else "line"))
        if dev in run.dev:
            series.append(Series("dev", i, run.dev["step"], run.dev[dev], "dots"))
    title, summary = words(name), _range(runs, name if name == "loss" else dev or name)
    return dict(title=title[:1].upper() + title[1:], series=series, summary=summary, log=log)


def _scale_spec(runs: List[Record]) -> Dict[str, Any]:
    """Return the arguments of ``figure`` for the loss scale, with marks for skipped steps."""
    series, marks = [], []
    for i, run in enumerate(runs):
        scale, steps = run.train.get("loss_scale", np.zeros(0)), run.train.get("step", np.zeros(0))
        skipped = run.train.get("skipped_steps", np.zeros(len(steps)))
        if len(scale) and (len(set(scale)) > 1 or skipped.any()):  # else constant: no figure
            series.append(Series("loss scale", i, steps, scale, "steps"))
            marks.append((i, steps[np.diff(skipped, prepend=0) > 0]))
    summary = _range(runs, "loss_scale") + (" Marks on the axis: skipped steps." if marks else "")
    return dict(title="Loss scale", series=series, summary=summary, marks=marks, log=True)


def _range(runs: List[Record], name: str) -> str:
    """Return a sentence with the first, last, lowest and highest value of each run."""
    parts = []
    for run in runs:
        values = run.dev.get(name, run.train.get(name, np.zeros(0)))
        values = values[np.isfinite(values)]
        if len(values):
            who = f"{run.name}: " if len(runs) > 1 else ""
            parts.append(
                f"{who}from {short(values[0])} to {short(values[-1])}, lowest "
                f"{short(values.min())}, highest {short(values.max())}"
            )
    return f"{words(name)}: {'; '.join(parts)}." if parts else ""
