"""Random sequences of update kinds in a v1 graph, compared with NumPy after each micro-batch."""

import functools

import numpy as np

from amp_xla.backend import keras, tf
from amp_xla.precision.optimizer import LossScaleOptimizer
from tests.support import update_sequences as updates

KINDS = ("by hand", "whole", "head", "clipped", "one")
REFS = ("head", "clipped")  # their averages are no resources


@functools.lru_cache(maxsize=None)
def training(window):
    """Build a graph with a train operation per kind; return a session and what it runs."""
    with tf.Graph().as_default() as graph:
        named = {n: tf.Variable(tf.ones(2), use_resource=True, name=n) for n in "eab"}
        averages = {
            kind: tf.Variable(0.0, use_resource=kind not in REFS, trainable=False, name="average")
            for kind in KINDS
        }
        fed = {n: tf.placeholder(tf.float32, [], n) for n in ("factor", "shift", "after")}
        inner = keras.optimizers.SGD(updates.RATE, momentum=updates.MOMENTUM)
        optimizer = LossScaleOptimizer(inner, updates.scale(), accumulate=window)

        def loss_of(variables):
            return tf.add_n([tf.reduce_sum(v * updates.SLOPES) for v in variables]) * fed["factor"]

        def operation(kind):
            variables = [named[name] for name in updates.HEADS[kind]]
            loss = loss_of(variables) + fed["shift"]

            def move():
                value = 0.5 * averages[kind] + 0.5 * fed["factor"]
                return tf.identity(averages[kind].assign(value))

            in_branch = kind == "clipped"  # as in layers whose ``training`` is a tensor
            moved = tf.cond(fed["shift"] > -1.0, move, lambda: 0.0).op if in_branch else move().op
            if kind == "whole":  # as Keras' fit
                return [*(optimizer.get_updates(loss, variables) + [moved])]
            if kind == "one":
                with tf.control_dependencies([moved]):
                    return optimizer.minimize(loss, variables)
            if kind == "by hand":
                scaled = tf.gradients(loss * optimizer.loss_scale, variables)
                grads = optimizer.get_unscaled_gradients(scaled)
            else:
                with tf.control_dependencies([moved]):
                    grads = [g for g, _ in optimizer.compute_gradients(loss, variables)]
            if kind == "clipped":
                grads, _ = tf.clip_by_global_norm(grads, updates.CLIP)
            if kind != "by hand":
                grads = [g + fed["after"] for g in grads]
            with tf.control_dependencies([moved]):
                return optimizer.apply_gradients(zip(grads, variables))

        operations = {}
        for kind in KINDS:
            operations[kind] = operation(kind), optimizer.gradients_finite
        reset = tf.global_variables_initializer()
        session = tf.Session(graph=graph)
        return session, reset, operations, fed, named, averages, optimizer


def check(case):
    session, reset, operations, fed, named, averages, optimizer = training(case[1])
    session.run(reset)

    def train(micro):
        feed = {placeholder: getattr(micro, name) for name, placeholder in fed.items()}
        _, finite = session.run(operations[micro.kind], feed)
        return (finite, *session.run([named, optimizer.state_variables, averages]))

    if updates.follow(case, train):
        assert not any(np.any(v) for v in session.run(optimizer.window.state_variables))


SEQUENCES = updates.sequences(KINDS, abandon=False)
test_random_sequences, test_a_thousand = updates.checked(SEQUENCES, check)
