"""How fast is BERT on this GPU, in each precision and XLA mode, compared with PyTorch and JAX?

    ./amp-xla python -m benchmarks.gpu --peer /usr/bin/python3
    ./amp-xla python -m benchmarks.gpu --trial

Fills docs/results/gpu.md; needs neither make nor network. Each row is a process that trains the
largest batch that fits. A row is written as soon as it is measured, and the same command measures
the rows that are missing.

PyTorch's rows need `--peer`, JAX's need `--jax`: commands that start a Python with these packages.
JAX trains without dropout, since `jax.nn.dot_product_attention` has none.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import shlex
import statistics
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from typing_extensions import Annotated

from amp_xla.backend import nvidia
from amp_xla.config import parse, within
from amp_xla.errors import AmpXlaError
from amp_xla.models.options import training_flops
from amp_xla.process import durable
from amp_xla.process.exits import exit_code
from amp_xla.process.progress import note
from amp_xla.process.revision import revision
from amp_xla.speed import machine, table
from amp_xla.speed.child import Request
from amp_xla.speed.measure import ChildEnded
from benchmarks.harness import ROOT, Child, named
from benchmarks.masked_lm import MASKED_SHARE, our_config
from benchmarks.peers import PEERS_PYTHON

PAGE = ROOT / "docs" / "results" / "gpu"
NOT_MEASURED = "not measured"
TIMEOUT = 600.0  # seconds for one measurement
BASE = {"layers": 12, "hidden": 768, "vocab_size": 30522, "dropout": 0.1, "learning_rate": 1e-4}
SHAPES: Dict[str, Dict[str, Any]] = {
    "BERT-base at 384": {**BASE, "max_length": 384, "seed": 1},
    "BERT-large at 384": {**BASE, "layers": 24, "hidden": 1024, "max_length": 384, "seed": 1},
}
TINY = {"tiny at 16": {**BASE, "layers": 1, "hidden": 64, "vocab_size": 200, "max_length": 16,
                       "seed": 1}}  # fmt: skip
TEXTS = ("padded", "packed")  # the classification recipe on real texts, BERT-base at 384
BATCHES = (512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 8, 4)
FMHA = {"XLA_FLAGS": "--xla_gpu_enable_cudnn_fmha=true"}
# Dense TFLOP/s of the tensor cores in half precision and in TF32, from NVIDIA's data sheets.
PEAKS = {
    "V100": (125, 16), "T4": (65, 8), "A100": (312, 156), "A30": (165, 82), "A10": (125, 62),
    "L40S": (362, 183), "L4": (121, 60), "H100": (989, 494), "H200": (989, 494),
    "3090": (71, 36), "4090": (165, 83),
}  # fmt: skip
HEAD = ("contestant", "batch", "sequences/s", "step ms", "TFLOP/s", "of peak", "peak GiB", "result")


class Contestant(NamedTuple):
    """One way to train; ``side`` is a contestant of ``benchmarks.masked_lm``."""

    precision: str
    xla: str = "off"
    environ: Mapping[str, str] = MappingProxyType({})
    side: str = "ours"
    compile: bool = False


CONTESTANTS: Dict[str, Contestant] = {
    "amp + xla on": Contestant("amp", "on"),
    "tf32": Contestant("tf32"),
    "PyTorch bf16 compiled": Contestant("bf16", side="hugging_face", compile=True),
    "PyTorch bf16": Contestant("bf16", side="hugging_face"),
    "JAX bf16": Contestant("bf16", side="jax"),
    "amp": Contestant("amp"),
    "tf32 + xla on": Contestant("tf32", "on"),
    "amp + xla no_lazy": Contestant("amp", "no_lazy"),
    "amp + xla lite": Contestant("amp", "lite"),
    "amp + xla on + cudnn_fmha": Contestant("amp", "on", FMHA),
    "fp32": Contestant("fp32"),
}


@dataclasses.dataclass(frozen=True)
class Config:
    """Compare this project with PyTorch on a GPU. A repeated command measures only missing rows."""

    steps: Annotated[int, within(at_least=1)] = 20
    """timed steps per row"""
    peer: str = str(PEERS_PYTHON)
    """command that starts a Python with torch and transformers"""
    jax: str = str(Path(".venvs") / "jax" / "bin" / "python")
    """command that starts a Python with jax"""
    only: str = ""
    """rows whose name contains one of these texts, separated by semicolons (default: all)"""
    out: str = ""
    """path of the files to write, without .json and .md (default: docs/results/gpu; with --trial:
    runs/gpu)"""
    trial: bool = False
    """test this command with a tiny model, on any machine; the figures mean nothing"""
    render: bool = False
    """measure nothing, only write the page again from the record"""


@dataclasses.dataclass
class Row:
    """The measurement of a contestant on a shape; ``machine`` has device and versions."""

    shape: str
    contestant: str
    machine: Dict[str, str]
    date: str
    batch: int = 0
    status: str = NOT_MEASURED
    seconds: List[float] = dataclasses.field(default_factory=list)
    samples_per_second: float = 0.0
    loss: Optional[float] = None
    peak_bytes: int = 0
    warm_seconds: float = 0.0


def main() -> int:
    """Measure the missing rows; return 1 if a row failed."""
    config = parse(Config, prog="python -m benchmarks.gpu")
    out = Path(config.out or ("runs/gpu" if config.trial else PAGE))
    if config.trial and PAGE.parent in out.resolve().parents:
        raise AmpXlaError(f"--out {out}: a trial is not a result; allowed: outside {PAGE.parent}")
    rows = read(out)
    if not config.render:
        here = machine.look()
        if not (here.gpu or config.trial):
            raise AmpXlaError(
                f"no GPU that TensorFlow {here.tensorflow} can use "
                f"({nvidia.look(os.environ).describe()}); next: amp-xla doctor, or --trial"
            )
        note(here.describe())
        measure(config, here, rows, out)
    write(rows, out, config.trial)
    print(f"written: {out}.json, {out}.md")
    return int(any(row.status != "ok" for row in rows.values()))


def plan(trial: bool) -> List[Tuple[str, str]]:
    """Return (shape, contestant), the most important rows first."""
    shapes = TINY if trial else SHAPES
    texts = [(f"texts, {kind}", name) for name in ("amp + xla on", "tf32") for kind in TEXTS]
    return [(shape, name) for name in CONTESTANTS for shape in shapes] + texts


def measure(
    config: Config, here: machine.Machine, rows: Dict[Tuple[str, str], Row], out: Path
) -> None:
    """Measure the rows that are missing in ``rows``; write the record after each."""
    pairs = [pair for pair in plan(config.trial) if named(", ".join(pair), config.only)]
    if not pairs:
        names = "; ".join(", ".join(pair) for pair in plan(config.trial))
        raise AmpXlaError(f"--only {config.only}: no such row; allowed: parts of {names}")
    facts = {"device": here.device, "driver": here.driver, "revision": revision() or "unknown"}
    facts.update(tensorflow=here.tensorflow, python=here.python, steps=str(config.steps))
    for shape, name in pairs:
        contestant = CONTESTANTS[name]
        known = rows.get((shape, name))
        if known and known.status == "ok" and known.machine == facts:
            continue
        if contestant.precision in here.absent or contestant.xla in here.absent:
            continue
        row = Row(shape, name, facts, datetime.date.today().isoformat())
        for size in batches(config.trial, rows, row):
            row.batch = size
            fill(row, config)
            note(f"{shape}, {name}, batch {size}: {row.status}")
            if not row.status.startswith("out of memory"):
                break
        rows[shape, name] = row
        write(rows, out, config.trial)


def batches(trial: bool, rows: Dict[Tuple[str, str], Row], row: Row) -> List[int]:
    """Return batch sizes to try, from twice the largest that fitted for other contestants."""
    if trial:
        return [4]
    fitted = [other.batch for other in rows.values() if other.shape == row.shape and other.seconds]
    return [size for size in BATCHES if size <= 2 * max(fitted, default=BATCHES[0])]


def fill(row: Row, config: Config) -> None:
    """Measure a row in a new process."""
    contestant = CONTESTANTS[row.contestant]
    try:
        child = Child(command(row, config), dict(contestant.environ))
    except OSError as error:  # no such Python
        row.status = f"refused: {error}"
        return
    try:
        child.answer(TIMEOUT)
        warm = child.ask(TIMEOUT, do="warm", sample=8)
        answer = child.ask(TIMEOUT, do="steps", steps=config.steps)
        row.peak_bytes = child.ask(TIMEOUT, do="end")["peak_bytes"]
    except ChildEnded as end:
        row.status = f"{end.status}: {end.why}"
        return
    finally:
        child.close()
    row.warm_seconds, row.seconds, row.loss = (
        warm["warm_seconds"],
        answer["seconds"],
        answer["loss"],
    )
    row.samples_per_second = answer["samples"] / sum(answer["seconds"])
    row.status = "ok" if row.loss is not None else "loss not finite"


def command(row: Row, config: Config) -> List[str]:
    """Return the command line of a row's process."""
    contestant = CONTESTANTS[row.contestant]
    if row.shape.startswith("texts"):
        size = TINY["tiny at 16"] if config.trial else SHAPES["BERT-base at 384"]
        names = ("layers", "hidden", "max_length")
        words = [w for n in names for w in ("--" + n.replace("_", "-"), str(size[n]))]
        words += ["--batch-size", str(row.batch)]
        words += ["--packed"] if row.shape.endswith("packed") else ["--shapes", "1"]
        request = Request("classification", words, contestant.precision, contestant.xla)
        text = json.dumps(dataclasses.asdict(request))
        return [sys.executable, "-m", "benchmarks.recipe_side", text]
    shape = {**(TINY if config.trial else SHAPES)[row.shape], "batch_size": row.batch}
    shape.update(precision=contestant.precision, xla=contestant.xla, compile=contestant.compile)
    pythons = {
        "ours": [sys.executable],
        "hugging_face": shlex.split(config.peer),
        "jax": shlex.split(config.jax),
    }
    side = contestant.side
    return [*pythons[side], "-m", "benchmarks.masked_lm", side, json.dumps(shape)]


