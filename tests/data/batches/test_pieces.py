"""The pieces that ranks take of a batch are the batch: same samples, same masks, nothing twice."""

from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest

from amp_xla.data.batches.buckets import Batches
from amp_xla.data.batches.noise import HiddenTokens
from amp_xla.data.batches.packed import PackedBatches
from amp_xla.data.batches.pieces import NUMBER, WEIGHTS, Pieces, axis, each, whole
from amp_xla.data.text.tokenizer import Encoded
from amp_xla.errors import DataError


class Special:
    """What ``HiddenTokens`` asks of a tokenizer."""

    pad_id, cls_id, sep_id, hidden_id = 0, 1, 2, 4


def samples(count: int = 53) -> Any:
    """Texts of 3 to 20 tokens, each token a number of its own, so that none is mistaken."""
    lengths = np.array([3 + i * 7 % 18 for i in range(count)])
    ids = np.arange(10, 10 + lengths.sum()).astype(np.int32)
    return Encoded(ids, np.append(0, np.cumsum(lengths)), lengths), np.arange(count)


def buckets() -> Any:
    return Batches(*samples(), lengths=[8, 14, 20], batch_size=6, seed=5)


def packed() -> Any:
    return PackedBatches(*samples(), length=32, batch_size=8, seed=5)


def pieces(source: Any, ranks: int, split: int = 1) -> List[Pieces]:
    of = ranks * split
    return [Pieces(source, range(r * split, (r + 1) * split), of) for r in range(ranks)]


def texts(batches: Any) -> List[Any]:
    """(sample id, label, tokens) of what counts, sorted."""
    found = []
    for batch in batches:
        ids = batch.sample_ids
        for row in np.flatnonzero(ids >= 0):
            if hasattr(
                batch, "slots"
            ):  # packed: tokens of its slot, which have the sample's own ids
                continue
            tokens = batch.token_ids[row]
            found.append((int(ids[row]), int(batch.labels[row]), tuple(tokens[tokens > 0])))
        if hasattr(batch, "slots"):
            inside = batch.slots[0] >= 0
            found.append(("tokens", tuple(batch.token_ids[0][inside])))
            found.append(("ids", tuple(ids[ids >= 0]), tuple(batch.labels[ids >= 0])))
    return found


@pytest.mark.parametrize("make", [buckets, packed])
@pytest.mark.parametrize(
    ("ranks", "split"), [(1, 1), (2, 1), (3, 1), (4, 1), (1, 3), (2, 2), (9, 1)]
)
def test_what_ranks_do_together_is_the_batch(make: Any, ranks: int, split: int) -> None:
    source = make()
    shares = pieces(source, ranks, split)
    for epoch in (0, 1):
        walks = [share.epoch(epoch, start=1) for share in shares]
        for batch, parts in zip(source.epoch(epoch, start=1), zip(*walks)):
            ids = np.concatenate([part.sample_ids for part in parts])
            real = ids[ids >= 0]
            assert sorted(real) == sorted(batch.sample_ids[batch.sample_ids >= 0])
            flat = [piece for part in parts for piece in each(part)]
            assert sum(piece.weights.sum() for piece in flat) == batch.weights.sum()
            shapes = {tuple(piece.batch.token_ids.shape) for piece in flat}
            assert len(shapes) == 1  # all ranks compile one program
            if make is buckets:
                rows = texts([batch])
                assert [row for piece in flat for row in texts([piece.batch])] == rows
            else:
                tokens = np.concatenate([p.batch.token_ids[p.batch.slots >= 0] for p in flat])
                assert sorted(tokens) == sorted(batch.token_ids[batch.slots >= 0])


def test_a_piece_is_fed_with_its_place_and_its_share() -> None:
    first = next(iter(pieces(buckets(), 2, 2)[1].epoch(0)))
    feeds = [piece.feed() for piece in first.pieces]
    assert [int(feed[NUMBER]) for feed in feeds] == [2, 3]
    together = sum(float(piece.weights.sum()) for piece in first.pieces)
    assert [list(feed[WEIGHTS]) for feed in feeds] == [
        [float(piece.weights.sum()), together] for piece in first.pieces
    ]


@pytest.mark.parametrize("make", [buckets, packed])
@pytest.mark.parametrize("ranks", [2, 3])
def test_tokens_are_hidden_as_in_the_whole_batch(make: Any, ranks: int) -> None:
    source = HiddenTokens(make(), 0.3, Special(), seed=2)  # type: ignore[arg-type]
    walks = [share.epoch(1) for share in pieces(source, ranks)]
    hidden = 0
    for batch, parts in zip(source.epoch(1), zip(*walks)):
        flat = [piece.batch for part in parts for piece in each(part)]
        if make is buckets:
            rows = np.concatenate([piece.token_ids for piece in flat])[: len(batch.token_ids)]
            assert (rows == batch.token_ids).all()
        else:
            tokens = np.concatenate([piece.token_ids[piece.slots >= 0] for piece in flat])
            assert sorted(tokens) == sorted(batch.token_ids[batch.slots >= 0])
        hidden += int((batch.token_ids == 4).sum())
    assert hidden


@pytest.mark.parametrize("of", [1, 2, 3, 5])
def test_axes_of_packed_rows_say_where_a_piece_lies(of: int) -> None:
    source = packed()
    batch = next(iter(source.epoch(0)))
    axes = source.axes(of)
    for number in range(of):
        piece = next(iter(source.part(number, of).epoch(0)))
        inside = piece.slots[0] >= 0
        line = batch.token_ids[0][axes["tokens"].places[number]]
        assert (line[inside] == piece.token_ids[0][inside]).all()
        real = piece.sample_ids >= 0
        found = batch.sample_ids[axes["slots"].places[number]]
        assert (found[real] == piece.sample_ids[real]).all()


def test_an_axis_is_cut_into_equal_runs() -> None:
    assert axis(5, 2).places.tolist() == [[0, 1, 2], [3, 4, 4]]
    assert axis(2, 3).places.tolist() == [[0], [1], [1]]


def test_batches_of_different_rows_cannot_be_shared() -> None:
    source = Batches(*samples(), lengths=[8, 20], batch_size=8, token_budget=True)
    with pytest.raises(DataError, match="ranks cannot share them"):
        Pieces(source, [0], 2)
    assert whole(source) is source
