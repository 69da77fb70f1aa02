"""The measured process: builds a recipe's job and runs steps on command.

It reads one JSON command per line and writes one JSON answer per line, marked with ``MARK``:

    {"do": "warm"}                 run each shape until it is compiled
    {"do": "steps", "steps": 20}   time training steps, batch making included
    {"do": "end"}                  report peak memory and exit
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import sys
import time
from typing import Any, Dict, Iterator, Tuple

import numpy as np

MARK = "@amp_xla "
# XLA's lazy mode compiles a shape at its third request; the fourth step is warm.
WARM_STEPS = 4
# Batches searched for further shapes; a pretraining run's second length may come days later.
LOOKAHEAD = 200


@dataclasses.dataclass(frozen=True)
class Request:
    """One combination to measure.

    Attributes:
      recipe: name or path of a recipe with ``Config`` and ``build``.
      words: flags of the recipe.
      precision, xla: as in ``Settings``.
      address_space: limit of the process' address space in bytes; 0 = no limit.
    """

    recipe: str
    words: Tuple[str, ...] = ()
    precision: str = "amp"
    xla: str = "off"
    address_space: int = 0


def reply(**values: Any) -> None:
    """Write one answer to the parent."""
    sys.stdout.write(MARK + json.dumps(values) + "\n")
    sys.stdout.flush()


def build_job(request: Request) -> Any:
    """Build the recipe's job with the requested precision and XLA mode, variables initialized."""
    from amp_xla.config import changed, parse
    from amp_xla.recipe import recipe_module

    recipe = recipe_module(request.recipe)
    config = parse(recipe.Config, request.words, f"python -m {recipe.__name__}")
    job = recipe.build(changed(config, precision=request.precision, xla=request.xla))
    from amp_xla.training.step import initialize_variables

    initialize_variables()
    return job


def main() -> int:
    """Answer the parent's commands; the request is the only argument."""
    values = json.loads(sys.argv[1])
    request = Request(**{**values, "words": tuple(values["words"])})
    if request.address_space:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (request.address_space, request.address_space))
    subject = Subject(build_job(request))
    reply()
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "warm":
            reply(warm_seconds=subject.warm())
        elif command["do"] == "steps":
            reply(**subject.steps(command["steps"]))
        elif command["do"] == "end":
            reply(peak_bytes=peak_bytes())
            break
    return 0


class Subject:
    """A job whose training steps are timed."""

    def __init__(self, job: Any) -> None:
        self._job = job
        self._step_number = 0
        self._feeds = self._endless()

    def _epoch(self) -> Iterator[Tuple[Dict[str, Any], int]]:
        """Yield (feed, number of samples) for each micro-batch of the first epoch."""
        from amp_xla.data.batches.rank_shard import micro_batches

        for batch in self._job.batches.epoch(0):
            for shard in micro_batches(batch):
                yield self._job.step.feed(shard), int((shard["sample_ids"] >= 0).sum())

    def _endless(self) -> Iterator[Tuple[Dict[str, Any], int]]:
        while True:
            yield from self._epoch()

    def _run_step(self, feed: Dict[str, Any]) -> Any:
        result = self._job.step(feed, self._step_number)
        self._step_number += 1
        return result

    def warm(self) -> float:
        """Run each shape until it is compiled; return the seconds that compiling took."""
        compile_seconds = 0.0
        seen = set()
        for feed, _ in itertools.islice(self._epoch(), LOOKAHEAD):
            shapes = tuple(np.shape(feed[name]) for name in sorted(feed))
            if shapes in seen:
                continue
            seen.add(shapes)
            seconds = []
            for _ in range(WARM_STEPS):
                began = time.perf_counter()
                self._run_step(feed)
                seconds.append(time.perf_counter() - began)
            compile_seconds += sum(seconds) - min(seconds) * len(seconds)
            if len(seen) == len(self._job.batches.shapes):
                break
        return compile_seconds

    def steps(self, count: int) -> Dict[str, Any]:
        """Time ``count`` steps on the recipe's own batches, in their own order."""
        seconds, samples, loss, skipped, finite = [], 0, math.nan, 0, True
        for _ in range(count):
            began = time.perf_counter()
            feed, real = next(self._feeds)
            result = self._run_step(feed)
            seconds.append(time.perf_counter() - began)
            samples += real
            loss = float(result.loss)
            finite = finite and math.isfinite(loss)
            skipped += not result.finite
        return {
            "seconds": seconds,
            "samples": samples,
            "loss": loss if math.isfinite(loss) else None,
            # A dynamic loss scale skips a few steps by design, but not most of them.
            "finite": finite and 2 * skipped <= count,
            "steps_so_far": self._step_number,
        }


def peak_bytes() -> int:
    """Return the peak memory: the GPU's if there is one, else this process' resident memory."""
    from amp_xla import backend

    if not backend.gpus():
        return peak_resident()
    raw = backend.tensorflow()
    if backend.kind() == "tf2":
        return int(raw.config.experimental.get_memory_info("GPU:0")["peak"])
    from tensorflow.contrib.memory_stats.python.ops import memory_stats_ops

    with raw.device("/GPU:0"):
        return int(backend.session().run(memory_stats_ops.MaxBytesInUse()))


def peak_resident() -> int:
    """Return this process' peak resident memory in bytes."""
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    sys.exit(main())
