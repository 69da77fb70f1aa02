"""How fast is BERT on this GPU, in each precision and XLA mode, compared with PyTorch and JAX?

    ./amp-xla python -m benchmarks.gpu --minutes 12
    ./amp-xla python -m benchmarks.gpu --trial --minutes 4

Fills docs/results/gpu.md; needs neither make nor network. Each row is a process. All rows of a
shape train the same model on the same batches, 64 sequences for BERT-base and 32 for BERT-large,
fewer if they do not fit. A row is written as soon as it is measured, and the same command measures
the rows that are missing, the most valuable first.

TensorFlow's rows run in the Python of this command, PyTorch's in that of `--peer`, JAX's in that of
`--jax`. The vocabulary has 30,528 tokens: BERT's 30,522, rounded up for tensor cores. Dropout is
0.1, but the row with cuDNN's attention has no attention dropout. All rows compute logits at the
masked positions, except one row of PyTorch, which computes them at all positions, as its users do.
Tables named "texts" are of the classification recipe in BERT-base's size, with default `--shapes`.

The spread is that of three measurements of `--steps` steps. TFLOP/s counts the matrix products that
the model needs; "of peak" divides by the data sheet's dense peak. Times exclude making batches.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.util
import json
import math
import re
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, List, Mapping, Tuple

from typing_extensions import Annotated

from amp_xla.backend import nvidia
from amp_xla.config import parse, within
from amp_xla.errors import AmpXlaError
from amp_xla.process import durable
from amp_xla.process.checkout import revision
from amp_xla.process.exits import exit_code
from amp_xla.process.progress import note
from amp_xla.speed import machine
from amp_xla.speed.measure import spread
from benchmarks import ROOT, markdown
from benchmarks.child import ChildEnded, answer_of
from benchmarks.gpu_rows import BATCH, CONTESTANTS, Row, gpu_named, planned

PAGE = ROOT / "docs" / "results" / "gpu"
TIMEOUT = 300.0  # seconds of a row
COMPILING = 600.0  # with XLA; the first step of BERT-large took 145 on an H100
HEAD = ("contestant", "batch", "sequences/s", "spread", "step ms", "batch ms", "TFLOP/s", "of peak",
        "peak GiB", "first loss", "half nodes, clusters, skipped", "revision, date",
        "result")  # fmt: skip
# Packages whose versions a row depends on, by side; CUDA's, if they are packages
PACKAGES = {
    "ours": "tensorflow|nvidia-tensorflow|tensorflow-gpu|tf-keras",
    "hugging_face": "torch|transformers",
    "jax": "jax|jaxlib|optax",
}
_ALSO = "bert4keras|numpy|nvidia-(cuda-runtime|cudnn|cublas).*|CUDA|Python"
_VERSIONS = """
import json, os, platform
try:
    from importlib.metadata import distributions
except ImportError:  # Python 3.7
    from importlib_metadata import distributions
