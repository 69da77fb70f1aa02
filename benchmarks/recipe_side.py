"""A contestant of the benchmarks: a recipe of this project."""

from __future__ import annotations

import json
import sys
from typing import Any, Iterator

from benchmarks import timing
from benchmarks.child import Request, build_job, peak_bytes


def main() -> int:
    """Build the recipe's job; do the task."""
    job = build_job(Request(**json.loads(sys.argv[1])))
    number, facts = iter(range(10**9)), timing.TrainStepFacts(job.step)

    def epoch(index: int) -> Iterator[Any]:
        """Yield (token ids, ids of the real samples, batch)."""
        for batch in job.batches.epoch(index):
            ids = batch["sample_ids"]
            yield batch["token_ids"], ids[ids >= 0], batch

    def step(batch: Any) -> float:
        return facts.loss(job.step(batch[2], next(number)))

    contestant = timing.Contestant(step, facts, peak_bytes)
    timing.run(epoch, contestant, lambda: job.evaluate()["accuracy"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
