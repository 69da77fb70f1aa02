"""Gradient accumulation: a window is checked, applied and counted once."""

from __future__ import annotations

import numpy as np
import pytest

from amp_xla.backend import tf
from amp_xla.precision.optimizer import LossScaleOptimizer
from tests.support.precision_training import KINDS, minimized, problem, same

pytestmark = pytest.mark.usefixtures("graph")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_window_is_one_step_with_the_mean_gradient(kind):
    factors = [0.5, 1.5, 1.0, 3.0, 0.25, 0.75]

    def weights(window, fed):
        with tf.Graph().as_default(), tf.Session() as session:
            trainer = minimized(session, KINDS[kind](), accumulate=window)
            seen = [trainer.weights()]
            for factor in fed:
                trainer.step(factor)
                seen.append(trainer.weights())
            return seen, trainer.state()

    seen, state = weights(2, factors)
    # bert4keras' warm-up starts at a rate of 0.
    first = 2 if kind.startswith("bert4keras") else 0
    moved = [not same(a, b) for a, b in zip(seen[first:], seen[first + 1 :])]
    assert moved == [False, True] * (3 - first // 2)
    means = [np.mean(factors[i : i + 2]) for i in (0, 2, 4)]
    want = weights(1, means)[0][-1]
    for a, b in zip(seen[-1], want):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    # bert4keras' rate follows the applied steps; its own accumulation counts micro-batches.
    assert state == [3, 0]  # applied, skipped; no sums between updates


@pytest.mark.parametrize("factors", [[1.0], [1.0, 3.0]])
def test_clipping_is_of_the_window_mean(session, factors):
    """Its norm is that of dense gradients: a row of the table occurs twice in the batch."""
    inner = tf.train.GradientDescentOptimizer(1.0)
    trainer = minimized(session, inner, 1024.0, accumulate=len(factors), global_clipnorm=1e-3)
    task, before = trainer.task, trainer.weights()
    dense = [tf.convert_to_tensor(g) for g in tf.gradients(task.loss, task.variables)]
    expected = session.run(tf.global_norm(dense), {task.factor: np.mean(factors)})
    for factor in factors:
        norm = trainer.step(factor, trainer.optimizer.gradient_norm)
    assert norm == pytest.approx(expected, rel=1e-6) and norm > 1e-3
    moved = [a - b for a, b in zip(before, trainer.weights())]
    length = np.sqrt(sum(float((d**2).sum()) for d in moved))
    assert length == pytest.approx(1e-3, rel=1e-2)


def test_ranks_reduce_once_a_window(session):
    calls = tf.get_variable("calls", initializer=0, trainable=False)

    def reduce(gradient):
        with tf.control_dependencies([calls.assign_add(1)]):
            return tf.identity(gradient)

    trainer = minimized(session, KINDS["tf.train sgd"](), accumulate=3, reduce=reduce)
    for _ in range(6):
        trainer.step()
    assert session.run(calls) == 2 * len(trainer.task.variables)


def test_groups_applied_apart_are_refused():
    optimizer = LossScaleOptimizer(tf.train.AdamOptimizer(), accumulate=2)
    task = problem()
    grads = optimizer.get_unscaled_gradients(
        tf.gradients(optimizer.get_scaled_loss(task.loss), task.variables)
    )
    optimizer.apply_gradients([(grads[0], task.variables[0])])
    with pytest.raises(RuntimeError, match="all variable groups in one"):
        optimizer.apply_gradients([(grads[1], task.variables[1])])
