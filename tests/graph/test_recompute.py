"""Layers computed again: the same training to the bit, less kept, and the same half precision."""

from __future__ import annotations

import json

import pytest

from tests.support.commands import Commands

pytestmark = pytest.mark.slow

SCRIPT = """
import json
import numpy as np
from amp_xla import setup
setup.configure(precision="fp32", infinity=1e4)
from amp_xla import backend
from amp_xla.backend import tf, K
from amp_xla.data.batches.buckets import PackedBatches
from amp_xla.data.batches.rank_shard import RankShard, micro_batches
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.graph import shapes, training_graph, virtual_gpu
from amp_xla.graph.nodes import SHAPES, by_name, closure, consumers, half_nodes, parse_input
from amp_xla.models import dropout, losses
from amp_xla.models.options import EncoderOptions
from amp_xla.training.optimizers.adamw import AdamW
from amp_xla.precision.optimizer import LossScaleOptimizer
from amp_xla.training.step import TrainStep, initialize_variables

def kept_bytes(nodes, sizes):
    # What the forward pass computes from the batch and the backward pass reads.
    readers = consumers(nodes)
    backward = closure([training_graph.GRADIENT_SEED], readers.__getitem__)
    fed = [name for name, node in nodes.items() if node.op.startswith("Placeholder")]
    forward = closure(fed, readers.__getitem__) - backward
    readers_of = [nodes[name] for name in backward if nodes[name].op not in SHAPES]
    read = {parse_input(text) for node in readers_of for text in node.input}
    return sum(shapes.float32_bytes(sizes.get(name, [])[index:index + 1])
               for name, index in read if index >= 0 and name in forward)

random = np.random.RandomState(0)
texts = [" ".join(random.choice(list("abcdefgh"), random.randint(1, 30))) for _ in range(60)]
tokenizer = Tokenizer.train(texts, 60)
encoded = tokenizer.encode(texts, None, max_length=32)
options = EncoderOptions(layers=3, hidden=128)
tf.set_random_seed(1)
number = dropout.install(1)
batches = PackedBatches(encoded, random.randint(0, 3, len(texts)), 64, 16, seed=1)
net = options.classifier(tokenizer.vocab_size, 3, 64, batches.slots)
inputs = dict(zip(("token_ids", "segment_ids", "position_ids", "slots"), net.inputs),
              labels=tf.placeholder(tf.int32, [None, None]),
              weights=tf.placeholder(tf.float32, [None, None]))
loss, _ = losses.classification(inputs["labels"], net.output, inputs["weights"])
steps = []
for again in (False, True):
    optimizer = LossScaleOptimizer(AdamW(tf.constant(1e-3)), "dynamic", global_clipnorm=1.0,
                                   accumulate=2, recompute=again)
    steps.append(TrainStep(inputs, number, loss, optimizer, net.trainable_weights, 1e-3))
initialize_variables()

feeds = [steps[0].feed(micro) for epoch in range(9)
         for batch in RankShard(batches, 0, 1, 2).epoch(epoch) for micro in micro_batches(batch)]
weights, runs, kept = K.batch_get_value(net.weights), [], []
for step in steps:
    K.batch_set_value(list(zip(net.weights, weights)))
    results = [step(feed, i) for i, feed in enumerate(feeds[:10])]
    runs.append([[float(r.loss), float(r.gradient_norm), r.applied] for r in results])
    training = training_graph.from_step(step, net)
    fed = {n: np.shape(a) for n, a in zip(training.feeds, step.arrays(feeds[0], 0))}
    graph = training.export(training.fetches)
    kept.append(kept_bytes(by_name(graph), shapes.static_shapes(graph, training.fetches, fed)))
graph = virtual_gpu.rewrite(training, training.fetches).graph_def
nodes, half = by_name(graph), half_nodes(graph)
pairs = [(n, n[len("recompute/"):]) for n in nodes if n.startswith("recompute/")]
pairs = [(copy, own) for copy, own in pairs if own in nodes]
differ = [copy for copy, own in pairs if (copy in half) != (own in half)]
halves = sum(copy in half for copy, _ in pairs)
print(json.dumps(dict(runs=runs, kept=kept, differ=differ, halves=halves)))
"""


def test_recomputed_layers_train_the_same_and_take_less_memory(server, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = Commands(server, tmp_path).job({"script": str(tmp_path / "script.py")})
    assert done.code == 0, done.err
    results = json.loads(done.out)
    plain, recomputed = results["runs"]
    assert len({loss for loss, _, _ in plain}) == 10  # dropout
    assert plain[-1][2] == 5  # an update takes two batches
    for before, after in zip(plain, recomputed):
        assert after == pytest.approx(before, rel=1e-6)
    plain_bytes, bytes_in_memory = results["kept"]
    # The last of three layers, and little of the others.
    assert plain_bytes / 3 < bytes_in_memory < 0.6 * plain_bytes
    # Copies are half precision exactly where their originals are.
    assert results["differ"] == [] and results["halves"] > 40
