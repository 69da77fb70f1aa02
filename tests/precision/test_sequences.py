"""Random sequences of update kinds in a v1 graph, compared with NumPy after each micro-batch."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given

from amp_xla.backend import keras, tf
from amp_xla.precision.optimizer import LossScaleOptimizer
from tests.support.update_sequences import (
    CLIP,
    HEADS,
    MOMENTUM,
    RATE,
    SLOPES,
    Reference,
    many,
    scale,
    sequences,
)

KINDS = ("by hand", "whole", "head", "clipped")


@functools.lru_cache(maxsize=None)
def training(window):
    """Build a graph with a train operation per kind; return a session and what it runs."""
    with tf.Graph().as_default() as graph:
        named = {n: tf.Variable(tf.ones(2), use_resource=True, name=n) for n in "eab"}
        average = tf.Variable(0.0, use_resource=True, trainable=False, name="average")
        fed = {n: tf.placeholder(tf.float32, [], n) for n in ("factor", "shift", "after")}
        inner = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
        optimizer = LossScaleOptimizer(inner, scale(), accumulate=window)

        def loss_of(variables):
            return tf.add_n([tf.reduce_sum(v * SLOPES) for v in variables]) * fed["factor"]

        def operation(kind):
            variables = [named[name] for name in HEADS[kind]]
            loss = loss_of(variables) + fed["shift"]
            if kind == "whole":  # as Keras' fit
                moved = average.assign(0.5 * average + 0.5 * fed["factor"])
                return [*(optimizer.get_updates(loss, variables) + [moved.op])]
            if kind == "by hand":
                scaled = tf.gradients(loss * optimizer.loss_scale, variables)
                grads = optimizer.get_unscaled_gradients(scaled)
            else:
                grads = [g for g, _ in optimizer.compute_gradients(loss, variables)]
            if kind == "clipped":
                grads, _ = tf.clip_by_global_norm(grads, CLIP)
            if kind != "by hand":
                grads = [g + fed["after"] for g in grads]
            return optimizer.apply_gradients(zip(grads, variables))

        operations = {}
        for kind in KINDS:
            operations[kind] = operation(kind), optimizer.gradients_finite
        reset = tf.global_variables_initializer()
        session = tf.Session(graph=graph)
        return session, reset, operations, fed, named, average, optimizer


def check(case):
    batches, window = case
    session, reset, operations, fed, named, average, optimizer = training(window)
    reference = Reference(window)
    session.run(reset)
    for micro in batches:
        values = [micro.factor, micro.shift, micro.after]
        feed = dict(zip((fed["factor"], fed["shift"], fed["after"]), values))
        _, finite = session.run(operations[micro.kind], feed)
        assert finite == reference.step(micro)
        reference.check(*session.run([named, optimizer.state_variables]))
        assert session.run(average) == reference.average
    if window > 1 and len(batches) % window == 0:
        assert not any(np.any(v) for v in session.run(optimizer.window.state_variables))


SEQUENCES = sequences(KINDS, abandon=False)


@many(25)
@given(case=SEQUENCES)
def test_random_sequences(case):
    check(case)


@pytest.mark.long
@many(1000)
@given(case=SEQUENCES)
def test_a_thousand_random_sequences(case):
    check(case)
