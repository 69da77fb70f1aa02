"""A v1 graph's Saver: saved after growth, restored in a new process, the same from there on."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from amp_xla.backend import tf
from amp_xla.precision import DynamicLossScale
from amp_xla.precision.optimizer import LossScaleOptimizer
from tests.precision.training import KINDS, ROWS, WIDTH, problem

CASES = {"dynamic": ("tf.train adam", 1), "accumulating": ("keras adam", 3)}


def build(name):
    """(problem, optimizer, operation) in the default graph."""
    kind, window = CASES[name]
    task = problem()
    scale = DynamicLossScale(4.0, growth_interval=5, minimum=0.25, maximum=2.0**20)
    optimizer = LossScaleOptimizer(KINDS[kind](), scale, accumulate=window)
    return task, optimizer, optimizer.minimize(task.loss, task.variables)


def train(session, built, seed, steps):
    """Noise, some of it infinite; weights and the whole state after every step."""
    task, optimizer, operation = built
    rng, seen = np.random.RandomState(seed), []
    for _ in range(steps):
        factor = rng.rand() if rng.rand() > 0.1 else np.inf
        session.run(operation, {task.factor: factor})
        values = session.run(task.variables + optimizer.state_variables)
        seen.append(np.concatenate([np.ravel(v).astype("float64") for v in values]))
    return np.array(seen)


RESUME = """
import sys
import numpy as np
from amp_xla.backend import tf
from tests.precision.test_checkpoint import CASES, build, train
for name in sorted(CASES):
    with tf.Graph().as_default(), tf.Session() as session:
        built = build(name)
        tf.train.Saver().restore(session, sys.argv[1] + "/" + name)
        np.save(sys.argv[1] + "/" + name + ".npy", train(session, built, 2, 100))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """(uninterrupted, resumed) by case."""
    folder = tmp_path_factory.mktemp("saved")
    whole, scales = {}, {}
    for name in sorted(CASES):
        with tf.Graph().as_default(), tf.Session() as session:
            built = build(name)
            session.run(tf.global_variables_initializer())
            train(session, built, 1, 34)  # an accumulating window is under way
            tf.train.Saver().save(session, str(folder / name))
            scales[name] = float(session.run(built[1].loss_scale))
            whole[name] = train(session, built, 2, 100)
    subprocess.run([sys.executable, "-c", RESUME, str(folder)], check=True)
    resumed = {name: np.load(str(folder / f"{name}.npy")) for name in CASES}
    return whole, resumed, scales


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_next_100_steps_are_identical(runs, name):
    whole, resumed, scales = runs
    assert scales[name] != 4.0  # it was saved after the scale had moved
    np.testing.assert_array_equal(resumed[name], whole[name])
    weights = whole[name][:, : ROWS * WIDTH + WIDTH * 2]  # sums of a bad window are not finite
    assert len(weights) == 100 and np.isfinite(weights).all()
