"""Process that builds a recipe's job, warms it up, times steps and prints the result.

Its only argument is the ``Request`` as JSON. The result is a line of JSON after ``MARK``.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import sys
import time
from typing import Any, Dict, Iterator, Sequence, Tuple

import numpy as np

from amp_xla.data.batches.protocol import micro_batches, sample_count

MARK = "@amp_xla "
# XLA's lazy mode compiles a shape at its third request; the fourth step is warm.
WARM_STEPS = 4
# Batches in which to look for all shapes; a pretraining run's second length may come days later.
LOOKAHEAD = 200


@dataclasses.dataclass(frozen=True)
class Request:
    """One combination of precision and XLA mode to measure.

    Attributes:
      words: flags for the recipe.
      address_space: limit of the process' address space in bytes; 0 = no limit.
      steps: number of timed steps.
    """

    recipe: str
    words: Sequence[str] = ()
    precision: str = "amp"
    xla: str = "off"
    address_space: int = 0
    steps: int = 8


def reply(**values: Any) -> None:
    """Print the result for the parent process."""
    sys.stdout.write(MARK + json.dumps(values) + "\n")
    sys.stdout.flush()


def build_job(request: Request) -> Any:
    """Build the recipe's job with the requested precision and XLA mode, variables initialized."""
    from amp_xla.training.recipe import find_recipe

    recipe = find_recipe(request.recipe)
    words = (*request.words, "--precision", request.precision, "--xla", request.xla)
    from amp_xla.training.context import build_job

    job = build_job(recipe.build, recipe.parse(words))
    from amp_xla.training.step import initialize_variables

    initialize_variables()
    return job


def main() -> int:
    """Measure the request, which is the only argument."""
    request = Request(**json.loads(sys.argv[1]))
    if request.address_space:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (request.address_space, request.address_space))
    answer = measured(build_job(request), request.steps)
    reply(**answer, peak_bytes=peak_bytes())
    return 0


def measured(job: Any, count: int) -> Dict[str, Any]:
    """Run each shape until it is compiled, then time ``count`` steps and their batches."""
    number, seen, warm_seconds = itertools.count(), set(), 0.0

    def epoch() -> Iterator[Tuple[Dict[str, Any], int]]:
        """Yield (feed, number of samples) for each micro-batch of the first epoch."""
        for batch in job.batches.epoch(0):
            for shard in micro_batches(batch):
                yield job.step.feed(shard), sample_count(shard)

    for feed, _ in itertools.islice(epoch(), LOOKAHEAD):
        shapes = tuple(np.shape(array) for array in feed.values())
        if shapes not in seen:
            seen.add(shapes)
            times = [time.perf_counter()]
            for _ in range(WARM_STEPS):
                job.step(feed, next(number))
                times.append(time.perf_counter())
            # Time beyond that of the fastest step is compilation.
            warm_seconds += times[-1] - times[0] - WARM_STEPS * float(np.diff(times).min())
        if len(seen) == len(job.batches.shapes):
            break
    samples, losses, skipped, times = 0, [], 0, [time.perf_counter()]
    feeds = itertools.chain.from_iterable(epoch() for _ in itertools.count())
    for feed, real in itertools.islice(feeds, count):
        result = job.step(feed, next(number))
        times.append(time.perf_counter())
        samples += real
        losses.append(float(result.loss))
        skipped += not result.finite
    return {
        "warm_seconds": warm_seconds,
        "seconds": np.diff(times).tolist(),
        "samples": samples,
        "loss": losses[-1] if math.isfinite(losses[-1]) else None,
        # A dynamic loss scale skips some steps, but not most of them.
        "finite": all(map(math.isfinite, losses)) and 2 * skipped <= count,
        "steps": next(number),
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
