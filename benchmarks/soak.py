"""Does a run that is killed again and again end like one that is not?

    python -m benchmarks.soak --kills 200

Runs of the tests' tiny job (dropout, dynamic loss scale with overflows, accumulation, checkpoints)
are killed by SIGKILL after a random time and resumed until they end. The final state must equal
that of an uninterrupted run, byte for byte. Processes are forked after the import of TensorFlow,
so that most kills hit training and writing.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import random
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from typing_extensions import Annotated

from amp_xla.config import parse, within
from amp_xla.process.exits import exit_code


@dataclasses.dataclass(frozen=True)
class Config:
    """Kill training at random moments and compare the results."""

    kills: Annotated[int, within(at_least=1)] = 200
    """processes to kill"""
    seed: Annotated[int, within(0, 2**32 - 1)] = 1
    """seed of the random kill times"""
    workers: Annotated[int, within(at_least=1)] = 2
    """runs at the same time"""
    minutes: Annotated[float, within(above=0)] = 60.0
    """minutes after which runs are no longer killed"""
    keep: bool = False
    """keep the folder with all runs"""


class Soak:
    """The state that the workers share."""

    def __init__(self, config: Config, folder: Path, seconds: float, reference: Any) -> None:
        self.config, self.folder, self.seconds = config, folder, seconds
        (self.trained,) = reference.records("trained")[-1]
        self.expected = (reference.state(), reference.samples())
        self.random = random.Random(config.seed)
        self.lock = threading.Lock()
        self.kills, self.runs, self.open = 0, 0, 0
        self.different: List[Path] = []
        self.hits: Dict[str, int] = {"before the first step": 0, "in training": 0, "at the end": 0}
        self.deadline = time.monotonic() + 60.0 * config.minutes

    def next_run(self) -> Optional[Path]:
        with self.lock:
            if self.kills >= self.config.kills or time.monotonic() > self.deadline:
                return None
            self.runs += 1
            return self.folder / f"run-{self.runs:04d}"

    def next_fault(self) -> Dict[str, float]:
        """Return when to kill the next process; empty after enough kills."""
        with self.lock:
            if self.kills + self.open >= self.config.kills or time.monotonic() > self.deadline:
                return {}
            self.open += 1
            # A quarter at any time, the others between the first step and shortly after the end.
            if self.random.random() < 0.25:
                return {"second": self.random.uniform(0.0, self.seconds)}
            return {"trained": self.random.uniform(0.0, 1.2 * self.trained)}

    def work(self, server: Any) -> None:
        """Play one run after the other until there are enough kills."""
        from tests.integration.killing import Run

        while True:
            folder = self.next_run()
            if folder is None:
                return
            run = Run(server, folder)
            while True:
                lines = len(run.text().splitlines())
                fault = self.next_fault()
                code = run(fault)
                with self.lock:
                    self.open -= bool(fault)
                if code != -9:
                    break
                self.count_kill("\n".join(run.text().splitlines()[lines:]))
            samples = run.samples() if code == 0 else None
            if code != 0 or (run.state(), samples) != self.expected:
                print(f"DIFFERENT: {folder} (exit code {code})", file=sys.stderr)
                self.different.append(folder)
            else:
                shutil.rmtree(str(folder))

    def count_kill(self, said: str) -> None:
        """Count a kill under the stage that the process had reached."""
        where = "before the first step"
        if "first step ran" in said:
            where = "in training"
        if "epoch 3/3" in said:
            where = "at the end"
        with self.lock:
            self.kills += 1
            self.hits[where] += 1
            if self.kills % 20 == 0:
                print(
                    f"{self.kills} kills, {self.runs} runs, {len(self.different)} differences",
                    file=sys.stderr,
                    flush=True,
                )


def main() -> int:
    """Print the kills by progress; return 1 if a run ended differently."""
    config = parse(Config, prog="python -m benchmarks.soak")
    from tests.integration.killing import Run, Server

    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    began = time.monotonic()
    servers = [Server() for _ in range(config.workers)]
    try:
        reference = Run(servers[0], folder / "uninterrupted")
        first = time.monotonic()
        if reference() != 0:
            print(reference.text(), file=sys.stderr)
            return 2
        soak = Soak(config, folder, time.monotonic() - first, reference)
        with concurrent.futures.ThreadPoolExecutor(len(servers)) as pool:
            for done in [pool.submit(soak.work, server) for server in servers]:
                done.result()
    finally:
        for server in servers:
            server.__exit__()
        if not config.keep and not (folder.exists() and any(folder.glob("run-*"))):
            shutil.rmtree(str(folder), ignore_errors=True)
    where = ", ".join(f"{count} {name}" for name, count in soak.hits.items())
    print(
        f"{soak.kills} kills ({where}) over {soak.runs} runs, {len(soak.different)} differences, "
        f"{time.monotonic() - began:.0f} s, seed {config.seed}, Python {sys.version.split()[0]}"
    )
    if soak.kills < config.kills:
        print(f"stopped after {config.minutes:g} minutes, before {config.kills} kills")
    return 1 if soak.different or soak.kills < config.kills else 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
