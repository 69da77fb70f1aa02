"""The process of a contestant: answers the commands of the harness, for any library.

It reads one JSON command per line and writes one JSON answer per line:

    {"do": "warm", "sample": 8}     choose 8 batches of an epoch, and compile the step for them
    {"do": "steps", "steps": 8}     time training steps on them
    {"do": "train", "epochs": 3}    train instead, then evaluate
    {"do": "end"}                   report peak memory and exit
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from amp_xla.speed.child import peak_resident, reply

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


def serve(
    epoch: Callable[[int], Iterator[Batch]],
    contestant: Contestant,
    accuracy: Callable[[], float],
    warm_steps: int = 2,
) -> None:
    """Answer commands until ``end``.

    Args:
      epoch: returns the batches of an epoch by its number.
      contestant: see ``Contestant``.
      accuracy: evaluates on the dev set.
      warm_steps: untimed steps on each chosen batch.
    """
    feeds: Iterator[Batch] = iter(())
    making = samples_per_token = 0.0
    reply()
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "warm":
            began = time.perf_counter()
            batches = list(epoch(0))
            making = (time.perf_counter() - began) / len(batches)
            sizes = [batch[0].size for batch in batches]
            chosen = [batches[i] for i in evenly(sizes, command["sample"])]
            # Packed batches have one size and 20 to 90 samples: a few chosen ones do not have the
            # epoch's mean.
            samples_per_token = sum(len(batch[1]) for batch in batches) / sum(sizes)
            began = time.perf_counter()
            losses = [contestant.step(batch) for batch in chosen * warm_steps]
            feeds = itertools.cycle(chosen)
            reply(warm_seconds=time.perf_counter() - began, first_loss=finite(losses[0]))
        elif command["do"] == "steps":
            measured = timed(feeds, contestant.step, command["steps"])
            samples = measured["tokens"] * samples_per_token
            reply(samples=samples, making_seconds=making, **measured)
        elif command["do"] == "train":
            began, samples = time.perf_counter(), 0
            for batch in itertools.chain.from_iterable(map(epoch, range(command["epochs"]))):
                contestant.step(batch)
                samples += len(batch[1])
            seconds = time.perf_counter() - began
            reply(seconds=seconds, samples=samples, accuracy=accuracy())
        elif command["do"] == "end":
            reply(peak_bytes=contestant.peak(), **contestant.facts())
            return


def evenly(sizes: Sequence[int], count: int) -> List[int]:
    """Return ``count`` indices of ``sizes``, at even intervals in the order of size."""
    order = sorted(range(len(sizes)), key=lambda index: (sizes[index], index))
    if count >= len(order):
        return order
    return [order[(2 * i + 1) * len(order) // (2 * count)] for i in range(count)]


def timed(feeds: Iterator[Batch], step: Callable[[Batch], float], count: int) -> Dict[str, Any]:
    """Time ``count`` steps, without the making of batches."""
    seconds, tokens, loss = [], 0, math.nan
    cpu = time.process_time()
    for batch in itertools.islice(feeds, count):
        began = time.perf_counter()
        loss = step(batch)
        seconds.append(time.perf_counter() - began)
        tokens += batch[0].size
    return {
        "seconds": seconds,
        "cpu_seconds": time.process_time() - cpu,
        "tokens": tokens,
        "loss": finite(loss),
    }


def finite(loss: float) -> Optional[float]:
    """Return the loss, or None, which JSON has instead of NaN and infinity."""
    return loss if math.isfinite(loss) else None


class TrainStepFacts:
    """What ran in a ``TrainStep`` of TensorFlow: nodes in half precision, clusters, skips."""

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
