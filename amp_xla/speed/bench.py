"""``make bench RECIPE=...``: every precision and XLA mode of this machine, for the record.

    python -m amp_xla bench --recipe classification -- --batch-size 64
    python -m amp_xla bench --compare a.json b.json
    python -m amp_xla bench --memory amp --recipe classification

Writes <out>.json (everything), <out>.md (the table) and <out>.svg (a bar chart). Bad rows stay in.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from typing_extensions import Annotated, Literal

from amp_xla.errors import AmpXlaError
from amp_xla.process.arguments import document, parse, split_words
from amp_xla.process.fields import flat, within
from amp_xla.process.revision import revision
from amp_xla.speed import machine, memory, table
from amp_xla.speed.measure import Candidate, Outcome, measure
from amp_xla.speed.peak import Peak, longest, needs_rows_of_one_length
from amp_xla.speed.tune import read_recipe, say


@dataclasses.dataclass(frozen=True)
class Config:
    """Measure every precision and XLA mode, for the record. After `--`: the recipe's flags."""

    recipe: str = "classification"
    """name of a recipe, or the path of a recipe's file"""
    steps: Annotated[int, within(at_least=1)] = 20
    """timed steps a round, the same batches for every combination"""
    rounds: Annotated[int, within(at_least=3)] = 3
    """turns of each combination; at least 3, or there is no spread to report"""
    timeout: Annotated[float, within(above=0)] = 1800.0
    """seconds without an answer after which a combination is given up"""
    out: str = "runs/bench"
    """where to write, without the ending"""
    compare: Optional[Tuple[str, str]] = None
    """two records (JSON) to compare instead of measuring"""
    memory: Optional[Literal["fp32", "tf32", "amp"]] = None
    """instead: predict the peak memory of six batches in this precision, then see it"""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Measures and writes the record, or compares two."""
    own, words = split_words(argv)
    config = parse(Config, own, "python -m amp_xla bench")
    if config.compare is not None:
        print(compare(*(read(Path(name)) for name in config.compare)))
        return 0
    recipe_config = read_recipe(config.recipe, words)
    if config.memory is not None:
        needs_rows_of_one_length(recipe_config)
    here = machine.look()
    say(here.describe())
    if config.memory is not None:
        print(memory_table(config.recipe, words, config.memory, config.timeout))
        return 0
    outcomes = measure(
        config.recipe,
        words,
        [Candidate(p, x) for p, x in here.ladder()],
        config.steps,
        config.rounds,
        config.timeout,
        together=not here.gpu,
        say=say,
        ceiling_seconds=1.0,
    )
    record = {
        "recipe": config.recipe,
        "command": "python -m amp_xla bench " + " ".join(argv or sys.argv[2:]),
        "date": datetime.date.today().isoformat(),
        "revision": revision(),
        "seed": flat(recipe_config).get("seed"),
        "config": document(recipe_config),
        "machine": {**dataclasses.asdict(here), "absent": here.absent},
        "load_average": Path("/proc/loadavg").read_text().split()[:3],
        "outcomes": [dataclasses.asdict(outcome) for outcome in outcomes],
    }
    out = Path(config.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    text = markdown(record)
    out.with_suffix(".json").write_text(json.dumps(record, indent=1, default=str) + "\n")
    out.with_suffix(".md").write_text(text)
    chart(record, out.with_suffix(".svg"))
    print(text)
    say(f"written: {out}.json, {out}.md, {out}.svg")
    return 0 if any(o.status == "ok" for o in outcomes) else 1


def memory_table(recipe: str, words: Sequence[str], precision: str, seconds: float) -> str:
    """The memory model fitted on four probes, against six other batches; all of them are run.

    Args:
      recipe, words: see ``Request``.
      precision: as in ``Settings``; without XLA.
      seconds: longest wait for one answer.
    """
    measured = Peak(recipe, words, precision, seconds=seconds, say=say)
    rows, length = longest(measured.shapes())
    model = memory.fit(measured.all(memory.probes(rows, length)))
    body = []
    for b, n, seen in measured.all(memory.unseen(rows, length)):
        predicted = model.predict(b, n)
        body.append([f"{b}x{n}", f"{predicted / 2**20:.0f}", f"{seen / 2**20:.0f}",
                     f"{predicted / seen - 1:+.1%}"])  # fmt: skip
    head = ("rows x length", "predicted MiB", "seen MiB", "off by")
    return f"{precision}: {model.describe()}\n\n{table.markdown(head, body)}"


def read(path: Path) -> Dict[str, Any]:
    """A record.

    Raises:
      AmpXlaError: the file is not one.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        record["outcomes"] = [Outcome(**values) for values in record["outcomes"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AmpXlaError(f"{path} is not a record of `bench`: {error}") from error
    return record


def markdown(record: Dict[str, Any]) -> str:
    """The record as a page."""
    outcomes = [o if isinstance(o, Outcome) else Outcome(**o) for o in record["outcomes"]]
    here = record["machine"]
    body = []
    for cells, outcome in zip(table.rows(outcomes), outcomes):
        share = outcome.utilisation
        rate = f"{outcome.ceiling / 1e9:.0f}" if outcome.ceiling else "-"
        body.append(cells[:-1] + [rate, f"{share:.0%}" if share else "-"] + cells[-1:])
    head = (*table.HEAD[:-1], "ceiling GFLOP/s", "of ceiling", table.HEAD[-1])
    driver = f", driver {here['driver']}" if here["driver"] else ""
    container = f", container {here['container']}" if here["container"] else ""
    flops = next((o.flops_per_sample for o in outcomes if o.flops_per_sample), None)
    lines = [
        f"# bench: {record['recipe']}",
        "",
        f"- command: `{record['command'].strip()}`",
        f"- {here['device']}, {here['cores']} cores, {here['memory_gib']:.0f} GiB"
        f"{driver}{container}",
        f"- TensorFlow {here['tensorflow']}{' (NVIDIA)' if here['fork'] else ''}, bert4keras "
        f"{here['bert4keras']}, Python {here['python']}; revision {record['revision']}; "
        f"seed {record['seed']}; {record['date']}",
        f"- load average at the end (1, 5, 15 minutes): {', '.join(record['load_average'])}",
    ]
    if flops:
        lines.append(
            f"- {flops / 1e9:.2f} GFLOP a sample (matrix products, forward and backward, padding "
            "included); the ceiling is a 2048 x 2048 matrix product in the same process"
        )
    lines += [f"- not there: {name} ({why})" for name, why in here.get("absent", {}).items()]
    lines += [
        "- samples/s: median of the rounds; spread: (max - min) / median of the rounds",
        "",
        table.markdown(head, body),
        "",
    ]
    return "\n".join(lines)


def compare(old: Dict[str, Any], new: Dict[str, Any]) -> str:
    """Two records side by side; what differs beyond the spread of either is marked."""
    before = {o.name: o for o in old["outcomes"]}
    after = {o.name: o for o in new["outcomes"]}
    body: List[List[str]] = []
    for name in list(dict.fromkeys([*before, *after])):
        a, b = before.get(name), after.get(name)
        cells = [name] + [_cell(o) for o in (a, b)]
        if a is None or b is None or not a.median or not b.median:
            body.append([*cells, "-", ""])
            continue
        ratio = b.median / a.median
        noise = max(table.spread(a.samples_per_second), table.spread(b.samples_per_second))
        verdict = (
            "within the spread" if abs(ratio - 1) <= noise else ("faster", "slower")[ratio < 1]
        )
        body.append([*cells, f"{ratio:.2f}x", verdict])
    lines = [table.markdown(("combination", "samples/s a", "samples/s b", "b / a", ""), body)]
    different = [
        f"{name}: {old['machine'].get(name)} / {new['machine'].get(name)}"
        for name in ("device", "driver", "tensorflow", "bert4keras", "cores")
        if old["machine"].get(name) != new["machine"].get(name)
    ]
    if old["config"] != new["config"] or old["recipe"] != new["recipe"]:
        different.append("the recipe's settings")
    if different:
        lines.append("not the same in both: " + "; ".join(different))
    return "\n".join(lines)


def _cell(outcome: Optional[Outcome]) -> str:
    if outcome is None:
        return "not there"
    if outcome.status != "ok":
        return outcome.status
    return f"{outcome.median:.1f} ±{table.spread(outcome.samples_per_second) / 2:.0%}"


def chart(record: Dict[str, Any], path: Path) -> None:
    """Bars of samples a second with the range of the rounds; bad rows by their result."""
    import matplotlib

    matplotlib.use("Agg")
    # Same record, same file: no dates, no random ids.
    matplotlib.rcParams["svg.hashsalt"] = "amp_xla"
    from matplotlib import pyplot

    outcomes = [Outcome(**values) for values in record["outcomes"]]
    figure, axes = pyplot.subplots(figsize=(7, 0.6 + 0.42 * len(outcomes)))
    for i, outcome in enumerate(reversed(outcomes)):
        if outcome.status == "ok" and outcome.samples_per_second:
            low, high = min(outcome.samples_per_second), max(outcome.samples_per_second)
            middle = outcome.median
            axes.barh(i, middle, color="#3b6ea5", xerr=[[middle - low], [high - middle]])
            axes.text(high, i, f"  {middle:.1f}", va="center", fontsize=8)
        else:
            axes.text(0, i, f"  {outcome.status}", va="center", fontsize=8, color="#a53b3b")
    axes.set_yticks(range(len(outcomes)))
    axes.set_ylim(-0.6, len(outcomes) - 0.4)  # rows without a bar need their room too
    axes.set_yticklabels([outcome.name for outcome in reversed(outcomes)])
    axes.set_xlabel("samples a second (bar: median, line: range of the rounds)")
    axes.set_title(f"{record['recipe']}, {record['machine']['device']}", fontsize=9)
    axes.spines["top"].set_visible(False)
    axes.spines["right"].set_visible(False)
    axes.margins(x=0.15)
    figure.tight_layout()
    figure.savefig(str(path), metadata={"Date": None})
    pyplot.close(figure)
