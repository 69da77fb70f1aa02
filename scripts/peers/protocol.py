"""The measured side of a peer: the same commands as ``amp_xla.speed.child``, any library."""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from amp_xla.speed.child import peak_resident, reply

Batch = Tuple[Any, Any]  # token ids [B, L], labels [B]


class Contestant(NamedTuple):
    """One side of the comparison.

    Attributes:
      step: one training step; returns the loss.
      facts: what it has to say after the warm-up.
      peak: the most memory so far, bytes.
      ceiling: (rows and columns, seconds, products a call) -> the best rate of a matrix product in
        its precision, FLOPs a second.
    """

    step: Callable[[Batch], float]
    facts: Callable[[], Dict[str, Any]] = dict
    peak: Callable[[], int] = peak_resident
    ceiling: Optional[Callable[[int, float, int], float]] = None


def serve(
    epoch: Callable[[int], Iterator[Batch]],
    contestant: Contestant,
    accuracy: Callable[[], float],
    warm_steps: int = 2,
) -> None:
    """Answers until ``end``.

    Args:
      epoch: its number -> batches, in the peer's own order and padding.
      contestant: who steps.
      accuracy: on the dev set.
      warm_steps: of each batch, before anything is timed.
    """

    step = contestant.step
    feeds: Iterator[Batch] = iter(())
    making = 0.0
    reply()
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "warm":
            began = time.perf_counter()
            batches = list(epoch(0))
            making = (time.perf_counter() - began) / len(batches)
            sizes = [batch[0].size for batch in batches]
            chosen = [batches[i] for i in evenly(sizes, command["sample"])]
            began = time.perf_counter()
            for batch in chosen * warm_steps:
                step(batch)
            warm = time.perf_counter() - began
            feeds = itertools.cycle(chosen)
            reply(warm_seconds=warm, **contestant.facts())
        elif command["do"] == "steps":
            reply(**_steps(feeds, step, command["steps"], making))
        elif command["do"] == "train":
            began, samples = time.perf_counter(), 0
            for number in range(command["epochs"]):
                for batch in epoch(number):
                    step(batch)
                    samples += len(batch[1])
            seconds = time.perf_counter() - began
            reply(seconds=seconds, samples=samples, accuracy=accuracy())
        elif command["do"] == "end":
            found: Dict[str, Any] = {"peak_bytes": contestant.peak()}
            if command.get("ceiling") and contestant.ceiling is not None:
                found["ceiling"] = contestant.ceiling(*command["ceiling"])
            reply(**found)
            return


def _steps(
    feeds: Iterator[Batch], step: Callable[[Batch], float], count: int, making: float
) -> Dict[str, Any]:
    seconds, samples, tokens, real, loss = [], 0, 0, 0, math.nan
    cpu = time.process_time()
    for _ in range(count):
        batch = next(feeds)
        began = time.perf_counter()
        loss = step(batch)
        seconds.append(time.perf_counter() - began + making)
        samples += len(batch[1])
        tokens += batch[0].size
        real += int((batch[0] != 0).sum())
    return {
        "seconds": seconds,
        "cpu_seconds": time.process_time() - cpu + count * making,
        "samples": samples,
        "tokens": tokens,
        "padding": 1 - real / tokens,
        "loss": loss if math.isfinite(loss) else None,
    }


def evenly(sizes: Sequence[int], count: int) -> List[int]:
    """Return indices of ``count`` sizes at equal distances from the smallest to the largest."""
    order = sorted(range(len(sizes)), key=lambda i: (sizes[i], i))
    return [order[int((k + 0.5) * len(order) / count)] for k in range(count)]
