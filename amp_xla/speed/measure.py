"""Measures combinations of precision and XLA mode in alternating processes.

Rounds go A B C, C B A, A B C, ..., so that a machine that slows down slows all of them. Running
out of memory, NaN and crashes are results, not errors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from amp_xla.speed.child import MARK, Request
from amp_xla.speed.machine import clean_environment

_OUT_OF_MEMORY = re.compile(
    r"OOM when allocating|ResourceExhausted|RESOURCE_EXHAUSTED|out of memory|Out of memory"
    r"|MemoryError|bad_alloc|Cannot allocate memory|failed to map segment|mmap failed"
    r"|Resource temporarily unavailable|allocat\w+ (?:of )?\d+ bytes failed|can't start new thread"
)
_BUILDING_SHARE = 0.7  # of the time budget; the rest is left for further rounds


@dataclasses.dataclass
class Outcome:
    """One combination's result.

    Attributes:
      status: ``ok``, ``out of memory``, ``not finite``, ``crashed``, ``timed out``, ``refused`` or
        ``not measured`` (the time budget was spent).
      why: reason for a status other than ok.
      samples_per_second: one number per round.
      step_ms: median of all timed steps in milliseconds.
      steps: training steps so far, warm-up included.
      loss: after the last step; None if it is not finite.
      peak_bytes: see ``child.peak_bytes``.
      warm_seconds: compilation and other first-time work.
    """

    precision: str
    xla: str
    status: str = "ok"
    why: str = ""
    samples_per_second: List[float] = dataclasses.field(default_factory=list)
    step_ms: float = 0.0
    steps: int = 0
    loss: Optional[float] = None
    peak_bytes: int = 0
    warm_seconds: float = 0.0

    @property
    def name(self) -> str:
        """The combination for readers, e.g. ``amp + xla on``."""
        return self.precision if self.xla == "off" else f"{self.precision} + xla {self.xla}"

    @property
    def median(self) -> float:
        """Median of the rounds' samples per second; 0 without any."""
        return statistics.median(self.samples_per_second) if self.samples_per_second else 0.0


class ChildEnded(Exception):
    """The measured process ended; ``status`` and ``why`` as in ``Outcome``."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(status, why)
        self.status, self.why = status, why


class Child:
    """A process that answers the commands of ``amp_xla.speed.child``.

    Args:
      command: its command line.
      environ: variables on top of a clean environment.
    """

    def __init__(self, command: Sequence[str], environ: Optional[Dict[str, str]] = None) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # open while the child runs
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**clean_environment(), **(environ or {})},
        )
        self._answers: queue.Queue = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        """Collect answers, and None at the end; the process may print other lines."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK.encode()):
                self._answers.put(line[len(MARK) :])
        self._answers.put(None)

    def ask(self, seconds: float, **command: Any) -> Dict[str, Any]:
        """Send a command and wait for its answer.

        Raises:
          ChildEnded: the process ended, or did not answer within ``seconds`` and was killed.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # if it has ended, ``answer`` reports how
            self._process.stdin.write((json.dumps(command) + "\n").encode())
            self._process.stdin.flush()
        return self.answer(seconds)

    def answer(self, seconds: float) -> Dict[str, Any]:
        """Wait for the next answer; see ``ask``."""
        try:
            answer = self._answers.get(timeout=seconds)
        except queue.Empty:
            self.close()
            raise ChildEnded("timed out", f"no answer in {seconds:.0f} s") from None
        if answer is None:
            raise self._ended()
        return json.loads(answer.decode())

    def _ended(self) -> ChildEnded:
        code = self._process.wait()
        self._errors.seek(0)
        text = self._errors.read().decode("utf-8", "replace")
        lines = [line for line in text.splitlines() if line.strip()]
        last = lines[-1][:200] if lines else ""
        out_of_memory = _OUT_OF_MEMORY.search(text)
        if out_of_memory:
            return ChildEnded("out of memory", out_of_memory.group(0))
        if code == -signal.SIGKILL:
            return ChildEnded("out of memory", "killed by the system")
        if code == 2 and "error:" in text:
            return ChildEnded("refused", last)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return ChildEnded("crashed", f"{how}: {last}")

    def close(self) -> None:
        """Kill the process and release its pipes."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._listener.join()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


class _Measurement:
    """One combination with its process, its outcome and the seconds of its steps."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.outcome = Outcome(request.precision, request.xla)
        self.child: Optional[Child] = None
        self._seconds: List[float] = []

    def turn(self, steps: int, timeout: float) -> None:
        """Time steps, in a new process if there is none."""
        outcome = self.outcome
        if self.child is None:
            words = json.dumps(dataclasses.asdict(self.request))
            self.child = Child([sys.executable, "-m", "amp_xla.speed.child", words])
            self.child.answer(timeout)
            outcome.warm_seconds = self.child.ask(timeout, do="warm")["warm_seconds"]
        answer = self.child.ask(timeout, do="steps", steps=steps)
        outcome.samples_per_second.append(answer["samples"] / sum(answer["seconds"]))
        self._seconds += answer["seconds"]
        outcome.step_ms = statistics.median(self._seconds) * 1e3
        outcome.loss, outcome.steps = answer["loss"], answer["steps_so_far"]
        if not answer["finite"]:
            raise ChildEnded("not finite", f"loss or gradients by step {outcome.steps}")

    def end(self, timeout: float) -> None:
        if self.child is not None:
            self.outcome.peak_bytes = self.child.ask(timeout, do="end")["peak_bytes"]
            self.close()

    def close(self) -> None:
        if self.child is not None:
            self.child.close()
            self.child = None

    @contextlib.contextmanager
    def failure_as_outcome(self) -> Iterator[None]:
        try:
            yield
        except ChildEnded as end:
            self.outcome.status, self.outcome.why = end.status, end.why
            self.close()


def measure(
    requests: Sequence[Request],
    steps: int,
    rounds: int,
    timeout: float,
    together: bool,
    say: Callable[[str], None] = lambda text: None,
    budget: float = 0.0,
) -> List[Outcome]:
    """Measure each combination on the same steps.

    Args:
      requests: combinations to try.
      steps: timed steps per round.
      rounds: number of rounds.
      timeout: longest wait for one answer in seconds.
      together: keep all processes alive between their turns (on a CPU); else start a process per
        turn, so that it has the whole memory of the GPU.
      say: called with a line for each phase.
      budget: seconds in all, 0 = no limit. Combinations that cannot start within 70% of it are
        ``not measured``; later rounds are left out once it is spent.
    """
    everyone = [_Measurement(request) for request in requests]
    began = time.monotonic()

    def spent(share: float = 1.0) -> bool:
        return bool(budget) and time.monotonic() - began >= budget * share

    try:
        for number in range(rounds):
            if number and spent():
                say(f"{budget:.0f} s are spent: {number} of {rounds} rounds")
                break
            say(f"round {number + 1} of {rounds}, {steps} steps each ...")
            for each in everyone if number % 2 == 0 else reversed(everyone):
                if each.outcome.status != "ok":
                    continue
                with each.failure_as_outcome():
                    if not number and spent(_BUILDING_SHARE):
                        raise ChildEnded("not measured", f"{budget:.0f} s were spent")
                    if each.child is None:
                        say(f"{each.outcome.name}: building and compiling ...")
                    each.turn(steps, timeout)
                    if not together:
                        each.end(timeout)
        for each in everyone:
            with each.failure_as_outcome():
                each.end(timeout)
    finally:
        for each in everyone:
            each.close()
    return [each.outcome for each in everyone]
