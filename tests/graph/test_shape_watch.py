"""New shapes are named by input and dimension; XLA's rule for giving up is XLA's."""

from __future__ import annotations

import numpy as np

from amp_xla.data.batches.buckets import Batches
from amp_xla.data.batches.lengths import choose_lengths
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.graph.shape_watch import (
    MAX_COMPILATIONS,
    MAX_COMPILE_SECONDS,
    ShapeWatch,
    too_many,
    watched,
)


def feed(rows, length):
    return {
        "token_ids": np.zeros((rows, length), np.int32),
        "labels": np.zeros(rows, np.int32),
        "step": 3,
    }


def test_planned_shapes_come_without_a_word():
    watch = ShapeWatch(planned=2)
    for length in (16, 32, 16, 32, 32):
        assert watch.see(feed(8, length), 0.1, 0) is None
    assert watch.shapes == 2 and watch.late == []


def test_a_longer_batch_is_named_with_old_and_new_length_and_the_setting():
    watch = ShapeWatch(planned=1)
    watch.see(feed(8, 32), 5.0, 0)
    text = watch.see(feed(8, 37), 4.0, 7)
    assert "step 7" in text and "dimension 1 of token_ids went from 32 to 37" in text
    assert "--shapes" in text and "labels" not in text
    assert watch.see(feed(8, 37), 0.1, 8) is None  # said once


def test_a_short_last_batch_is_named_on_every_input_it_shortens():
    watch = ShapeWatch(planned=1)
    watch.see(feed(8, 32), 5.0, 0)
    text = watch.see(feed(5, 32), 4.0, 9)
    assert "dimension 0 of labels, token_ids went from 8 to 5" in text
    assert "fill the last batch up" in text


def test_a_compilation_that_the_fork_would_give_up_is_named_and_no_other():
    watch = ShapeWatch(planned=1, longest=MAX_COMPILE_SECONDS)
    assert watch.see(feed(8, 32), 29.0, 0) is None
    text = watch.see(feed(8, 32), 31.0, 2)
    assert text and "step 2" in text and "no_lazy" in text
    for step in range(3, 6):
        watch.see(feed(8, 32), 0.1, step)
    # A slow step of a shape that is compiled already is a slow machine.
    assert watch.see(feed(8, 32), 31.0, 9) is None
    assert ShapeWatch(planned=1).see(feed(8, 32), 31.0, 0) is None


def test_seconds_beyond_the_warm_step_are_compilation():
    watch = ShapeWatch(planned=1)
    for seconds in (6.0, 3.0, 1.0, 1.0, 1.0):
        watch.see(feed(8, 32), seconds, 0)
    assert watch.compile_seconds == 7.0


def test_more_shapes_than_xla_compiles_are_warned_of_without_building_a_batch():
    class Planned:
        shapes = tuple((8, 8 * i) for i in range(1, 13))

    said = []
    for xla in ("no_lazy", "lazy"):
        watched(None, Planned(), xla, said.append)
    assert len(said) == 1 and "12 shapes" in said[0] and "--shapes" in said[0]
    assert too_many(MAX_COMPILATIONS) is None


def test_the_batches_made_here_keep_their_promise():
    rng = np.random.RandomState(1)
    texts = [" ".join(rng.choice(list("abcd"), rng.randint(1, 40))) for _ in range(300)]
    tokenizer = Tokenizer.train(texts, 40)
    encoded = tokenizer.encode(texts, None, max_length=48)
    batches = Batches(encoded, None, choose_lengths(encoded.lengths, 3, max_length=48), 16)
    watch = ShapeWatch(len(batches.shapes))
    for epoch in range(2):
        for step, batch in enumerate(batches.epoch(epoch)):
            assert watch.see({"token_ids": batch["token_ids"]}, 0.1, step) is None
    assert watch.shapes == len(batches.shapes)
