"""Layers computed again: the same training to the bit, less kept, and the same half precision."""

import numpy as np
import pytest

from amp_xla.backend import tf
from amp_xla.graph import shapes, training_graph, virtual_gpu
from amp_xla.graph.nodes import SHAPES, by_name, closure, consumers, half_nodes, parse_input
from amp_xla.models import dropout, losses
from amp_xla.models.options import EncoderOptions
from amp_xla.precision.optimizer import LossScaleOptimizer
from amp_xla.training.optimizers.adamw import AdamW
from amp_xla.training.step import TrainStep, initialize_variables

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cleared")]

ROWS, LENGTH, MICRO_BATCHES = 8, 32, 6


def kept_bytes(nodes, sizes):
    """Return the bytes that the forward pass computes from the batch and the backward reads."""
    readers = consumers(nodes)
    backward = closure([training_graph.GRADIENT_SEED], readers.__getitem__)
    fed = [name for name, node in nodes.items() if node.op.startswith("Placeholder")]
    forward = closure(fed, readers.__getitem__) - backward
    readers_of = [nodes[name] for name in backward if nodes[name].op not in SHAPES]
    read = {parse_input(text) for node in readers_of for text in node.input}
    return sum(
        shapes.float32_bytes(sizes.get(name, [])[index : index + 1])
        for name, index in read
        if index >= 0 and name in forward
    )


def test_recomputed_layers_train_the_same_and_take_less_memory():
    tf.set_random_seed(1)
    number = dropout.install(1)
    net = EncoderOptions(layers=2, hidden=128).classifier(40, 3, LENGTH)
    inputs = dict(
        zip(("token_ids", "segment_ids"), net.inputs), labels=tf.placeholder(tf.int32, [None])
    )
    loss, _ = losses.classification(inputs["labels"], net.output, tf.ones([ROWS]))
    random, steps = np.random.RandomState(0), []
    for again in (False, True):
        optimizer = LossScaleOptimizer(
            AdamW(tf.constant(1e-3)), "dynamic", global_clipnorm=1.0, accumulate=2, recompute=again
        )
        steps.append(TrainStep(inputs, number, loss, optimizer, net.trainable_weights, 1e-3))
    initialize_variables()
    tokens = random.randint(1, 40, [MICRO_BATCHES, ROWS, LENGTH])
    batches = [
        {"token_ids": ids, "segment_ids": ids * 0, "labels": ids[:, 0] % 3, "share": 0.5}
        for ids in tokens
    ]
    weights, runs, kept = net.get_weights(), [], []
    for step in steps:
        net.set_weights(weights)
        results = [step(step.feed(batch), i) for i, batch in enumerate(batches)]
        runs.append([(float(r.loss), float(r.gradient_norm), r.applied) for r in results])
        training = training_graph.from_step(step, net)
        fed = {n: np.shape(a) for n, a in zip(training.feeds, step.arrays(batches[0], 0))}
        graph = training.export(training.fetches)
        kept.append(kept_bytes(by_name(graph), shapes.static_shapes(graph, training.fetches, fed)))
    plain, recomputed = runs
    assert len({loss for loss, _, _ in plain}) == MICRO_BATCHES  # dropout
    assert plain[-1][2] == MICRO_BATCHES // 2  # an update takes two batches
    for before, after in zip(plain, recomputed):
        assert after == pytest.approx(before, rel=1e-6)
    # The last of two layers, and little of the other.
    assert kept[0] / 2 < kept[1] < 0.75 * kept[0]
    # Copies are half precision exactly where their originals are.
    graph = virtual_gpu.rewrite(training, training.fetches).graph_def
    nodes, half = by_name(graph), half_nodes(graph)
    pairs = [(name, name[len("recompute/") :]) for name in nodes if name.startswith("recompute/")]
    pairs = [(copy, own) for copy, own in pairs if own in nodes]
    assert [copy for copy, own in pairs if (copy in half) != (own in half)] == []
    assert sum(copy in half for copy, _ in pairs) > 30
