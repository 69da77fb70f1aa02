"""One rank of two: what ``Reduction`` and ``Ranks`` make of both. Writes FOLDER/RANK.json.

`horovodrun -np 2 python -m tests.precision.reduction_worker FOLDER`
"""

from __future__ import annotations

import json
import sys
from typing import Any, Dict

import numpy as np

from amp_xla.backend import tf
from amp_xla.optimizers.scheduled import scheduled
from amp_xla.precision.reduction import COMPRESSIONS, Reduction
from amp_xla.training import distributed

HEIGHT, WIDTH, SCALE = 1000, 8, 2.0**15


def dense(ranks: Any) -> Dict[str, Any]:
    """Sums of gradients of 1e-7 and of ordinary ones, and of a cast of unscaled ones."""
    rng = np.random.RandomState(ranks.world.rank)
    tiny = tf.constant(np.full(7, 1e-7, np.float32))
    plain = tf.constant(rng.randn(5, 3) * 0.1, tf.float32)
    found = {}
    for name in COMPRESSIONS:
        reduction = Reduction(ranks.hvd, name)
        reduction.loss_scale = lambda: tf.constant(SCALE)
        found[name] = reduction([tiny, plain])
    hvd = ranks.hvd
    found["unscaled"] = [tf.cast(hvd.allreduce(tf.cast(tiny, tf.float16), op=hvd.Sum), tf.float32)]
    found["mine"] = [plain]
    return found


def rows(ranks: Any) -> Dict[str, Any]:
    """Gradients of an embedding, once with few different rows and once with many."""
    found = {}
    for name, count in (("few", 20), ("many", 3000)):
        rng = np.random.RandomState(10 + ranks.world.rank)
        ids = tf.constant(rng.randint(0, HEIGHT, count), tf.int64)
        values = tf.constant(rng.randn(count, WIDTH), tf.float32)
        gradient = tf.IndexedSlices(values, ids, tf.constant([HEIGHT, WIDTH], tf.int64))
        found[name] = Reduction(ranks.hvd, say=print)([gradient])
        found[name + " here"] = [tf.math.unsorted_segment_sum(values, ids, HEIGHT)]
    return found


def skipping(session: Any, ranks: Any) -> Any:
    """Weights and loss scale after steps of which rank 1 poisons the second."""
    with tf.variable_scope("skipping"):
        weight = tf.get_variable("w", initializer=tf.ones([3]), use_resource=True)
        poison = tf.placeholder(tf.float32, [])
        reduction = Reduction(ranks.hvd)
        optimizer, _ = scheduled(0.1, 10, 0.0, "dynamic", reduction=reduction)
        pairs = optimizer.compute_gradients(tf.reduce_sum(weight * weight) * poison / 2, [weight])
        train = optimizer.apply_gradients(pairs)
    session.run(tf.global_variables_initializer())
    seen = []
    for step in range(3):
        bad = step == 1 and ranks.world.rank == 1
        session.run(train, {poison: float("nan") if bad else 1.0})
        values = session.run([weight, optimizer.state_variables[2]])
        seen.append([values[0].tolist(), float(values[1])])
    return seen


def differing(ranks: Any) -> str:
    """What is said of a tensor that one rank has otherwise."""
    arrays = [np.ones(3), np.full(2, float(ranks.world.rank)), np.zeros(1)]
    try:
        ranks.compare(["same", "other", "last"], arrays)
    except distributed.RanksDiffer as error:
        return str(error)
    return ""


def main(folder: str) -> None:
    ranks = distributed.join()
    fetches = {**dense(ranks), **rows(ranks)}
    with tf.Session() as session:
        found = {k: [v.tolist() for v in values] for k, values in session.run(fetches).items()}
        found["skipping"] = skipping(session, ranks)
    found["differing"] = differing(ranks)
    found["gathered"] = ranks.gather({"rank": ranks.world.rank, "text": "ä" * ranks.world.rank})
    found["first"] = ranks.from_first(lambda: f"of rank {ranks.world.rank}")
    found["all"] = ranks.all_do(lambda: ranks.world.rank * 10)
    found["total"] = ranks.total(np.arange(4).reshape(2, 2) + ranks.world.rank).tolist()
    with open(f"{folder}/{ranks.world.rank}.json", "w") as out:
        json.dump(found, out)


if __name__ == "__main__":
    main(sys.argv[1])
