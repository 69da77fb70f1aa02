"""The measured side of a peer: the same commands as ``amp_xla.xla.measure``, any library."""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any, Callable, Dict, Iterator, Tuple

MARK = "@amp_xla "
Batch = Tuple[Any, Any]  # token ids [B, L], labels [B]


def serve(
    epoch: Callable[[int], Iterator[Batch]],
    step: Callable[[Batch], float],
    accuracy: Callable[[], float],
    warm_steps: int = 4,
) -> None:
    """Answers until ``end``.

    Args:
      epoch: its number -> batches, in the peer's own order and padding.
      step: one training step, batch making included in neither; returns the loss.
      accuracy: on the dev set.
      warm_steps: before anything is timed.
    """

    def endless() -> Iterator[Batch]:
        number = 0
        while True:
            yield from epoch(number)
            number += 1

    feeds = endless()
    reply()
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "warm":
            for _ in range(warm_steps):
                step(next(feeds))
            reply()
        elif command["do"] == "steps":
            reply(**_steps(feeds, step, command["steps"]))
        elif command["do"] == "train":
            began, samples = time.perf_counter(), 0
            for number in range(command["epochs"]):
                for batch in epoch(number):
                    step(batch)
                    samples += len(batch[1])
            seconds = time.perf_counter() - began
            reply(seconds=seconds, samples=samples, accuracy=accuracy())
        elif command["do"] == "end":
            with open("/proc/self/status", encoding="ascii") as status:
                peak = next(x for x in status if x.startswith("VmHWM")).split()[1]
            reply(peak_bytes=int(peak) * 1024)
            return


def _steps(feeds: Iterator[Batch], step: Callable[[Batch], float], count: int) -> Dict[str, Any]:
    seconds, samples, tokens, real, loss = [], 0, 0, 0, math.nan
    for _ in range(count):
        began = time.perf_counter()
        batch = next(feeds)
        loss = step(batch)
        seconds.append(time.perf_counter() - began)
        samples += len(batch[1])
        tokens += batch[0].size
        real += int((batch[0] != 0).sum())
    return {
        "seconds": seconds,
        "samples": samples,
        "tokens": tokens,
        "padding": 1 - real / tokens,
        "loss": loss if math.isfinite(loss) else None,
    }


def reply(**values: Any) -> None:
    """One line to the parent."""
    sys.stdout.write(MARK + json.dumps(values) + "\n")
    sys.stdout.flush()
