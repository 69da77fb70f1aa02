"""Shapes that XLA would compile again for are named, by input and dimension."""

from __future__ import annotations

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.graph import shape_watch
from amp_xla.graph.shape_watch import MAX_COMPILATIONS, watched


class Step:
    """A step that takes ``seconds`` on the clock below."""

    seconds = 0.1

    def __init__(self):
        self.now = 0.0
        self.name = "the step's"

    def __call__(self, feed, step):
        self.now += self.seconds
        return step


class Planned:
    """Batches of which only the shapes are known."""

    def __init__(self, count):
        self.shapes = [(8, 16 * (i + 1)) for i in range(count)]

    def epoch(self, epoch, start=0):
        raise AssertionError("batches were built to see their shapes")


@pytest.fixture
def step(monkeypatch):
    step = Step()
    monkeypatch.setattr(shape_watch.time, "perf_counter", lambda: step.now)
    return step


def feed(rows, length):
    return {"token_ids": np.zeros((rows, length)), "labels": np.zeros(rows), "step": 3}


def fed(step, planned, shapes, xla="on"):
    """Feed the shapes in turn; return what was said."""
    said = []
    running = watched(step, Planned(planned), xla, said.append)
    for number, shape in enumerate(shapes):
        assert running(feed(*shape), number) == number
    assert running.name == "the step's"
    return said


def test_planned_shapes_come_without_a_word(step):
    assert fed(step, 2, [(8, 16), (8, 32), (8, 16), (8, 32)]) == []
    assert watched(step, Planned(99), "off", None) is step


def test_a_longer_batch_is_named_once_with_the_setting_that_stops_it(step):
    said = fed(step, 1, [(8, 32), (8, 37), (8, 37)])
    assert len(said) == 1
    assert "step 1" in said[0] and "dimension 1 of token_ids went from 32 to 37" in said[0]
    assert "--shapes" in said[0] and "labels" not in said[0]


def test_a_short_last_batch_is_named_on_each_input_that_it_shortens(step):
    (said,) = fed(step, 1, [(8, 32), (5, 32)])
    assert "dimension 0 of labels, token_ids went from 8 to 5" in said


def test_more_planned_shapes_than_xla_compiles_are_named_before_the_first_step(step):
    (said,) = fed(step, MAX_COMPILATIONS + 1, [])
    assert "--shapes" in said and "no_lazy" in said
    assert fed(step, MAX_COMPILATIONS, []) == []
    assert fed(step, MAX_COMPILATIONS + 1, [], xla="no_lazy") == []


@pytest.mark.parametrize("fork", [True, False])
def test_a_compilation_that_nvidias_1_15_gives_up_is_named(step, fork, monkeypatch):
    monkeypatch.setattr(backend, "is_fork", lambda: fork)
    step.seconds = 31.0
    said = fed(step, 1, [(8, 32)])
    assert len(said) == fork
    assert not fork or ("step 0 took 31 s" in said[0] and "no_lazy" in said[0])
    assert fed(step, 1, [(8, 32)], xla="no_lazy") == []
