"""The measured side of a peer: the same commands as ``amp_xla.speed.child``, any library."""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from typing import Any, Callable, Dict, Iterator, Tuple

from amp_xla.speed.child import evenly, peak_resident, reply

Batch = Tuple[Any, Any]  # token ids [B, L], labels [B]


def serve(
    epoch: Callable[[int], Iterator[Batch]],
    step: Callable[[Batch], float],
    accuracy: Callable[[], float],
    warm_steps: int = 2,
) -> None:
    """Answers until ``end``.

    Args:
      epoch: its number -> batches, in the peer's own order and padding.
      step: one training step; returns the loss.
      accuracy: on the dev set.
      warm_steps: of each batch, before anything is timed.
    """

    feeds: Iterator[Batch] = iter(())
    making = 0.0
    reply()
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "warm":
            began = time.perf_counter()
            batches = list(epoch(0))
            making = (time.perf_counter() - began) / len(batches)
            found = evenly([batch[0].size for batch in batches], command["sample"])
            chosen = [batches[i] for i in found]
            for batch in chosen * warm_steps:
                step(batch)
            feeds = itertools.cycle(chosen)
            reply()
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
            reply(peak_bytes=peak_resident())
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
