"""The micro-batches of all ranks hold each row of a batch once, in equal shapes."""

from __future__ import annotations

import numpy as np
import pytest

from amp_xla.data.batches.buckets import Batches, PackedBatches
from amp_xla.data.batches.protocol import SHARE, RankShard, micro_batches, whole
from tests.support.encoded import encoded

pytestmark = pytest.mark.once

LENGTHS = [3 + i * 7 % 18 for i in range(53)]


def buckets():
    return Batches(*encoded(LENGTHS), lengths=[8, 14, 20], batch_size=6, seed=5)


def packed():
    return PackedBatches(*encoded(LENGTHS), length=32, batch_size=8, seed=5)


@pytest.mark.parametrize("make", [buckets, packed])
@pytest.mark.parametrize(("ranks", "count"), [(2, 1), (3, 1), (4, 1), (1, 3), (2, 2), (9, 1)])
def test_all_micro_batches_are_the_batch(make, ranks, count):
    source = make()
    shards = [RankShard(source, rank, ranks, count) for rank in range(ranks)]
    assert whole(shards[0]) is source and whole(source) is source
    for epoch in (0, 1):
        walks = [shard.epoch(epoch, start=1) for shard in shards]
        for batch, parts in zip(source.epoch(epoch, start=1), zip(*walks)):
            micro = [one for part in parts for one in micro_batches(part)]
            assert len(micro) == ranks * count
            assert {one["token_ids"].shape for one in micro} <= set(shards[0].shapes)
            assert sum(one[SHARE] for one in micro) == pytest.approx(1)
            for name, array in batch.items():
                # Row i of the batch is row i // shards of micro-batch i % shards.
                rows = np.stack([one[name] for one in micro], 1)
                joined = rows.reshape(-1, *array.shape[1:])
                np.testing.assert_array_equal(joined[: len(array)], array)
                if name in ("weights", "sample_ids"):
                    assert (joined[len(array) :] == (0 if name == "weights" else -1)).all()