found = {d.metadata["Name"]: d.version for d in distributions() if d.metadata["Name"]}
image = os.environ.get("CUDA_VERSION")
found.update({"CUDA": image} if image else {}, Python=platform.python_version())
print(json.dumps(found))
"""


@dataclasses.dataclass(frozen=True)
class Config:
    """Compare this project with PyTorch on a GPU. A repeated command measures only missing rows."""

    minutes: Annotated[float, within(at_least=0)] = 0.0
    """end after this time; no row is begun that would not end (0 = no limit)"""
    steps: Annotated[int, within(at_least=1)] = 10
    """timed steps per window; a row has three windows"""
    peer: str = ""
    """command that starts a Python with torch and transformers (default: this one if it has torch,
    else .venvs/peers)"""
    jax: str = ""
    """command that starts a Python with jax (default: this one if it has jax, else .venvs/jax)"""
    only: str = ""
    """rows whose name contains one of these texts, separated by semicolons (default: all)"""
    out: str = ""
    """path of the files to write, without .json and .md (default: docs/results/gpu; with --trial:
    runs/gpu)"""
    trial: bool = False
    """test this command with a tiny model, on any machine; the figures mean nothing"""
    render: bool = False
    """measure nothing, only write the page again from the record"""

    def python(self, side: str) -> List[str]:
        """Return the command that starts the Python of a side."""
        given, package, folder = {
            "ours": ("", "", ""), "hugging_face": (self.peer, "torch", "peers"),
            "jax": (self.jax, "jax", "jax"),
        }[side]  # fmt: skip
        built = ROOT / ".venvs" / folder / "bin" / "python"
        here = not package or importlib.util.find_spec(package) or not built.exists()
        return shlex.split(given) or [sys.executable if here else str(built)]


Rows = Dict[Tuple[str, str, str], Row]


def main() -> int:
    """Measure the missing rows; return 1 if a row failed."""
    began = time.monotonic()
    config = parse(Config, prog="python -m benchmarks.gpu")
    deadline = began + 60 * config.minutes if config.minutes else float("inf")
    out = Path(config.out or ("runs/gpu" if config.trial else PAGE))
    if config.trial and PAGE.parent in out.resolve().parents:
        raise AmpXlaError(f"--out {out}: a trial is not a result; allowed: outside {PAGE.parent}")
    rows = read(out)
    if not config.render:
        measure(config, rows, out, deadline)
    write(rows, out, config.trial)
    print(f"written: {out}.json, {out}.md")
    return int(any(row.status != "ok" for row in rows.values()))


def measure(config: Config, rows: Rows, out: Path, deadline: float) -> None:
    """Measure the rows that are missing in ``rows``; write the record after each."""
    pairs, driver = planned(config), nvidia.look()
    on_gpu = bool(driver.gpus) and driver.shown
    if not (on_gpu or config.trial):
        raise AmpXlaError(f"no GPU ({driver.describe()}); next: amp-xla doctor, or --trial")
    facts = {"card": machine.cpu_name(), "driver": "none", "steps": str(config.steps)}
    if on_gpu:
        facts.update(card=driver.gpus[0].name, driver=driver.gpus[0].driver)
    sides = dict.fromkeys(CONTESTANTS[name].side for _, name in pairs)
    versions = {side: packages(config, side, deadline) for side in sides}
    absent: Mapping[str, str] = {}
    took: Dict[Tuple[str, float], float] = {}  # seconds of a row of this kind
    if versions.get("ours"):
        try:
            here = machine.look(min(TIMEOUT, max(deadline - time.monotonic(), 1.0)))
            absent = here.absent
            note("\n".join(f"not measured: {mode} ({why})" for mode, why in absent.items()))
            if on_gpu and not here.gpu:
                raise AmpXlaError(f"TensorFlow {here.tensorflow} cannot use the GPU")
        except (AmpXlaError, subprocess.SubprocessError) as error:
            note(f"no rows of TensorFlow: {error!s:.200}; next: amp-xla doctor")
            versions["ours"] = {}
    for shape, name in pairs:
        contestant = CONTESTANTS[name]
        if not versions[contestant.side] or {contestant.precision, contestant.xla} & set(absent):
            continue
        row = Row(shape, name, {**facts, **versions[contestant.side]},
                  datetime.date.today().isoformat(), revision() or "unknown")  # fmt: skip
        known = rows.get(row.key)
        if known and known.status == "ok" and known.machine == row.machine:
            continue
        kind, began = (contestant.side, contestant.seconds), time.monotonic()
        if deadline - began < max(contestant.seconds, took.get(kind, 0.0)):
            note(f"{shape}, {name}: no time is left for it")
            continue
        first = BATCH[shape]
        for row.batch in (first, first // 2, first // 4):
            fill(row, config, deadline)
            note(f"{shape}, {name}, batch {row.batch}: {row.status}")
            if not row.status.startswith("out of memory"):
                break
        took[kind] = max(took.get(kind, 0.0), time.monotonic() - began)
        rows[row.key] = row
        if row.status == "ok":
            row.status = row.problem(config.trial, rows.values()) or "ok"
        write(rows, out, config.trial)


def packages(config: Config, side: str, deadline: float) -> Dict[str, str]:
    """Return the versions of a side's packages; an empty dictionary if its Python has none."""
    command = config.python(side)
    seconds = min(30.0, max(deadline - time.monotonic(), 1.0))
    try:
        done = subprocess.run([*command, "-c", _VERSIONS], capture_output=True, timeout=seconds)
        found = json.loads(done.stdout.decode().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        found = {}
    wanted = PACKAGES[side]
    if not any(re.fullmatch(wanted, name) for name in found):
        note(f"{' '.join(command)} has no {wanted.split('|')[0]}, or does not answer: no such rows")
        return {}
    return {n: found[n] for n in sorted(found) if re.fullmatch(f"{wanted}|{_ALSO}", n)}


def fill(row: Row, config: Config, deadline: float) -> None:
    """Measure a row in a new process."""
    contestant = CONTESTANTS[row.contestant]
    limit = TIMEOUT if contestant.xla == "off" else COMPILING
    seconds = max(min(limit, deadline - time.monotonic()), 0.0)
    try:
        answer = answer_of(row.command(config), contestant.environ, seconds)
    except OSError as error:
        row.status = f"refused: {error}"
    except ChildEnded as end:
        row.status = ": ".join(end.args)
    else:
        for name in answer.keys() & {field.name for field in dataclasses.fields(Row)}:
            setattr(row, name, answer[name])
        starts = range(0, len(row.seconds), config.steps)
        windows = [slice(start, start + config.steps) for start in starts]
        row.windows = [sum(answer["samples"][w]) / sum(row.seconds[w]) for w in windows]
        row.status = "ok"


def read(out: Path) -> Rows:
    """Return the rows of a record; an empty dictionary if the file is missing.

    Raises:
      AmpXlaError: the file is not a record.
    """
    path = out.with_suffix(".json")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
        return {row.key: row for row in (Row(**value) for value in values)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AmpXlaError(f"{path} is not a record of this benchmark: {error}") from error


def write(rows: Rows, out: Path, trial: bool) -> None:
    """Write the record and its page."""
    out.parent.mkdir(parents=True, exist_ok=True)
    record = {"trial": trial, "rows": [dataclasses.asdict(row) for row in rows.values()]}
    durable.replace(out.with_suffix(".json"), (json.dumps(record, indent=1) + "\n").encode())
    durable.replace(out.with_suffix(".md"), render(rows, trial).encode())


def render(rows: Rows, trial: bool) -> str:
    """Return the page in Markdown: a table for each shape and card."""
    introduction = (__doc__ or "").split("\n\n", 2)
    lines = ["# On a GPU: results", ""]
    if trial:
        lines += ["**A trial with a tiny model: not a result.**", ""]
    elif not rows:
        lines += ["**Not measured:** no machine with an NVIDIA GPU was available.", ""]
    lines += [introduction[1], "", introduction[2].strip(), ""]
    order = list(BATCH), list(CONTESTANTS)
    tables: Dict[Tuple[int, str, str], List[Row]] = {}
    for row in sorted(rows.values(), key=lambda row: order[1].index(row.contestant)):
        place = order[0].index(row.shape)
        tables.setdefault((place, row.shape, row.machine["card"]), []).append(row)
    for (_, shape, card), body in sorted(tables.items()):
        lines += [f"## {shape}: {card}", "", markdown(HEAD, [cells(row) for row in body]), ""]
        notes: Dict[str, List[str]] = {}
        for row in body:
            facts = ", ".join(f"{n} {v}" for n, v in row.machine.items() if n != "card")
            notes.setdefault(facts, []).append(row.contestant)
        lines += [*(f"- {'; '.join(names)}: {facts}" for facts, names in notes.items()), ""]
    return "\n".join(lines).rstrip() + "\n"


def cells(row: Row) -> List[str]:
    """Return the cells of a row of the table."""
    measured = [row.contestant, str(row.batch), *["-"] * 8]
    if row.seconds:
        step = statistics.median(row.seconds)
        rate = row.expected_flops / step / 1e12
        precision = CONTESTANTS[row.contestant].precision
        sheet = gpu_named(row.machine["card"])
        peaks = {} if sheet is None else {
            "amp": sheet.half, "bf16": sheet.half, "tf32": sheet.tf32 or sheet.float32
        }  # fmt: skip
        share = rate / peaks.get(precision, math.inf)
        measured[2:] = [
            f"{statistics.median(row.windows):.1f}", f"{spread(row.windows):.0%}",
            f"{1e3 * step:.1f}", f"{1e3 * row.making_seconds:.1f}", f"{rate:.1f}" if rate else "-",
            f"{share:.0%}" if share else "-", f"{row.peak_bytes / 2**30:.1f}",
            "-" if row.first_loss is None else f"{row.first_loss:.4f}",
        ]  # fmt: skip
    ran = f"{row.half_nodes}, {row.clusters}, {row.skipped}"
    ran = "-" if row.first_loss is None else ran
    return [*measured, ran, f"{row.revision}, {row.date}", row.status]


if __name__ == "__main__":
    sys.exit(exit_code(main))
