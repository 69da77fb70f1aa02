"""``make bench-gpu``: fills docs/results/gpu.md, at most eight minutes of GPU time a call.

    make bench-gpu
    python -m scripts.bench_gpu --trial

A row is a contestant on a shape, measured in a process of its own and kept as soon as it is there;
the same command goes on where it was cut off. The next rows build and compile while one is waited
for, and stand still while it is timed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from typing_extensions import Annotated

from amp_xla.backend import nvidia
from amp_xla.config import parse, within
from amp_xla.errors import AmpXlaError
from amp_xla.process import children, durable
from amp_xla.process.exits import exit_code
from amp_xla.process.revision import revision
from amp_xla.speed import machine
from amp_xla.speed.measure import Child, ChildEnded
from amp_xla.speed.tune import say
from scripts.bench_gpu.page import render
from scripts.bench_gpu.record import CONTESTANTS, INSPECT, PAGE, Record, Row, plan, read, source
from scripts.peers.__main__ import PEERS_PYTHON

# Seconds: a row that says nothing for so long is given up.
_LONGEST = 240.0
_GIB_A_ROW, _CORES_A_ROW, _MOST_ROWS = 24, 4, 4  # that are built side by side
_CEILING = (8192, 0.5, 8)  # rows and columns, seconds, products a call: 9 TFLOP
_SMALL_CEILING = (256, 0.05, 2)
_VERSIONS = (
    "import json, platform; from importlib.metadata import version; "
    "print(json.dumps({**{n: version(n) for n in ('torch', 'transformers')}, "
    "'python': platform.python_version()}))"
)
Pair = Tuple[str, str]  # names of shape and contestant


@dataclasses.dataclass(frozen=True)
class Config:
    """Measure this project beside PyTorch on a GPU; the same command goes on where it stopped."""

    seconds: Annotated[float, within(above=0)] = 480.0
    """of this call; what is not measured by then is named"""
    steps: Annotated[int, within(at_least=1)] = 20
    """timed steps of each row"""
    peer: str = str(PEERS_PYTHON)
    """command of a Python that has torch and transformers"""
    only: str = ""
    """parts of the names of rows to measure, between semicolons; none = all"""
    abreast: Annotated[int, within(at_least=0)] = 0
    """rows that are built side by side; 0 = by GPU memory and cores"""
    out: str = ""
    """where .json and .md go, without the ending; none = docs/results/gpu, of a trial runs/gpu"""
    trial: bool = False
    """a tiny model, on a CPU too: shows that all works, and is no result"""
    render: bool = False
    """measure nothing, write the page from the record"""


def main() -> int:
    """Measures what the record lacks; 1 where something is still missing."""
    began = time.monotonic()
    config = parse(Config, prog="python -m scripts.bench_gpu")
    out = Path(config.out or ("runs/gpu" if config.trial else PAGE.with_suffix("")))
    if config.trial and PAGE.parent in out.resolve().parents:
        raise AmpXlaError(f"a trial is no result: choose an --out outside {PAGE.parent}")
    record = read(out.with_suffix(".json"), config.trial)
    if config.render:
        write_page(record, out)
        say(f"written: {out}.md")
        return 0
    if not any(_named(pair, config.only) for pair in plan(record)):
        names = sorted({*record.shapes, *CONTESTANTS, INSPECT})
        raise AmpXlaError(f"--only {config.only}: no row is called so; names: {'; '.join(names)}")
    here = machine.look()
    if not (here.gpu or config.trial):
        driver = nvidia.look(os.environ)
        raise AmpXlaError(
            f"no GPU that TensorFlow {here.tensorflow} can use "
            f"({driver.hidden or driver.describe()}); next: amp-xla doctor; a trial with a tiny "
            f"model needs none: --trial"
        )
    say(here.describe())
    bench = Bench(config, record, here, out, began)
    bench.part_with_others()
    try:
        bench.run()
    except ChildEnded:
        say(f"{config.seconds:.0f} s are spent")
    finally:
        record.spent += time.monotonic() - began
        if record.rows:
            bench.write()
    left = bench.todo()
    if left:
        say("not measured: " + "; ".join(map(", ".join, left)) + ". The same command goes on.")
    if record.rows:
        print(render(record))
        say(f"written: {out}.json, {out}.md")
    return int(bool(left))


class Bench:
    """One call.

    Args:
      config: what was asked for.
      record: what is known; grows.
      here: this machine.
      out: where to write, without the ending.
      began: when the call began, by the monotonic clock.
    """

    def __init__(
        self, config: Config, record: Record, here: machine.Machine, out: Path, began: float
    ) -> None:
        self._config, self._record, self._here, self._out = config, record, here, out
        self._until = began + config.seconds
        self._peer = shlex.split(config.peer)
        both = {"device": here.device, "driver": here.driver, "source": source()}
        both["steps"] = str(config.steps)
        ours = {"tensorflow": here.tensorflow, "bert4keras": here.bert4keras}
        self._ours = {**both, **ours, "python": here.python}
        versions = _peer_versions(self._peer)
        self._theirs: Optional[Dict[str, str]] = {**both, **versions} if versions else None
        for name, why in here.absent.items():
            say(f"without {name}: {why}")
        record.command = "python -m scripts.bench_gpu " + " ".join(map(shlex.quote, sys.argv[1:]))
        record.machine, record.revision = here.describe(), revision() or "unknown"

    def part_with_others(self) -> None:
        """Rows of another machine, other versions or other code go out; their file is kept."""
        others = []
        for row in self._record.rows:
            of = self._of(row.contestant)
            if of is not None and row.of != of:
                others.append((row, sorted(k for k in of if row.of.get(k) != of[k])))
        if not others:
            return
        path = self._out.with_suffix(".json")
        kept = path.with_suffix(".before.json")
        kept.write_bytes(path.read_bytes())
        self._record.rows = [r for r in self._record.rows if all(r is not o for o, _ in others)]
        what = sorted({name for _, names in others for name in names})
        say(
            f"not mixed in, because of another {', '.join(what)}: {len(others)} rows, now in {kept}"
        )

    def _of(self, contestant: str) -> Optional[Dict[str, str]]:
        """What a row of this call is of; None where it cannot be measured here."""
        if contestant == INSPECT:
            return self._ours
        one = CONTESTANTS[contestant]
        if one.xla is None:
            return self._theirs
        absent = self._here.absent
        return None if one.precision in absent or one.xla in absent else self._ours

    def todo(self) -> List[Pair]:
        """What is asked for, can be had here and is not known, by importance."""
        return [pair for pair, row in self._chosen().items() if row is None]

    def _chosen(self) -> Dict[Pair, Optional[Row]]:
        return {
            pair: self._record.row(*pair)
            for pair in plan(self._record)
            if self._of(pair[1]) is not None and _named(pair, self._config.only)
        }

    def run(self) -> None:
        """Measures what is not known, then once more what failed in an earlier call.

        Raises:
          ChildEnded: the time is up.
        """
        failed = [pair for pair, row in self._chosen().items() if row and row.status != "ok"]
        crowded = self._measure(self.todo() + failed, self._abreast())
        self._measure(crowded, 1)

    def _abreast(self) -> int:
        fits = min(self._here.memory_gib // _GIB_A_ROW, self._here.cores // _CORES_A_ROW)
        return self._config.abreast or int(max(1, min(fits, _MOST_ROWS)))

    def _measure(self, pairs: Sequence[Pair], abreast: int) -> List[Pair]:
        """Measures ``pairs`` in turn; returns those that lacked memory beside others."""
        waiting, crowded = list(pairs), []
        started: List[Tuple[Pair, Child]] = []
        try:
            while waiting or started:
                while waiting and len(started) < abreast:
                    pair = waiting.pop(0)
                    started.append((pair, self._start(*pair)))
                pair, child = started.pop(0)
                others = [other for _, other in started]
                row = self._row(*pair)
                try:
                    self._fill(row, child, others)
                except ChildEnded as end:
                    if end.status == "timed out" and self._left() <= 0:
                        raise
                    row.status, row.why = end.status, end.why
                finally:
                    child.close()
                if row.status == "out of memory" and others:
                    say(f"{', '.join(pair)}: out of memory beside others; again when it is alone")
                    crowded.append(pair)
                    continue
                self._record.keep(row)
                self.write()
                ended = f"{row.status}{row.why and ': '}{row.why}"
                told = f"{row.median * 1e3:.1f} ms a step" if row.seconds else ended
                say(f"[{self._config.seconds - self._left():.0f} s] {', '.join(pair)}: {told}")
        finally:
            for _, child in started:
                child.close()
        return crowded

    def _left(self) -> float:
        return self._until - time.monotonic()

    def _start(self, shape: str, contestant: str) -> Child:
        """The process of a row, told to warm up as soon as it is built."""
        asked = {**self._record.shapes[shape], "precision": "amp", "xla": "off"}
        python, side = [sys.executable], INSPECT
        if contestant != INSPECT:
            one = CONTESTANTS[contestant]
            asked.update(precision=one.precision, xla=one.xla, compile=one.compile)
            python, side = (self._peer, "hugging_face") if one.xla is None else (python, "ours")
        words = children.command("scripts.peers.pretraining", side, json.dumps(asked))
        # Otherwise the first TensorFlow takes all of the GPU's memory from those beside it.
        child = Child([*python, *words[1:]], {"TF_FORCE_GPU_ALLOW_GROWTH": "true"})
        if contestant != INSPECT:
            child.tell(do="warm", sample=1)
        return child

    def _row(self, shape: str, contestant: str) -> Row:
        return Row(shape, contestant, self._of(contestant) or {}, str(datetime.date.today()))

    def _fill(self, row: Row, child: Child, others: Sequence[Child]) -> None:
        """Waits for the process of ``row``, and times it while the others stand still."""

        def limit() -> float:
            return max(0.0, min(self._left(), _LONGEST))

        built = child.answer(limit())
        if row.contestant == INSPECT:
            row.half_nodes, row.flops = built["half_nodes"], built["flops"]
            return
        warm = child.answer(limit())
        row.warm_seconds = warm["warm_seconds"]
        row.half_nodes, row.clusters = warm.get("half_nodes"), warm.get("clusters", 0)
        with _still(others):
            found = child.ask(limit(), do="steps", steps=self._config.steps)
        # The others go on: of the ceiling the fastest run counts, and new kernels may have to wait
        # for a lock of the driver's that one of them holds.
        end = child.ask(limit() + 1.0, do="end", ceiling=self._ceiling(row.contestant))
        row.seconds, row.loss = found["seconds"], found["loss"]
        row.peak_bytes, row.ceiling = end["peak_bytes"], end.get("ceiling", 0.0)
        if row.loss is None:
            row.status, row.why = "not finite", "the loss"

    def _ceiling(self, contestant: str) -> Sequence[float]:
        """What matrix product to try; none where this side's is known in this precision."""
        one = CONTESTANTS[contestant]
        for row in self._record.rows:
            other = CONTESTANTS.get(row.contestant)
            if row.ceiling and other and other[0] == one.precision:
                return ()
        return _CEILING if self._here.gpu else _SMALL_CEILING

    def write(self) -> None:
        """The record, and its page."""
        self._out.parent.mkdir(parents=True, exist_ok=True)
        self._record.write(self._out.with_suffix(".json"))
        write_page(self._record, self._out)


