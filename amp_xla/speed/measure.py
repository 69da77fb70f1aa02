"""The measuring side: one child process for each combination, driven in turn, its end understood.

Combinations are measured in rounds, A B C A B C ..., while the others wait, so that a machine that
slows down slows all of them. Running out of memory, NaN and crashes are results.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import selectors
import signal
import statistics
import subprocess
import tempfile
import time
from typing import Any, Dict, List, Optional, Sequence

from amp_xla.process import children
from amp_xla.speed.child import MARK, Request
from amp_xla.speed.machine import clean_environment

_OUT_OF_MEMORY = re.compile(
    r"OOM when allocating|ResourceExhausted|RESOURCE_EXHAUSTED|out of memory|Out of memory"
    r"|MemoryError|bad_alloc|Cannot allocate memory|failed to map segment|mmap failed"
    r"|Resource temporarily unavailable|allocat\w+ (?:of )?\d+ bytes failed|can't start new thread"
)


@dataclasses.dataclass
class Outcome:
    """One combination's result.

    Attributes:
      status: ``ok``, ``out of memory``, ``not finite``, ``crashed``, ``timed out``, ``refused`` or
        ``not measured`` (the budget was spent).
      why: a clause where the status is not ok.
      samples_per_second: one number a round.
      step_ms: median of all timed steps, milliseconds.
      loss: after the last step; None where it is not finite.
      peak_bytes: see ``measure.peak_bytes``.
      warm_seconds: compilation and other first-time work.
      compilations, late_compilations: during the warm-up, and after it.
      flops_per_sample: see ``amp_xla.graph.flops``; None where it was not asked for or unknown.
      ceiling: FLOPs a second of a large matrix product in this precision, same process.
    """

    precision: str
    xla: str
    status: str = "ok"
    why: str = ""
    samples_per_second: List[float] = dataclasses.field(default_factory=list)
    tokens_per_second: List[float] = dataclasses.field(default_factory=list)
    step_ms: float = 0.0
    steps: int = 0
    loss: Optional[float] = None
    peak_bytes: int = 0
    warm_seconds: float = 0.0
    compilations: int = 0
    late_compilations: List[str] = dataclasses.field(default_factory=list)
    clusters: int = 0
    half_nodes: int = 0
    flops_per_sample: Optional[float] = None
    ceiling: float = 0.0
    shapes: List[List[int]] = dataclasses.field(default_factory=list)
    padding: float = 0.0

    @property
    def name(self) -> str:
        """E.g. ``amp + xla on``."""
        return self.precision if self.xla == "off" else f"{self.precision} + xla {self.xla}"

    @property
    def utilisation(self) -> Optional[float]:
        """Model FLOPs a second as a share of the ceiling; None where either is unknown."""
        if not self.flops_per_sample or not self.ceiling or not self.samples_per_second:
            return None
        return self.median * self.flops_per_sample / self.ceiling

    @property
    def median(self) -> float:
        """Samples a second, median of the rounds; 0 without any."""
        return statistics.median(self.samples_per_second) if self.samples_per_second else 0.0


class ChildEnded(Exception):
    """The child said nothing more; ``status`` and ``why`` as in ``Outcome``."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(status, why)
        self.status, self.why = status, why


