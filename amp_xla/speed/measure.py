"""Short runs with each combination of precision and XLA mode, in several rounds.

Rounds go A B C, C B A, A B C, ..., so that a machine that slows down slows all combinations.
Running out of memory, NaN and crashes are results, not errors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from amp_xla import backend
from amp_xla.process.progress import note
from amp_xla.process.stopping import temporary_folder
from amp_xla.settings import flags
from amp_xla.speed.machine import clean_environment

WARM_STEPS = 16  # XLA's lazy mode compiles a further shape at its second request
_COMPILES = 5.0  # a step that takes longer than this many median steps has compiled a shape
_FIRST_ROUND = 0.7  # share of the time budget in which the first round may start processes
_OUT_OF_MEMORY = re.compile(
    r"OOM when allocating|ResourceExhausted|RESOURCE_EXHAUSTED|out of memory|Out of memory"
    r"|MemoryError|bad_alloc|Cannot allocate memory|failed to map segment|mmap failed"
    r"|Resource temporarily unavailable|allocat\w+ (?:of )?\d+ bytes failed|can't start new thread"
    r"|not enough memory"
)
# Trains like ``amp-xla train``, but in another folder than ``runs``.
_TRAIN = """
import sys
from amp_xla.commands import cli
from amp_xla.training import run
run.RUNS = sys.argv.pop(1)
sys.exit(cli.main())
"""


@dataclasses.dataclass(frozen=True)
class Request:
    """A run to measure: recipe, the recipe's flags (``words``), precision and XLA mode."""

    recipe: str
    words: Sequence[str] = ()
    precision: str = "amp"
    xla: str = "off"


@dataclasses.dataclass
class Outcome:
    """Result of one combination.

    Attributes:
      status: ``ok``, ``out of memory``, ``not finite``, ``crashed``, ``timed out``, ``refused`` or
        ``not measured`` (the time budget was spent); ``why`` is the reason.
      samples_per_second: one number per round; ``step_seconds``: one number per timed step.
      steps, loss: number of steps of the last run, and loss of its last finite step.
      warm_seconds: seconds of compilation and other first-time work, in the first round.
    """

    precision: str
    xla: str
    status: str = "ok"
    why: str = ""
    samples_per_second: List[float] = dataclasses.field(default_factory=list)
    step_seconds: List[float] = dataclasses.field(default_factory=list)
    steps: int = 0
    loss: Optional[float] = None
    warm_seconds: float = 0.0

    @property
    def name(self) -> str:
        """Name of the combination, e.g. ``amp + xla on``."""
        return self.precision if self.xla == "off" else f"{self.precision} + xla {self.xla}"

    @property
    def median(self) -> float:
        """Median of samples per second over the rounds; 0 without rounds."""
        return statistics.median(self.samples_per_second) if self.samples_per_second else 0.0

    def add(self, lines: Sequence[Dict[str, Any]], steps: int) -> None:
        """Add a round: of the run's steps that did not compile, the last ``steps``.

        Args:
          lines: the run's lines of metrics.jsonl, one per step.
          steps: number of steps to time.

        Raises:
          ChildEnded: most steps were not finite.
        """
        samples = np.diff([0, *(line["samples"] for line in lines)])
        seconds = samples / [line["samples_per_second"] for line in lines]
        usual = float(np.median(seconds))
        timed = np.flatnonzero(seconds <= _COMPILES * usual)[-steps:]
        self.samples_per_second.append(float(samples[timed].sum() / seconds[timed].sum()))
        self.step_seconds += seconds[timed].tolist()
        compiling = seconds[seconds > _COMPILES * usual] - usual
        self.warm_seconds = self.warm_seconds or float(compiling.sum())
        losses = [line["loss"] for line in lines if isinstance(line["loss"], float)]
        self.steps, self.loss = len(lines), losses[-1] if losses else None
        if 2 * len(losses) < len(lines):  # a dynamic loss scale skips some steps, but not most
            raise ChildEnded("not finite", f"loss or gradients by step {self.steps}")


class ChildEnded(Exception):
    """A measured process ended without a result; ``args``: status and reason, as in ``Outcome``."""