def write_page(record: Record, out: Path) -> None:
    """The record as Markdown."""
    out.parent.mkdir(parents=True, exist_ok=True)
    durable.replace(out.with_suffix(".md"), render(record).encode())


def _named(pair: Pair, only: str) -> bool:
    return any(part.strip() in ", ".join(pair) for part in only.split(";"))


@contextlib.contextmanager
def _still(others: Sequence[Child]) -> Iterator[None]:
    for other in others:
        other.halt()
    try:
        yield
    finally:
        for other in others:
            other.go_on()


def _peer_versions(python: Sequence[str]) -> Optional[Dict[str, str]]:
    """Of PyTorch's Python; None, and a line that says why, where it has none."""
    try:
        done = subprocess.run([*python, "-c", _VERSIONS], capture_output=True, timeout=60)
        why = (done.stderr.decode("utf-8", "replace").strip().splitlines() or [""])[-1]
    except OSError as error:
        why = str(error.strerror)
    except subprocess.SubprocessError as error:
        why = str(error)
    else:
        if not done.returncode:
            return dict(json.loads(done.stdout.decode().splitlines()[-1]))
    say(f"without PyTorch: {' '.join(python)}: {why}; --peer names a Python that has it")
    return None


if __name__ == "__main__":
    sys.exit(exit_code(main))
