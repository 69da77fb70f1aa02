"""What the training loop costs over the bare session call, printed.

    make bench-loop

Trains the same tiny model twice in turn, A B A B ...: through ``Loop`` (feeding, counting,
progress, metrics.jsonl, TensorBoard) and by calling the step's own session callable in a bare
``for``. The model is small so that the difference is not lost in the step's own noise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import statistics
import sys
import tempfile
import time
from typing import Any, Iterator, List

from typing_extensions import Annotated

from amp_xla.config import make, parse, within
from amp_xla.process.exits import exit_code


@dataclasses.dataclass(frozen=True)
class Config:
    """Measure the loop's own cost."""

    steps: Annotated[int, within(at_least=1)] = 300
    """steps in each measurement"""
    rounds: Annotated[int, within(at_least=1)] = 5
    """paired measurements"""


def main() -> int:
    """Prints milliseconds a step for both, and the difference (median, min, max)."""
    config = parse(Config, prog="python -m scripts.bench_loop")
    from recipes import classification

    job = classification.build(
        make(
            classification.Config,
            layers=1,
            hidden=64,
            max_length=32,
            shapes=1,
            batch_size=8,
            epochs=99,
        )
    )
    from amp_xla.backend import kind, tensorflow
    from amp_xla.training.checkpoint.checkpoints import Checkpoints
    from amp_xla.training.loop import Loop
    from amp_xla.training.options import LoopOptions
    from amp_xla.training.run import RunFolder
    from amp_xla.training.step import initialize_variables

    initialize_variables()
    batches = _Cut(job.batches, config.steps)
    clock = _Clock(job.step)
    feeds = [list(job.step.feed(batch).values()) for batch in batches.epoch(0)]
    bare: List[float] = []
    looped: List[float] = []
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        for number in range(config.rounds + 1):  # the first one warms up
            run = RunFolder("bench", f"round-{number}", folder)
            run.begin()
            loop = Loop(
                run,
                dataclasses.replace(job, batches=batches, evaluate=lambda: {"accuracy": 0.0}),
                clock,  # type: ignore[arg-type]  # stands in for the step
                Checkpoints(run.checkpoints, job.variables),
                LoopOptions(),
            )
            with contextlib.redirect_stderr(nowhere):
                loop.train()
            looped.append(clock.milliseconds())
            began = time.perf_counter()
            for step, feed in enumerate(feeds):
                job.step.session_call(feed, step)
            bare.append((time.perf_counter() - began) / config.steps * 1e3)
    over = [a - b for a, b in zip(looped[1:], bare[1:])]
    print(
        f"TensorFlow {tensorflow().__version__} ({kind()}), {config.rounds} rounds of "
        f"{config.steps} steps"
    )
    for name, values in (("loop", looped[1:]), ("bare", bare[1:]), ("loop - bare", over)):
        print(
            f"{name:<12} {statistics.median(values):7.3f} ms a step "
            f"(min {min(values):.3f}, max {max(values):.3f})"
        )
    return 0


class _Clock:
    """A TrainStep that notes when it is called: what lies between two calls is a step's cost."""

    def __init__(self, step: Any) -> None:
        self._step, self._calls = step, [0.0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def __call__(self, feed: Any, step: int) -> Any:
        self._calls.append(time.perf_counter())
        return self._step(feed, step)

    def milliseconds(self) -> float:
        """Mean over the calls since the last question; start and end of a run are outside."""
        calls, self._calls = self._calls[1:], [0.0]
        return (calls[-1] - calls[0]) / (len(calls) - 1) * 1e3


class _Cut:
    """The first ``steps`` batches, over as many epochs as that takes."""

    def __init__(self, batches: Any, steps: int) -> None:
        self._batches, self._steps = batches, steps
        self.shapes = batches.shapes
        self.padding_share = batches.padding_share

    def steps_per_epoch(self, epoch: int = 0) -> int:
        return self._steps

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        every_epoch = itertools.chain.from_iterable(map(self._batches.epoch, itertools.count()))
        return itertools.islice(every_epoch, start, self._steps)


if __name__ == "__main__":
    sys.exit(exit_code(main))
