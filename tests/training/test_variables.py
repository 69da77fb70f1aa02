"""TensorFlow variables in checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator, List

import numpy as np
import pytest

import amp_xla.setup  # noqa: F401
from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.training import checkpoint
from amp_xla.training.checkpoint import Checkpoint, fitting
from amp_xla.training.variables import Variables, restore_weights
from tests.training import runs


@pytest.fixture
def variables() -> Iterator[List[Any]]:
    backend.K.clear_session()
    yield [
        tf.get_variable("weight", (31, 7), tf.float32),
        tf.get_variable("slot", (5,), tf.float64, tf.ones_initializer()),
        tf.get_variable("half", (3,), tf.bfloat16, tf.ones_initializer()),
        tf.get_variable("count", (), tf.int64, tf.ones_initializer()),
        tf.get_variable("old", (3,), tf.float32, use_resource=False),
    ]
    backend.K.clear_session()


def test_variables_come_back_bit_for_bit(tmp_path: Path, variables: List[Any]) -> None:
    session = backend.session()
    session.run(tf.global_variables_initializer())
    group = Variables(variables)
    path = checkpoint.write(tmp_path, 1, group.snapshot(), runs.state(1), {})
    before = session.run(variables)
    zeros = [v.assign(tf.zeros_like(v)) for v in variables]
    session.run(zeros)
    group.assign(fitting(Checkpoint(path), group.shapes()))
    after = session.run(variables)
    assert all(np.array_equal(a, b) for a, b in zip(before, after))
    session.run(zeros)
    restore_weights(Checkpoint(path), variables[:1])
    after = session.run(variables)
    assert np.array_equal(before[0], after[0]) and not after[4].any()


def test_a_snapshot_does_not_change_with_later_steps(variables: List[Any]) -> None:
    session = backend.session()
    session.run(tf.global_variables_initializer())
    for weight in (variables[0], variables[4]):
        group = Variables([weight])
        update = weight.assign_add(tf.ones_like(weight))
        for _ in range(3):
            (held,) = group.snapshot().values()
            copy = np.array(held)
            session.run(update)
            assert np.array_equal(held, copy)
