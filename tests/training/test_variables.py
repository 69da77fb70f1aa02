"""TensorFlow variables in checkpoints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Iterator, List

import numpy as np
import pytest

import amp_xla.setup  # noqa: F401
from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.training import checkpoint
from amp_xla.training.checkpoint import Checkpoint, CheckpointError, fitting
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


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "found", "needed"),
    [
        ("weight", (4, 3), tf.float32, "float32[3,4]", "float32[4,3]"),
        ("weight", (3, 4), tf.float64, "float32[3,4]", "float64[3,4]"),
        ("other", (1,), tf.float32, "none", "float32[1]"),
    ],
)
def test_tensors_are_compared_before_variables_change(
    tmp_path: Path, name: str, shape: Any, dtype: Any, found: str, needed: str
) -> None:
    backend.K.clear_session()
    variable = tf.get_variable(name, shape, dtype, tf.ones_initializer())
    backend.session().run(tf.global_variables_initializer())
    saved = Checkpoint(runs.write(tmp_path, 1))
    words = rf"tensor {name}: found {re.escape(found)}, needed {re.escape(needed)}"
    with pytest.raises(CheckpointError, match=words):
        restore_weights(saved, [variable])
    with pytest.raises(CheckpointError, match="is of another model.*tensor count: found int64"):
        fitting(saved, Variables([variable]).shapes())
    assert np.array_equal(backend.session().run(variable), np.ones(shape))


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