def ended(code: int, errors: bytes) -> ChildEnded:
    """Return the exception for a process that ended without a result, with status and reason."""
    text = errors.decode("utf-8", "replace")
    last = "".join(text.strip().splitlines()[-1:])[:200]
    out_of_memory = _OUT_OF_MEMORY.search(text)
    if out_of_memory:
        return ChildEnded("out of memory", out_of_memory.group(0))
    if code == -signal.SIGKILL:
        return ChildEnded("out of memory", "killed by the system")
    if code == 2 and "error:" in text:
        return ChildEnded("refused", last)
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return ChildEnded("crashed", f"{how}: {last}")


def turn(request: Request, steps: int, timeout: float, folder: Path) -> List[Dict[str, Any]]:
    """Train for ``steps`` steps in a new process; return the lines of metrics.jsonl, one per step.

    Args:
      timeout: maximum seconds.
      folder: where the run is written. With TensorFlow 2, XLA also saves its compiled programs
        there, and the next round loads them.

    Raises:
      ChildEnded: the run failed, or took longer than ``timeout``.
    """
    runs, errors, began = folder / "runs", folder / "errors", time.monotonic()
    shutil.rmtree(str(runs), ignore_errors=True)
    modes = ("--precision", request.precision, "--xla", request.xla)
    command = [sys.executable, "-c", _TRAIN, str(runs), "train", request.recipe, "--"]
    command += [*request.words, *modes, "--log-every", "1", "--name", "tune"]
    environ = clean_environment()
    if request.xla != "off" and backend.installed() == "tf2":
        environ[flags.XLA_FLAGS] = f"--tf_xla_persistent_cache_directory={folder}"
    lines: List[Dict[str, Any]] = []
    with open(str(errors), "wb") as file, subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=file, env=environ, start_new_session=True
    ) as process:
        try:
            while process.poll() is None and len(lines) < steps:
                if time.monotonic() - began > timeout:
                    raise ChildEnded("timed out", f"no {steps} steps in {timeout:.0f} s")
                time.sleep(0.05)
                lines = _logged(runs)
            code = process.poll()
        finally:
            with contextlib.suppress(ProcessLookupError):  # what it started holds the GPU
                os.killpg(process.pid, signal.SIGKILL)
    lines = _logged(runs)
    diverged = any(not isinstance(line["loss"], float) for line in lines)
    if not lines or (code and not diverged):
        raise ended(code or 0, errors.read_bytes())
    return lines


def _logged(runs: Path) -> List[Dict[str, Any]]:
    """Return the training lines of the only run in a folder; empty if it has none yet."""
    text = "".join(path.read_text("utf-8") for path in runs.glob("*/tune/metrics.jsonl"))
    lines = map(json.loads, text.split("\n")[:-1])  # the last one may be incomplete
    return [line for line in lines if line["kind"] == "train"]


def measure(
    requests: Sequence[Request], steps: int, rounds: int, timeout: float, budget: float = 0.0
) -> List[Outcome]:
    """Train each combination on the same batches, in a new process each time.

    Args:
      steps: timed steps per run; ``timeout``: maximum seconds per process.
      budget: maximum seconds for all rounds, 0 = no limit. In the first round, combinations whose
        turn comes after 70% of the budget are ``not measured``. After 100%, no round starts.
    """
    outcomes = [Outcome(request.precision, request.xla) for request in requests]
    pairs = list(zip(requests, outcomes))
    began = time.monotonic()

    def spent(share: float = 1.0) -> bool:
        return bool(budget) and time.monotonic() - began >= budget * share

    with temporary_folder("amp_xla-") as folder:
        for number in range(rounds):
            if number and spent():
                note(f"{number} of {rounds} rounds fit into the limit of {budget:.0f} s")
                break
            note(f"round {number + 1} of {rounds} ...")
            for request, outcome in pairs if number % 2 == 0 else reversed(pairs):
                if outcome.status != "ok":
                    continue
                try:
                    if not number and spent(_FIRST_ROUND):
                        raise ChildEnded(
                            "not measured", f"the limit of {budget:.0f} s left no time for it"
                        )
                    note(f"{outcome.name}: building, compiling, {steps} steps ...")
                    outcome.add(turn(request, WARM_STEPS + steps, timeout, folder), steps)
                except ChildEnded as end:
                    outcome.status, outcome.why = end.args
    return outcomes


def spread(values: Sequence[float]) -> float:
    """Return (max - min) / median as a share; infinity for fewer than two values."""
    return (max(values) - min(values)) / statistics.median(values) if len(values) > 1 else math.inf