class Child:
    """A process that speaks the protocol of ``amp_xla.speed.child``.

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
        self._buffer = b""

    @classmethod
    def of(cls, request: Request, environ: Optional[Dict[str, str]] = None) -> Child:
        """One that measures ``request``."""
        words = json.dumps(dataclasses.asdict(request))
        return cls(children.command("amp_xla.speed.child", words), environ)

    def tell(self, **command: Any) -> None:
        """Sends a command; if the process is gone, the next ``answer`` says so."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write((json.dumps(command) + "\n").encode())
            self._process.stdin.flush()

    def ask(self, seconds: float, **command: Any) -> Dict[str, Any]:
        """Sends a command and waits for its answer.

        Raises:
          ChildEnded: it ended, or said nothing for ``seconds`` and was ended.
        """
        self.tell(**command)
        return self.answer(seconds)

    def halt(self) -> None:
        """The process stands still until ``go_on``, so that another one can be timed alone."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Undoes ``halt``."""
        self._process.send_signal(signal.SIGCONT)

    def answer(self, seconds: float) -> Dict[str, Any]:
        """Waits for the next line; see ``ask``."""
        assert self._process.stdout is not None
        until = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while True:
                line, newline, rest = self._buffer.partition(b"\n")
                if newline:
                    self._buffer = rest
                    if line.startswith(MARK.encode()):
                        return json.loads(line[len(MARK) :].decode())
                    continue
                if not selector.select(max(0.0, until - time.monotonic())):
                    self.close()
                    raise ChildEnded("timed out", f"no answer in {seconds:.0f} s")
                data = self._process.stdout.read1(65536)  # type: ignore[attr-defined]
                if not data:
                    raise self._ended()
                self._buffer += data

    def _ended(self) -> ChildEnded:
        code = self._process.wait()
        self._errors.seek(0)
        text = self._errors.read().decode("utf-8", "replace")
        lines = [line for line in text.splitlines() if line.strip()]
        last = lines[-1][:200] if lines else ""
        killed = code == -signal.SIGKILL
        if killed or _OUT_OF_MEMORY.search(text):
            found = _OUT_OF_MEMORY.search(text)
            why = "killed by the system" if killed or not found else found.group(0)
            return ChildEnded("out of memory", why)
        if code == 2 and "error:" in text:
            return ChildEnded("refused", last)
        if code < 0:
            return ChildEnded("crashed", f"signal {-code}: {last}")
        return ChildEnded("crashed", f"exit code {code}: {last}")

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A combination to try.

    Attributes:
      environ: variables of its process.
      address_space: most bytes of it, 0 = no limit.
      words: flags of the recipe for this one alone, e.g. another learning rate.
    """

    precision: str
    xla: str
    environ: Dict[str, str] = dataclasses.field(default_factory=dict)
    address_space: int = 0
    words: Sequence[str] = ()


def measure(
    recipe: str,
    words: Sequence[str],
    candidates: Sequence[Candidate],
    steps: int,
    rounds: int,
    seconds: float,
    together: bool,
    say: Any = lambda text: None,
    budget: float = 0.0,
    ceiling_seconds: float = 0.0,
) -> List[Outcome]:
    """Measures every candidate on the same steps.

    Args:
      recipe, words: see ``Request``.
      steps: timed steps a round; the same batches for every candidate.
      rounds: how often each candidate's turn comes.
      seconds: longest wait for one answer.
      together: all processes wait beside each other (a CPU); else one after the other, since a
        GPU's memory is measured alone.
      say: called with a line when a slow phase begins.
      budget: seconds in all, 0 = no limit. Four fifths are for building and compiling; what is not
        ready by then is ``not measured``, and later rounds are left out once it is spent.
      ceiling_seconds: also count FLOPs, and try a matrix product for so long.
    """
    began = time.monotonic()

    def left(share: float) -> float:
        """Longest wait for an answer; at least a second."""
        rest = budget * share - (time.monotonic() - began) if budget else seconds
        return max(1.0, min(rest, seconds))

    outcomes = [Outcome(c.precision, c.xla) for c in candidates]
    times: List[List[float]] = [[] for _ in candidates]
    children: List[Optional[Child]] = [None] * len(candidates)

    def guard(i: int, what: Any) -> None:
        try:
            what(i)
        except ChildEnded as end:
            outcomes[i].status, outcomes[i].why = end.status, end.why
            close(i)

    def close(i: int) -> None:
        child, children[i] = children[i], None
        if child is not None:
            child.close()

    def launch(i: int) -> Child:
        c = candidates[i]
        child = children[i] = children[i] or Child.of(
            Request(recipe, (*words, *c.words), c.precision, c.xla, dump=True,
                    address_space=c.address_space),
            c.environ,
        )  # fmt: skip
        return child

    def start(i: int) -> None:
        if budget and left(0.8) <= 1.0:
            raise ChildEnded("not measured", f"{budget:.0f} s were spent")
        say(f"{outcomes[i].name}: building and compiling ...")
        child = launch(i)
        built = child.answer(left(0.8))
        if together and i + 1 < len(candidates):
            launch(i + 1)  # it builds its graph, on one core, while this one compiles
        outcomes[i].shapes, outcomes[i].padding = built["shapes"], built["padding"]
        warm = child.ask(left(0.8), do="warm")
        outcomes[i].warm_seconds = warm["warm_seconds"]
        for name in ("compilations", "clusters", "half_nodes"):
            setattr(outcomes[i], name, warm.get(name, 0))
        if ceiling_seconds and not outcomes[i].ceiling:
            found = child.ask(left(1.0), do="flops", trial_seconds=ceiling_seconds)
            outcomes[i].flops_per_sample = found["flops_per_sample"]
            outcomes[i].ceiling = found["ceiling"]

    def turn(i: int) -> None:
        child = children[i]
        if child is None:
            return
        found = child.ask(left(1.5), do="steps", steps=steps)
        total = sum(found["seconds"])
        outcomes[i].samples_per_second.append(found["samples"] / total)
        outcomes[i].tokens_per_second.append(found["tokens"] / total)
        times[i] += found["seconds"]
        outcomes[i].loss, outcomes[i].steps = found["loss"], found["steps_so_far"]
        outcomes[i].step_ms = statistics.median(times[i]) * 1e3
        if not found["finite"]:
            raise ChildEnded("not finite", f"loss or gradients by step {found['steps_so_far']}")

    def finish(i: int) -> None:
        child = children[i]
        if child is not None:
            end = child.ask(seconds, do="end")
            outcomes[i].peak_bytes = end["peak_bytes"]
            outcomes[i].late_compilations = end["late_compilations"]
            close(i)

    everyone = range(len(candidates))
    try:
        if together:
            for i in everyone:
                guard(i, start)
            for round_ in range(rounds):
                if round_ and budget and left(1.0) <= 1.0:
                    say(f"{budget:.0f} s are spent: {round_} of {rounds} rounds")
                    break
                say(f"round {round_ + 1} of {rounds}, {steps} steps each ...")
                for i in everyone if round_ % 2 == 0 else reversed(everyone):
                    guard(i, turn)
            for i in everyone:
                guard(i, finish)
        else:
            for round_ in range(rounds):
                say(f"round {round_ + 1} of {rounds}, {steps} steps each ...")
                for i in everyone:
                    if outcomes[i].status == "ok":
                        guard(i, start)
                        guard(i, turn)
                        guard(i, finish)
    finally:
        for i in everyone:
            close(i)
    return outcomes
