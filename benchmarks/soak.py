"""Does a run that is killed again and again end like one that is not?

    python -m benchmarks.soak --kills 200

Runs of the tests' tiny job (dropout, dynamic loss scale with overflows, accumulation, checkpoints)
are killed by SIGKILL after a random time and resumed until they end. The final state must equal
that of an uninterrupted run, byte for byte. Processes are forked after the import of TensorFlow,
so that most kills hit training and writing.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict

from typing_extensions import Annotated

from amp_xla.config import parse, within
from amp_xla.process.exits import exit_code


@dataclasses.dataclass(frozen=True)
class Config:
    """Kill training at random moments and compare the results."""

    kills: Annotated[int, within(at_least=1)] = 200
    """processes to kill"""
    seed: Annotated[int, within(0, 2**32 - 1)] = 1
    """seed of the moments of killing"""
    minutes: Annotated[float, within(above=0)] = 60.0
    """minutes until no further process is killed"""
    keep: bool = False
    """keep the folder with all runs"""


def main() -> int:
    """Print the kills by progress; return 1 if a run ended differently."""
    config = parse(Config, prog="python -m benchmarks.soak")
    from tests.integration.killing import Run, Server

    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    moments = random.Random(config.seed)
    hits: Dict[str, int] = {"before the first step": 0, "in training": 0, "at the end": 0}
    began = time.monotonic()
    deadline = began + 60.0 * config.minutes
    kills = runs = different = 0
    with Server() as server:
        reference = Run(server, folder / "uninterrupted")
        if reference() != 0:
            print(reference.text(), file=sys.stderr)
            return 2
        whole = time.monotonic() - began
        (trained,) = reference.records("trained")[-1]
        expected = (reference.state(), reference.samples())
        while kills < config.kills and time.monotonic() < deadline:
            runs += 1
            run = Run(server, folder / f"run-{runs:04d}")
            code = -9
            while code == -9:
                lines = len(run.text().splitlines())
                fault = moment(moments, whole, trained) if kills < config.kills else {}
                code = run(fault if time.monotonic() < deadline else {})
                if code == -9:
                    kills += 1
                    hits[progress("\n".join(run.text().splitlines()[lines:]))] += 1
            if code != 0 or (run.state(), run.samples()) != expected:
                different += 1
                print(f"DIFFERENT: {run.folder} (exit code {code})", file=sys.stderr)
            else:
                shutil.rmtree(str(run.folder))
            print(f"{kills} kills, {runs} runs, {different} differences", file=sys.stderr)
    if not (config.keep or different):
        shutil.rmtree(str(folder), ignore_errors=True)
    where = ", ".join(f"{count} {name}" for name, count in hits.items())
    print(
        f"{kills} kills ({where}) over {runs} runs, {different} differences, "
        f"{time.monotonic() - began:.0f} s, seed {config.seed}, Python {sys.version.split()[0]}"
    )
    return int(different > 0 or kills < config.kills)


def moment(moments: random.Random, whole: float, trained: float) -> Dict[str, float]:
    """Return when to kill: a quarter at any time, the others after the first step."""
    if moments.random() < 0.25:
        return {"second": moments.uniform(0.0, whole)}
    return {"trained": moments.uniform(0.0, 1.2 * trained)}


def progress(output: str) -> str:
    """Return how far a process came."""
    if "epoch 3/3" in output:
        return "at the end"
    return "in training" if "first step ran" in output else "before the first step"


if __name__ == "__main__":
    sys.exit(exit_code(main))