def read(out: Path) -> Dict[Tuple[str, str], Row]:
    """Return the rows of a record; an empty dictionary if the file is missing.

    Raises:
      AmpXlaError: the file is not a record.
    """
    path = out.with_suffix(".json")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
        rows = [Row(**row) for row in values]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AmpXlaError(f"{path} is not a record of this benchmark: {error}") from error
    return {(row.shape, row.contestant): row for row in rows}


def write(rows: Dict[Tuple[str, str], Row], out: Path, trial: bool) -> None:
    """Write the record and its page."""
    out.parent.mkdir(parents=True, exist_ok=True)
    record = {"trial": trial, "rows": [dataclasses.asdict(row) for row in rows.values()]}
    durable.replace(out.with_suffix(".json"), (json.dumps(record, indent=1) + "\n").encode())
    durable.replace(out.with_suffix(".md"), render(rows, trial).encode())


def render(rows: Dict[Tuple[str, str], Row], trial: bool) -> str:
    """Return the page in Markdown."""
    introduction = (__doc__ or "").split("\n\n", 2)
    lines = ["# On a GPU: results", ""]
    if trial:
        lines += ["**A trial with a tiny model: not a result.**", ""]
    elif not rows:
        lines += ["**Not measured:** no machine with an NVIDIA GPU was available.", ""]
    lines += [introduction[1], "", introduction[2].strip(), "", "TFLOP/s counts the matrix products"
              " that the model needs; the peak is the data sheet's, dense.", ""]  # fmt: skip
    for shape in dict.fromkeys(shape for shape, _ in plan(trial)):
        body = [cells(row) for row in rows.values() if row.shape == shape]
        lines += [f"## {shape}", "", table.markdown(HEAD, body) if body else NOT_MEASURED, ""]
    machines = {json.dumps(row.machine, sort_keys=True): row.date for row in rows.values()}
    lines += [f"- {date}: {facts}" for facts, date in machines.items()]
    return "\n".join(lines).rstrip() + "\n"


def cells(row: Row) -> List[str]:
    """Return the cells of a row of the table."""
    if not row.seconds:
        return [row.contestant, str(row.batch), "-", "-", "-", "-", "-", row.status]
    rate, share = "-", "-"
    shape = {**SHAPES, **TINY}.get(row.shape)
    if shape:
        length = shape["max_length"]
        flops = training_flops(our_config(shape), length, round(MASKED_SHARE * length))
        flops *= row.batch / statistics.median(row.seconds)
        rate = f"{flops / 1e12:.1f}"
        peaks = next((p for name, p in PEAKS.items() if name in row.machine["device"]), None)
        if peaks and CONTESTANTS[row.contestant].precision != "fp32":
            tf32 = CONTESTANTS[row.contestant].precision == "tf32"
            share = f"{flops / 1e12 / peaks[tf32]:.0%}"
    return [
        row.contestant, str(row.batch), f"{row.samples_per_second:.1f}",
        f"{statistics.median(row.seconds) * 1e3:.1f}", rate, share,
        f"{row.peak_bytes / 2**30:.1f}", row.status,
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(exit_code(main))
