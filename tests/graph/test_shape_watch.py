"""Shapes that XLA would compile again for are named, by input."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from amp_xla.graph.shape_watch import MAX_COMPILATIONS, watched


def fed(planned, shapes, xla="on"):
    """Feed the shapes in turn; return what was said."""
    said = []
    batches = SimpleNamespace(shapes=[(8, 16 * (i + 1)) for i in range(planned)])
    running = watched(lambda feed, step: step, batches, xla, said.append)
    for number, (rows, length) in enumerate(shapes):
        feed = {"token_ids": np.zeros((rows, length)), "labels": np.zeros(rows), "step": 3}
        assert running(feed, number) == number
    return said


def test_a_shape_that_was_not_planned_is_named_once():
    assert fed(2, [(8, 16), (8, 32), (8, 16), (8, 32)]) == []
    (said,) = fed(1, [(8, 32), (8, 37), (8, 37)])
    assert "step 1 took" in said and "token_ids from [8, 32] to [8, 37]. To stop it" in said
    (said,) = fed(1, [(8, 32), (5, 32)])
    assert "labels from [8] to [5], token_ids from [8, 32] to [5, 32]" in said
    assert fed(1, [(8, 32), (8, 37)], xla="off") == []


def test_more_planned_shapes_than_xla_compiles_are_named_before_the_first_step():
    (said,) = fed(MAX_COMPILATIONS + 1, [])
    assert "--shapes" in said and "no_lazy" in said
    assert fed(MAX_COMPILATIONS, []) == []
    assert fed(MAX_COMPILATIONS + 1, [], xla="no_lazy") == []
