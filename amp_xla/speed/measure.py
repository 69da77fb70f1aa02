"""Measurement of combinations of precision and XLA mode, each in a process, in several rounds.

Rounds go A B C, C B A, A B C, ..., so that a machine that slows down slows all of them. Running
out of memory, NaN and crashes are results, not errors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

from amp_xla import backend
from amp_xla.process.progress import note
from amp_xla.process.stopping import temporary_folder
from amp_xla.settings import flags
from amp_xla.speed.child import MARK, Request
from amp_xla.speed.machine import clean_environment

_OUT_OF_MEMORY = re.compile(
    r"OOM when allocating|ResourceExhausted|RESOURCE_EXHAUSTED|out of memory|Out of memory"
    r"|MemoryError|bad_alloc|Cannot allocate memory|failed to map segment|mmap failed"
    r"|Resource temporarily unavailable|allocat\w+ (?:of )?\d+ bytes failed|can't start new thread"
)
_FIRST_ROUND = 0.7  # share of the time budget in which the first round may start processes


@dataclasses.dataclass
class Outcome:
    """Result of one combination.

    Attributes:
      status: ``ok``, ``out of memory``, ``not finite``, ``crashed``, ``timed out``, ``refused`` or
        ``not measured`` (the time budget was spent).
      why: reason if the status is not ``ok``.
      samples_per_second: one number per round.
      step_seconds: one number per timed step.
      steps: training steps of the last process, warm-up included.
      loss: after the last step; None if it is not finite.
      peak_bytes: see ``child.peak_bytes``.
      warm_seconds: compilation and other first-time work, in the first round.
    """

    precision: str
    xla: str
    status: str = "ok"
    why: str = ""
    samples_per_second: List[float] = dataclasses.field(default_factory=list)
    step_seconds: List[float] = dataclasses.field(default_factory=list)
    steps: int = 0
    loss: Optional[float] = None
    peak_bytes: int = 0
    warm_seconds: float = 0.0

    @property
    def name(self) -> str:
        """Name of the combination, e.g. ``amp + xla on``."""
        return self.precision if self.xla == "off" else f"{self.precision} + xla {self.xla}"

    @property
    def median(self) -> float:
        """Median of samples per second over the rounds; 0 without rounds."""
        return statistics.median(self.samples_per_second) if self.samples_per_second else 0.0


class ChildEnded(Exception):
    """A measured process ended without a result; ``status`` and ``why`` as in ``Outcome``."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(status, why)
        self.status, self.why = status, why


def ended(code: int, errors: bytes) -> ChildEnded:
    """Return why a process ended without a result, from its exit code and standard error."""
    text = errors.decode("utf-8", "replace")
    last = next((line[:200] for line in reversed(text.splitlines()) if line.strip()), "")
    out_of_memory = _OUT_OF_MEMORY.search(text)
    if out_of_memory:
        return ChildEnded("out of memory", out_of_memory.group(0))
    if code == -signal.SIGKILL:
        return ChildEnded("out of memory", "killed by the system")
    if code == 2 and "error:" in text:
        return ChildEnded("refused", last)
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return ChildEnded("crashed", f"{how}: {last}")


def answer_of(command: Sequence[str], environ: Mapping[str, str], timeout: float) -> Dict[str, Any]:
    """Start a process and return its result, as ``child.reply`` prints it.

    Args:
      environ: variables to add to a clean environment.

    Raises:
      ChildEnded: the process ended without a result, or had none after ``timeout`` seconds.
    """
    with subprocess.Popen(
        list(command),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**clean_environment(), **environ},
        start_new_session=True,
    ) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise ChildEnded("timed out", f"no answer in {timeout:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):  # what it started holds GPU and pipes
                os.killpg(process.pid, signal.SIGKILL)
    answers = [line for line in out.splitlines() if line.startswith(MARK.encode())]
    if process.returncode or not answers:
        raise ended(process.returncode, errors)
    values: Dict[str, Any] = json.loads(answers[0][len(MARK) :].decode())
    return values


def turn(request: Request, timeout: float, compiled: str) -> Dict[str, Any]:
    """Measure the request in a new process; see ``answer_of``.

    Args:
      compiled: folder in which XLA of TensorFlow 2 keeps its programs for the next round.
    """
    command = [sys.executable, "-m", "amp_xla.speed.child", json.dumps(dataclasses.asdict(request))]
    caches = request.xla != "off" and backend.installed() == "tf2"
    flag = f"--tf_xla_persistent_cache_directory={compiled}"
    return answer_of(command, {flags.XLA_FLAGS: flag} if caches else {}, timeout)


def measure(
    requests: Sequence[Request],
    rounds: int,
    timeout: float,
    budget: float = 0.0,
) -> List[Outcome]:
    """Measure each combination on the same steps, in a new process each time.

    Args:
      timeout: maximum seconds per process.
      budget: maximum seconds for all rounds, 0 = no limit. In the first round, combinations whose
        turn comes after 70% of the budget are ``not measured``. No round starts once it is spent.
    """
    outcomes = [Outcome(request.precision, request.xla) for request in requests]
    pairs = list(zip(requests, outcomes))
    began = time.monotonic()

    def spent(share: float = 1.0) -> bool:
        return bool(budget) and time.monotonic() - began >= budget * share

    with temporary_folder("amp_xla-") as compiled:
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
                    note(f"{outcome.name}: building, compiling, {request.steps} steps ...")
                    answer = turn(request, timeout, str(compiled))
                    outcome.samples_per_second.append(answer["samples"] / sum(answer["seconds"]))
                    outcome.step_seconds += answer["seconds"]
                    for name in ("loss", "steps", "peak_bytes"):
                        setattr(outcome, name, answer[name])
                    outcome.warm_seconds = outcome.warm_seconds or answer["warm_seconds"]
                    if not answer["finite"]:
                        raise ChildEnded("not finite", f"loss or gradients by step {outcome.steps}")
                except ChildEnded as end:
                    outcome.status, outcome.why = end.status, end.why
    return outcomes
