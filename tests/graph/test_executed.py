"""The executed graph is counted and compared with the settings; layers are computed again."""

import dataclasses
import json

import numpy as np
import pytest

from amp_xla.backend import tf
from amp_xla.errors import NothingConvertedError, UnsupportedError
from amp_xla.graph import executed, shapes, training_graph, virtual_gpu
from amp_xla.graph.nodes import SHAPES, by_name, closure, consumers, half_nodes, parse_input
from amp_xla.models import dropout, losses
from amp_xla.models.options import EncoderOptions
from amp_xla.precision.optimizer import LossScaleOptimizer
from amp_xla.training.optimizers.adamw import AdamW
from amp_xla.training.step import TrainStep, initialize_variables
from tests.support.running import run_python


def run(dtype):
    """Count an executed graph that multiplies matrices in ``dtype``."""
    with tf.Graph().as_default(), tf.Session() as session:
        a = tf.placeholder(tf.float32, [4, 4])
        product = tf.cast(tf.matmul(tf.cast(a, dtype), tf.cast(a, dtype)), tf.float32)
        metadata = tf.RunMetadata()
        options = tf.RunOptions(output_partition_graphs=True)
        session.run(product, {a: [[1.0] * 4] * 4}, options, metadata)
    return executed.count(metadata.partition_graphs)


FULL, HALF = run(tf.float32), run(tf.float16)


def test_half_nodes_and_casts_are_counted():
    assert (FULL.half_nodes, FULL.half_dtype, FULL.clusters) == (0, "", 0)
    # oneDNN uses its own `_MklMatMul` if the processor has float16 (AVX-512 FP16).
    products = {op: n for op, n in HALF.half_ops.items() if "MatMul" in op}
    assert HALF.half_dtype == "float16" and sum(products.values()) == 1
    assert HALF.casts == 2  # one to half, one back; grappler merges the two of the same input
    assert "float16 (1 matrix products, 2 casts)" in HALF.describe()


@pytest.mark.parametrize(
    "counts, precision, xla, error, text",
    [
        (FULL, "amp", "off", NothingConvertedError, r"has float16 \(a GPU\).*did not run"),
        (HALF, "tf32", "off", UnsupportedError, "precision=tf32 is set, but .* float16"),
        (FULL, "fp32", "on", UnsupportedError, "xla=on is set, but .* no XLA clusters"),
        (dataclasses.replace(FULL, clusters=2), "fp32", "off", UnsupportedError, "xla=off is set"),
    ],
)
def test_a_contradiction_is_an_error(counts, precision, xla, error, text):
    with pytest.raises(error, match=text):
        executed.verify(counts, precision, "float16", "a GPU", xla)


# XLA writes one module per compilation. The batches have 1, 5, 20 and 32 different tokens.
SCRIPT = """
import json, os, re, sys
import numpy as np
from amp_xla import setup
setup.configure(precision="fp32", xla="no_lazy")
from amp_xla.backend import keras, tf
from amp_xla.training.optimizers.adamw import AdamW
from amp_xla.precision.optimizer import LossScaleOptimizer
from amp_xla.training.step import TrainStep, initialize_variables

ids = tf.placeholder(tf.int32, [None, None])
vectors = keras.layers.Embedding(40, 16)
loss = tf.reduce_mean(tf.square(tf.tanh(vectors(ids)) - 1.0))
optimizer = LossScaleOptimizer(AdamW(tf.constant(1e-3)), "dynamic", global_clipnorm=1.0)
step = TrainStep({"ids": ids}, loss, optimizer, vectors.trainable_weights, {})
initialize_variables()
compiled = []
for number, (rows, tokens) in enumerate([(4, 1), (4, 5), (4, 20), (4, 32), (6, 32)]):
    batch = (np.arange(rows * 8) % tokens).reshape(rows, 8)
    step({"ids": batch}, number)
    compiled.append(len({re.match("module_[0-9]+", name).group() for name in os.listdir(sys.argv[1])
                         if name.startswith("module_")}))
print(json.dumps(compiled))
"""


@pytest.mark.once
def test_xla_compiles_once_per_shape(tmp_path):
    env = {"XLA_FLAGS": f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"}
    done = run_python("-c", SCRIPT, str(tmp_path), env=env)
    *one_shape, other_shape = json.loads(done.out.splitlines()[-1])
    assert one_shape[0] > 0 and len(set(one_shape)) == 1, one_shape
    assert other_shape > one_shape[0]


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


@pytest.mark.slow
@pytest.mark.usefixtures("cleared")
def test_recomputed_layers_train_the_same_and_take_less_memory():
    tf.set_random_seed(1)
    dropout.install(1)
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
        steps.append(TrainStep(inputs, loss, optimizer, net.trainable_weights, {}))
    initialize_variables()
    tokens = random.randint(1, 40, [MICRO_BATCHES, ROWS, LENGTH])
    batches = [
        {"token_ids": ids, "segment_ids": ids * 0, "labels": ids[:, 0] % 3, "share": 0.5}
        for ids in tokens
    ]
    weights, runs, kept = net.get_weights(), [], []
    for step in steps:
        net.set_weights(weights)
        results = [step(batch, i) for i, batch in enumerate(batches)]
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
