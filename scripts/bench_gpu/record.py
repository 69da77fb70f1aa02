"""What is measured, in which order, and what was found: ``docs/results/gpu.json``."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import statistics
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from amp_xla.errors import AmpXlaError
from amp_xla.process import durable
from scripts.peers import pretraining

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "results" / "gpu.md"
INSPECT = "inspect"
BERT = {"max_length": 128, "vocab_size": 21128, "dropout": 0.1, "learning_rate": 1e-4, "seed": 1}
BASE, LARGE = {**BERT, "layers": 12, "hidden": 768}, {**BERT, "layers": 24, "hidden": 1024}
TINY = {**BERT, "layers": 1, "hidden": 64, "vocab_size": 512}
Numbers = Dict[str, Any]  # what scripts.peers.pretraining calls a shape
# What a table is about -> the step that is measured.
SHAPES: Dict[str, Numbers] = {
    "BERT-base 64 x 128": {**BASE, "batch_size": 64},
    "BERT-base 32 x 512": {**BASE, "batch_size": 32, "max_length": 512},
    "BERT-large 16 x 128": {**LARGE, "batch_size": 16},
}
TRIAL: Dict[str, Numbers] = {
    "tiny 4 x 16": {**TINY, "batch_size": 4, "max_length": 16},
    "tiny 2 x 32": {**TINY, "batch_size": 2, "max_length": 32},
}


class Contestant(NamedTuple):
    """``xla`` is this project's mode; None = Hugging Face on PyTorch."""

    precision: str
    xla: Optional[str]
    compile: bool = False

    @property
    def kind(self) -> str:
        """Which matrix product bounds it: half precision, tf32 or fp32."""
        return "half" if self.precision in ("amp", "bf16") else self.precision


COMPILED = "PyTorch bf16, torch.compile"
CONTESTANTS: Dict[str, Contestant] = {
    "fp32": Contestant("fp32", "off"),
    "tf32": Contestant("tf32", "off"),
    "amp": Contestant("amp", "off"),
    "amp + xla on": Contestant("amp", "on"),
    "amp + xla no_lazy": Contestant("amp", "no_lazy"),
    "amp + xla lite": Contestant("amp", "lite"),
    "PyTorch bf16": Contestant("bf16", None),
    COMPILED: Contestant("bf16", None, True),
}
WITH_XLA = [name for name, one in CONTESTANTS.items() if one.xla not in (None, "off")]
# What decides the goals comes first, of every shape.
ORDER = (
    ("amp + xla on", "tf32", COMPILED, "amp"),
    ("PyTorch bf16", "amp + xla lite", INSPECT, "amp + xla no_lazy", "fp32"),
)


@dataclasses.dataclass
class Row:
    """One contestant on one shape.

    Attributes:
      shape, contestant: names; ``inspect`` has only told ``half_nodes`` and ``flops``.
      of: machine, versions and code; rows that differ in it are not put into one table.
      date: when.
      status, why: as in ``amp_xla.speed.measure.Outcome``.
      seconds: of each timed step.
      loss: after the last one.
      peak_bytes: of the GPU's memory; in a trial without one, resident.
      warm_seconds: the steps before, compilation included.
      half_nodes: that compute in half precision, casts not counted.
      clusters: of XLA.
      flops: of the matrix products that inspect found in the graph, to hold the formula against.
      ceiling: FLOPs a second of a matrix product in the same process; 0 = not measured here.
    """

    shape: str
    contestant: str
    of: Dict[str, str]
    date: str
    status: str = "ok"
    why: str = ""
    seconds: List[float] = dataclasses.field(default_factory=list)
    loss: Optional[float] = None
    peak_bytes: int = 0
    warm_seconds: float = 0.0
    half_nodes: Optional[int] = None
    clusters: int = 0
    flops: float = 0.0
    ceiling: float = 0.0

    @property
    def median(self) -> float:
        """Seconds a step; 0 where none was timed."""
        return statistics.median(self.seconds) if self.seconds else 0.0


@dataclasses.dataclass
class Record:
    """A table in the making.

    Attributes:
      trial: of the tiny model, which is no result.
      command, machine, revision: of the last call.
      spent: seconds of all calls.
      rows: what was found, in any order.
    """

    trial: bool = False
    command: str = ""
    machine: str = ""
    revision: str = ""
    spent: float = 0.0
    rows: List[Row] = dataclasses.field(default_factory=list)

    @property
    def shapes(self) -> Dict[str, Numbers]:
        """Those of its tables."""
        return TRIAL if self.trial else SHAPES

    def row(self, shape: str, contestant: str) -> Optional[Row]:
        """The one that was found, if it was."""
        return next((r for r in self.rows if (r.shape, r.contestant) == (shape, contestant)), None)

    def keep(self, row: Row) -> None:
        """Puts ``row`` in the place of the one it follows."""
        old = self.row(row.shape, row.contestant)
        self.rows = [r for r in self.rows if r is not old] + [row]

    def ceiling(self, kind: str) -> float:
        """The best matrix product that anyone saw in this precision; 0 = not measured."""
        named = [(CONTESTANTS.get(row.contestant), row.ceiling) for row in self.rows]
        return max((rate for one, rate in named if one and one.kind == kind), default=0.0)

    def foretold(self, shape: str) -> Optional[int]:
        """Half-precision nodes that inspect foretold for a model of this shape's size."""
        size = model(self.shapes[shape])
        told = [row for row in self.rows if row.contestant == INSPECT and row.half_nodes]
        same = [row.half_nodes for row in told if model(self.shapes[row.shape]) == size]
        return same[0] if same else None

    def utilisation(self, row: Row) -> Optional[float]:
        """Share of the ceiling that the model's own products get."""
        ceiling = self.ceiling(CONTESTANTS[row.contestant].kind)
        if not ceiling or not row.median:
            return None
        return pretraining.model_flops(self.shapes[row.shape]) / row.median / ceiling

    def write(self, path: Path) -> None:
        """As JSON; a kill leaves the old file or the new one."""
        data = json.dumps(dataclasses.asdict(self), indent=1) + "\n"
        durable.replace(path, data.encode())


def model(numbers: Numbers) -> Tuple[int, int]:
    """What its graph's size depends on."""
    return numbers["layers"], numbers["hidden"]


def read(path: Path, trial: bool) -> Record:
    """The record, empty where there is no file.

    Raises:
      AmpXlaError: it is not one, or a trial's where a result is asked for, or the other way.
    """
    if not path.exists():
        return Record(trial)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        record = Record(**{**values, "rows": [Row(**row) for row in values["rows"]]})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AmpXlaError(f"{path} is not a record of bench-gpu: {error}") from error
    if record.trial != trial:
        kinds = ("a result", "a trial")
        raise AmpXlaError(f"{path} is {kinds[record.trial]}, not {kinds[trial]}: choose an --out")
    return record


def plan(record: Record) -> List[Tuple[str, str]]:
    """(shape, contestant) by importance; inspect once for each size of model."""
    out: List[Tuple[str, str]] = []
    for group in ORDER:
        for shape, numbers in record.shapes.items():
            sizes = [model(record.shapes[s]) for s, name in out if name == INSPECT]
            out += [(shape, n) for n in group if n != INSPECT or model(numbers) not in sizes]
    return out


def source() -> str:
    """Names the code that is measured, also where there is no git: equal names, equal code."""
    digest = hashlib.sha256()
    for folder in ("amp_xla", "scripts/peers"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]
