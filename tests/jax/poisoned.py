"""A few steps, one with a NaN in the last row: what `test_recipe.py` runs in one process and two.

Prints what every process ends up with.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np

from amp_xla.config import make
from amp_xla.jax import processes
from recipes import jax_classification as recipe


def main() -> None:
    processes.join()
    config = make(
        recipe.Config, train="train.tsv", dev="dev.tsv", layers=1, hidden=16, vocab_size=60,
        max_length=16, shapes=1, batch_size=8, epochs=2, loss_scale="dynamic",
    )  # fmt: skip
    job = recipe.build(config)
    state, seen, in_a_row = job.state, [], 0
    for number, batch in enumerate(job.batches.epoch(0)):
        if number == 3:
            weights = batch["weights"].copy()
            weights[-1] = np.nan
            batch = {**batch, "weights": weights}
        fed = {n: batch[n] for n in ("token_ids", "segment_ids", "labels", "weights")}
        state, result = job.step(state, processes.share(fed))
        in_a_row = 0 if bool(result.finite) else in_a_row + 1
        values = [np.asarray(leaf.addressable_data(0)) for leaf in _leaves(state.model)]
        digest = hashlib.sha256(b"".join(v.tobytes() for v in values)).hexdigest()
        scale = float(state.loss_scale.loss_scale)
        total = float(sum(np.abs(v).sum(dtype=np.float64) for v in values))
        seen.append([digest, total, int(state.applied), in_a_row, scale])
        if number == 5:
            break
    print("SEEN " + json.dumps(seen), flush=True)


def _leaves(tree):
    import jax

    return jax.tree_util.tree_leaves(tree)


if __name__ == "__main__":
    main()
