"""Several texts in a row give each text the answer, and the weights the gradient, it has alone."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.running import run_python

SCRIPT = """
import json
import numpy as np
from amp_xla import setup
setup.configure(precision="fp32", infinity=1e4)
from amp_xla import backend
from amp_xla.backend import tf, K
from amp_xla.data.batches.buckets import Batches
from amp_xla.data.batches.packed import PackedBatches
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.models import losses
from amp_xla.models import encoders as model
from amp_xla.models import packed
from amp_xla.training.step import initialize_variables

rng = np.random.RandomState(0)
texts = [" ".join(rng.choice(list("abcdefgh"), rng.randint(1, 30))) for _ in range(40)]
pairs = [" ".join(rng.choice(list("abcdefgh"), rng.randint(1, 9))) for _ in texts]
tokenizer = Tokenizer.train(texts, 60)
encoded = tokenizer.encode(texts, pairs, max_length=48)
labels = rng.randint(0, 3, len(texts))
shape = dict(vocab_size=tokenizer.vocab_size, hidden_size=32, num_hidden_layers=2,
             num_attention_heads=2, intermediate_size=64, max_position=64,
             dropout_rate=0.0, attention_dropout_rate=0.0)

def made(kind):
    if kind == "alone":
        batches = Batches(encoded, labels, [48], len(texts), shuffle=False)
        net = model.classifier(model.encoder(None, **shape), 3, 0.0)
        names = ["token_ids", "segment_ids"]
    else:
        batches = PackedBatches(encoded, labels, 64, len(texts) - 3, shuffle=False)
        assert batches.rows > 3 and batches.slots > 2, batches.describe()
        net = packed.classifier(packed.encoder(None, **shape), 3, 0.0, batches.slots)
        names = ["token_ids", "segment_ids", "position_ids", "slots"]
    each = [None] * (net.output.shape.ndims - 1)
    y, w = tf.placeholder(tf.int32, each), tf.placeholder(tf.float32, each)
    loss = tf.reduce_sum(losses.cross_entropy(y, net.output) * w)
    return batches, net, names, y, w, loss

both = [made("alone"), made("packed")]
initialize_variables()
alone, rows = both[0][1], both[1][1]
session = backend.session()
# Larger than at the start, or attention is too even for a leak to show.
values = [v * 8 + rng.normal(0, 0.1, v.shape) for v in alone.get_weights()]
alone.set_weights(values)
rows.set_weights(values)
out = dict(shapes=[[list(w.shape.as_list())
                   for w in net.weights] for net in (alone, rows)], answers=[], gradients=[],
           batches=[])
for batches, net, names, y, w, loss in both:
    gradients = [tf.convert_to_tensor(g) for g in tf.gradients(loss, net.trainable_weights)]
    answers, total = {}, None
    for batch in batches.epoch(0):
        feed = dict(zip(net.inputs, [batch[n] for n in names]))
        feed.update({y: batch["labels"], w: batch["weights"]})
        logits, found = session.run([net.output, gradients], feed)
        assert np.isfinite(logits).all()
        for i, row in zip(batch["sample_ids"].ravel(), logits.reshape(-1, 3)):
            if i >= 0:
                answers[int(i)] = row.tolist()
        total = found if total is None else [a + b for a, b in zip(total, found)]
    out["answers"].append([answers[i] for i in range(len(texts))])
    out["gradients"].append([g.tolist() for g in total])
    out["batches"].append(batches.describe())
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def results():
    done = run_python("-c", SCRIPT)
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_every_text_gets_the_answer_it_has_alone(results):
    alone, rows = results["answers"]
    assert np.ptp(alone, axis=0).min() > 0.1  # the texts do have different answers
    np.testing.assert_allclose(rows, alone, rtol=1e-3, atol=1e-4)
    assert "packed" in results["batches"][1]


def test_the_sum_of_the_gradients_is_the_same(results):
    # That of a key's bias is zero on paper and rounding in practice: measured against the largest.
    largest = max(float(np.abs(g).max()) for g in results["gradients"][0])
    for one, other in zip(*results["gradients"]):
        scale = max(largest / 100, float(np.abs(one).max()))
        np.testing.assert_allclose(np.array(other) / scale, np.array(one) / scale, atol=2e-4)


def test_weights_are_those_of_the_model_over_one_text_a_row(results):
    assert results["shapes"][0] == results["shapes"][1]
