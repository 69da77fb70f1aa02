"""Train a few steps, one with a NaN in the last row; print weights and scale of each step."""

from __future__ import annotations

import hashlib
import json

import numpy as np

from amp_xla.config import changed
from amp_xla.jax import processes
from recipes import jax_classification as recipe


def main() -> None:
    import jax

    processes.join()
    config = changed(
        recipe.Config(), train="train.tsv", dev="dev.tsv", layers=1, hidden=16, vocab_size=60,
        max_length=16, shapes=1, batch_size=8, epochs=2, loss_scale="dynamic",
    )  # fmt: skip
    job = recipe.build(config)
    state, seen = job.state, []
    for number, batch in zip(range(6), job.batches.epoch(0)):
        if number == 3:
            batch["weights"] = np.append(batch["weights"][:-1], np.float32(np.nan))
        fed = {n: batch[n] for n in ("token_ids", "segment_ids", "labels", "weights")}
        state, _ = job.step(state, processes.share(fed))
        values = [np.asarray(v.addressable_data(0)) for v in jax.tree_util.tree_leaves(state.model)]
        digest = hashlib.sha256(b"".join(v.tobytes() for v in values)).hexdigest()
        seen.append([digest, int(state.applied), float(state.loss_scale.loss_scale)])
    print("SEEN " + json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
