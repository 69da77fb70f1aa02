"""The harness of the benchmarks: contestants take turns; it writes a table and a record."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from amp_xla.process import durable
from amp_xla.process.progress import note
from amp_xla.process.typed import revision
from amp_xla.speed import machine, table
from amp_xla.speed.child import MARK
from amp_xla.speed.machine import clean_environment
from amp_xla.speed.measure import ChildEnded, ended

ROOT = Path(__file__).resolve().parents[1]
HEAD = ("contestant", "samples/s", "spread", "first row is (half of the rounds)",
        "samples/CPU s", "tokens/s", "step ms", "peak MiB", "dev accuracy", "result")  # fmt: skip


@dataclasses.dataclass
class Result:
    """The measurements of a contestant: one value per round, in ``step_ms`` one per step."""

    samples_per_second: List[float] = dataclasses.field(default_factory=list)
    tokens_per_second: List[float] = dataclasses.field(default_factory=list)
    per_cpu_second: List[float] = dataclasses.field(default_factory=list)
    step_ms: List[float] = dataclasses.field(default_factory=list)
    loss: Optional[float] = None
    peak_bytes: int = 0
    accuracy: Optional[float] = None
    status: str = "ok"

    def add(self, answer: Mapping[str, Any]) -> None:
        """Add the answer to the command ``steps``."""
        making, count = answer["making_seconds"], len(answer["seconds"])
        seconds = sum(answer["seconds"]) + count * making
        self.samples_per_second.append(answer["samples"] / seconds)
        self.tokens_per_second.append(answer["tokens"] / seconds)
        self.per_cpu_second.append(answer["samples"] / (answer["cpu_seconds"] + count * making))
        self.step_ms += [1e3 * (second + making) for second in answer["seconds"]]
        self.loss = answer["loss"]


class Child:
    """A process that answers the commands of ``benchmarks.serve``.

    Args:
      command: command line of the process.
      environ: variables to add to a clean environment.
    """

    def __init__(self, command: Sequence[str], environ: Optional[Dict[str, str]] = None) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # open while the child runs
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**clean_environment(), **(environ or {})},
            start_new_session=True,  # ``close`` ends its processes, too: they hold GPU and pipes
        )
        self._answers: queue.Queue = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        """Collect answers, then None; skip other lines that the process prints."""
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
        with contextlib.suppress(BrokenPipeError):  # ``answer`` reports how it ended
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
        values: Dict[str, Any] = json.loads(answer.decode())
        return values

    def _ended(self) -> ChildEnded:
        code = self._process.wait()
        self._errors.seek(0)
        return ended(code, self._errors.read())

    def close(self) -> None:
        """Kill the process and release its pipes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._listener.join()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def alternate(
    commands: Mapping[str, Sequence[str]], rounds: int, steps: int, timeout: float, epochs: int = 0
) -> Dict[str, Result]:
    """Measure contestants in turn, A B B A A B ..., so that a slow moment affects all of them.

    Args:
      commands: name -> command line of a process that answers as ``benchmarks.serve`` does.
      rounds: number of turns of each contestant.
      steps: timed steps per turn.
      timeout: maximum seconds to wait for one answer.
      epochs: if not 0, train for this number of epochs instead, one contestant after the other.
    """
    results = {name: Result() for name in commands}
    children: Dict[str, Child] = {}

    def ask(name: str, **command: Any) -> Optional[Dict[str, Any]]:
        try:
            if command:
                return children[name].ask(timeout, **command)
            return children[name].answer(timeout)
        except ChildEnded as end:
            results[name].status = f"{end.status}: {end.why}"
            children.pop(name).close()
            return None

    try:
        for name, command in commands.items():
            note(f"{name}: starting ...")
            children[name] = Child(command)
            if ask(name) is None:
                continue
            if not epochs:
                ask(name, do="warm", sample=steps)
                continue
            answer = ask(name, do="train", epochs=epochs)
            if answer is not None:
                results[name].samples_per_second = [answer["samples"] / answer["seconds"]]
                results[name].accuracy = answer["accuracy"]
        for number in range(0 if epochs else rounds):
            note(f"round {number + 1} of {rounds} ...")
            for name in list(children) if number % 2 == 0 else list(reversed(list(children))):
                answer = ask(name, do="steps", steps=steps)
                if answer is not None:
                    results[name].add(answer)
        for name in list(children):
            results[name].peak_bytes = (ask(name, do="end") or {}).get("peak_bytes", 0)
    finally:
        for child in children.values():
            child.close()
    return results


def render(results: Mapping[str, Result]) -> str:
    """Return the table; a ratio is the first row's rate / the row's rate in the same round."""
    first = next(iter(results.values())).samples_per_second
    body = []
    for name, result in results.items():
        rates = result.samples_per_second
        ratios = sorted(a / b for a, b in zip(first, rates))
        quarter = len(ratios) // 4
        half = f" ({ratios[quarter]:.2f} to {ratios[-1 - quarter]:.2f})" if len(ratios) > 2 else ""
        body.append([
            name,
            middle(rates, ".1f"),
            f"{table.spread(rates):.0%}" if len(rates) > 1 else "-",
            middle(ratios, ".2f", "x" + half),
            middle(result.per_cpu_second, ".1f"),
            middle(result.tokens_per_second, ".0f"),
            middle(result.step_ms, ".0f"),
            f"{result.peak_bytes / 2**20:.0f}",
            "-" if result.accuracy is None else f"{result.accuracy:.4f}",
            result.status,
        ])  # fmt: skip
    return table.markdown(HEAD, body)


def middle(values: Sequence[float], form: str, unit: str = "") -> str:
    """Return the formatted median, or ``-`` without values."""
    return f"{statistics.median(values):{form}}{unit}" if values else "-"


def write(out: str, module: str, config: Any, results: Mapping[str, Any], text: str) -> None:
    """Write <out>.json (command, machine, date, results) and <out>.md; print the table."""
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "command": " ".join([f"python -m {module}", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "revision": revision(),
        "machine": dataclasses.asdict(machine.look()),
        "load_average": os.getloadavg(),
        "config": dataclasses.asdict(config),
        "results": {name: dataclasses.asdict(result) for name, result in results.items()},
    }
    durable.replace(path.with_suffix(".json"), (json.dumps(record, indent=1) + "\n").encode())
    durable.replace(path.with_suffix(".md"), (text + "\n").encode())
    print(text)


def named(name: str, only: str) -> bool:
    """Return whether a name contains one of the texts in ``only``, separated by semicolons."""
    return any(part.strip() in name for part in only.split(";"))
