"""The process of a contestant: times its training steps, or trains and evaluates, for any library.

Its last argument is the task as JSON, and its answer is a line of JSON:

    {"steps": 8, "windows": 3}   compile the step for 8 batches of an epoch, and time it on them
    {"epochs": 3}                train, then evaluate
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from benchmarks.child import WARM_STEPS, peak_resident, reply

Batch = Tuple[Any, ...]  # token ids [B, L], an array [B], and other values for the step


class Contestant(NamedTuple):
    """The training step of a contestant.

    Attributes:
      step: runs one training step and returns its loss.
      facts: what ran, reported at the end: device, products in half precision, skipped steps.
      peak: returns the peak memory in bytes.
    """

    step: Callable[[Batch], float]
    facts: Callable[[], Dict[str, Any]] = dict
    peak: Callable[[], int] = peak_resident


def run(
    epoch: Callable[[int], Iterator[Batch]],
    contestant: Contestant,
    accuracy: Callable[[], float] = lambda: math.nan,
) -> None:
    """Do the task, and print the answer.

    Args:
      epoch: returns the batches of an epoch by its number.
      contestant: see ``Contestant``.
      accuracy: evaluates on the dev set.
    """
    task = json.loads(sys.argv[-1])
    if "epochs" in task:
        batches = itertools.chain.from_iterable(map(epoch, range(task["epochs"])))
        answer = timed(batches, contestant.step)
        answer["accuracy"] = accuracy()
    else:
        answer = on_chosen(task, epoch, contestant.step)
    reply(**answer, peak_bytes=contestant.peak(), **contestant.facts())


def on_chosen(
    task: Dict[str, int], epoch: Callable[[int], Iterator[Batch]], step: Callable[[Batch], float]
) -> Dict[str, Any]:
    """Time windows of steps; each window has the same batches, one per step."""
    began = time.perf_counter()
    batches = list(epoch(0))
    making = (time.perf_counter() - began) / len(batches)
    sizes = [batch[0].size for batch in batches]
    chosen = [batches[i] for i in evenly(sizes, task["steps"])]
    began = time.perf_counter()
    losses = [step(batch) for batch in chosen * WARM_STEPS]
    warm_seconds = time.perf_counter() - began
    feeds = itertools.islice(itertools.cycle(chosen), task["steps"] * task["windows"])
    answer = timed(feeds, step)
    # Packed batches have one size and 20 to 90 samples: a few chosen ones do not have the epoch's
    # mean.
    samples_per_token = sum(len(batch[1]) for batch in batches) / sum(sizes)
    answer["samples"] = [tokens * samples_per_token for tokens in answer["tokens"]]
    first_loss = finite(losses[0])
    return {
        **answer,
        "making_seconds": making,
        "warm_seconds": warm_seconds,
        "first_loss": first_loss,
    }


def evenly(sizes: Sequence[int], count: int) -> List[int]:
    """Return ``count`` indices of ``sizes``, at even intervals in the order of size."""
    order = sorted(range(len(sizes)), key=lambda index: (sizes[index], index))
    if count >= len(order):
        return order
    return [order[(2 * i + 1) * len(order) // (2 * count)] for i in range(count)]


def timed(batches: Iterable[Batch], step: Callable[[Batch], float]) -> Dict[str, Any]:
    """Return seconds, samples and tokens of each step, and the mean time to make a batch."""
    seconds, samples, tokens, cpu, loss = [], [], [], 0.0, math.nan
    began = time.perf_counter()
    for batch in batches:
        cpu_before, before = time.process_time(), time.perf_counter()
        loss = step(batch)
        seconds.append(time.perf_counter() - before)
        cpu += time.process_time() - cpu_before
        samples.append(len(batch[1]))
        tokens.append(batch[0].size)
    making = (time.perf_counter() - began - sum(seconds)) / len(seconds)
    return {
        "seconds": seconds, "cpu_seconds": cpu, "samples": samples, "tokens": tokens,
        "making_seconds": making, "loss": finite(loss),
    }  # fmt: skip


def finite(loss: float) -> Optional[float]:
    """Return the loss, or None, which JSON has instead of NaN and infinity."""
    return loss if math.isfinite(loss) else None


class TrainStepFacts:
    """Counts nodes in half precision, clusters and skipped steps of a ``TrainStep``."""

    def __init__(self, train: Any) -> None:
        self._train, self._skipped = train, 0

    def loss(self, result: Any) -> float:
        """Count a skipped step; return its loss."""
        self._skipped += not result.finite
        return float(result.loss)

    def __call__(self) -> Dict[str, Any]:
        from amp_xla import backend

        graph = self._train.executed
        return {
            "device": "gpu" if backend.gpus() else "cpu", "clusters": graph.clusters,
            "half_nodes": graph.half_nodes - graph.casts, "skipped": self._skipped,
        }  # fmt: skip
