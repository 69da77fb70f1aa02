"""What the training loop costs over the bare session call, printed.

    make bench-loop

Trains the same tiny model twice in turn, A B A B ...: through ``Loop`` (feeding, counting,
progress, metrics.jsonl, TensorBoard) and by calling the step's own session callable in a bare
``for``. The model is small so that the difference is not lost in the step's own noise.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import List

from amp_xla.config import parse


@dataclasses.dataclass(frozen=True)
class Config:
    """Measure the loop's own cost."""

    steps: int = 300
    """steps in each measurement"""
    rounds: int = 5
    """paired measurements"""


def main() -> int:
    """Prints milliseconds a step for both, and the difference (median, min, max)."""
    config = parse(Config, prog="python -m scripts.bench_loop")
    from recipes import classification

    job = classification.build(
        classification.Config(layers=1, hidden=64, max_length=32, shapes=1, batch_size=8, epochs=99)
    )
    from amp_xla.backend import kind, tensorflow
    from amp_xla.training.checkpoint import Checkpoints
    from amp_xla.training.launch import LoopOptions
    from amp_xla.training.loop import Loop
    from amp_xla.training.run import RunFolder
    from amp_xla.training.step import initialize_variables

    initialize_variables()
    batches = _Cut(job.batches, config.steps)
    feeds = [[getattr(b, n) for n in job.step.input_names] for b in batches.epoch(0)]
    bare: List[float] = []
    looped: List[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for round_ in range(config.rounds + 1):  # the first one warms up
            run = RunFolder("bench", f"round-{round_}", folder)
            checkpoints = Checkpoints(Path(folder) / "checkpoints", job.variables)
            loop = Loop(
                run, job.step, batches, lambda: {"accuracy": 0.0}, checkpoints, LoopOptions()
            )
            loop.quiet = True
            began = time.perf_counter()
            loop.train_steps()
            looped.append((time.perf_counter() - began) / config.steps * 1e3)
            began = time.perf_counter()
            for number, feed in enumerate(feeds):
                job.step.run_bare(feed, number)
            bare.append((time.perf_counter() - began) / config.steps * 1e3)
    over = [a - b for a, b in zip(looped[1:], bare[1:])]
    print(
        f"TensorFlow {tensorflow().__version__} ({kind()}), {config.rounds} rounds of {config.steps}"
    )
    for name, values in (("loop", looped[1:]), ("bare", bare[1:]), ("loop - bare", over)):
        print(
            f"{name:<12} {statistics.median(values):7.3f} ms a step "
            f"(min {min(values):.3f}, max {max(values):.3f})"
        )
    return 0


class _Cut:
    """The first ``steps`` batches of an epoch."""

    def __init__(self, batches: object, steps: int) -> None:
        self._batches, self._steps = batches, steps

    def steps_per_epoch(self, epoch: int = 0) -> int:
        return self._steps

    def epoch(self, epoch: int, start: int = 0):  # type: ignore[no-untyped-def]
        number = 0
        while True:
            for batch in self._batches.epoch(epoch):  # type: ignore[attr-defined]
                if number == self._steps:
                    return
                number += 1
                yield batch


if __name__ == "__main__":
    sys.exit(main())
