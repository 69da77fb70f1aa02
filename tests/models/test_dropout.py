"""Dropout masks are a function of (seed, step, layer, rank), in training graphs only."""

import hashlib

import numpy as np
import pytest

from amp_xla.backend import keras, tf
from amp_xla.models import dropout
from amp_xla.models.options import EncoderOptions, LanguageModelOptions
from amp_xla.process.world import World


class Graph:
    """Two dropout layers over ones, the first one called twice."""

    def __init__(self, seed=1, hashed=False):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.step = dropout.install(seed, hashed)
            first = keras.layers.Dropout(0.25, name="first")
            second = keras.layers.Dropout(0.25, name="second")
            ones = tf.ones([200, 50])
            self.training = [first(ones), first(ones), second(ones)]
            with dropout.inference():
                self.inference = first(ones)
            self.again = second(ones)  # training mode is back after the block
            self.session = tf.Session(graph=self.graph)

    def run(self, tensor, step=0):
        return self.session.run(tensor, {self.step: step})


@pytest.mark.parametrize("hashed", [False, True])
def test_steps_layers_calls_seeds_and_ranks_differ(monkeypatch, hashed):
    graph = Graph(1, hashed)
    masks = [graph.run(tensor, 3) for tensor in graph.training]
    other = Graph(2, hashed)
    masks += [graph.run(graph.training[0], 4), other.run(other.training[0], 3)]
    monkeypatch.setattr(dropout, "world", lambda: World(1, 2))
    rank = Graph(1, hashed)
    masks.append(rank.run(rank.training[0], 3))
    for i, a in enumerate(masks):
        for b in masks[:i]:
            share = np.mean((a > 0) == (b > 0))
            assert abs(share - (0.25**2 + 0.75**2)) < 0.03, "independent, not merely different"


def test_inference_is_the_identity_and_training_comes_back():
    graph = Graph()
    assert (graph.run(graph.inference) == 1.0).all()
    assert (graph.run(graph.again) == 0.0).any()
    kinds = {operation.type for operation in graph.graph.get_operations()}
    assert not kinds & {"Switch", "Merge", "If", "StatelessIf", "RandomUniform"}


@pytest.mark.parametrize("rates, masks", [
    ({}, 8),  # of embeddings, of attention and two outputs in 2 layers, of the pooled vector
    ({"dropout": 0.0, "attention_dropout": 0.1}, 2), ({"dropout": 0.0}, 0),
])  # fmt: skip
def test_attention_weights_have_their_own_rate(rates, masks):
    with tf.Graph().as_default() as graph:
        dropout.install(1)
        options = EncoderOptions(layers=2, hidden=16, **rates)
        options.classifier(30, 2, 12)
        kinds = [op.type for op in graph.get_operations()]
    assert sum(kind.startswith("StatelessRandomUniform") for kind in kinds) == masks
    config = options.config(30, 12)
    assert config["hidden_dropout_prob"] == options.dropout
    assert config["attention_probs_dropout_prob"] == options.rates[1]
    options = LanguageModelOptions(dropout=0.1, attention_dropout=0.0)
    with tf.Graph().as_default():
        config = options.language_model(30, 12).config
    assert (config["hidden_dropout_prob"], config["attention_probs_dropout_prob"]) == (0.1, 0.0)


RATE, LAYER = 0.1, "Transformer-0-MultiHeadSelfAttention"


def hash_keys(step, text=f"1/{LAYER}/0"):
    """The two keys of a layer's mask in a step."""
    own = np.frombuffer(hashlib.sha256(text.encode()).digest()[:8], "<u4")
    return np.uint32(step) * np.array([0x9E3779B9, 0xC2B2AE35], np.uint32) + own


def hash_mask(keys, elements, rate=RATE):
    """The mask of ``dropout`` in NumPy, for elements with these numbers, uint32."""
    x = elements ^ keys[0]
    for shift, factor, key in ((17, 0xED5AD4BB, keys[1]), (11, 0xAC4C1B51, 0), (15, 0x31848BAB, 0)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor) + np.uint32(key)
    return x.view(np.int32) >= round(rate * 2**32) - 2**31


@pytest.mark.parametrize("step, rate", [(0, 0.1), (7, 0.5), (10**6, 0.9), (2**31 + 5, 0.02)])
def test_hashed_masks_are_the_same_bits_everywhere_and_in_the_backward_pass(step, rate):
    with tf.Graph().as_default(), tf.Session() as session:
        number = dropout.install(1, hashed=True)
        x = tf.placeholder(tf.float32, [None, None, 7])
        kept = dropout.keep_mask(LAYER, tf.shape(x), rate)
        y = keras.layers.Dropout(rate, name="drop")(x)
        feed = {number: step, x: np.ones([20, 30, 7])}
        found, value, slope = session.run([kept, y, tf.gradients(y, x)[0]], feed)
    expected = hash_mask(hash_keys(step), np.arange(20 * 30 * 7, dtype=np.uint32), rate)
    np.testing.assert_array_equal(found.ravel(), expected)
    np.testing.assert_array_equal(slope, value)
    assert abs(value.mean() - 1) < 5 * (rate / (1 - rate) / value.size) ** 0.5


@pytest.mark.parametrize("prepare", [lambda: dropout.install(1), dropout.step_input])
def test_masks_are_hashed_if_xla_is_on(prepare, monkeypatch):
    with tf.Graph().as_default():
        prepare()
        assert dropout.kind() == "random"
        monkeypatch.setattr(dropout.configuring, "compiles", lambda: True)
        assert dropout.kind() == "hash"
        dropout.keep_mask("a", [2], 0.5)
        monkeypatch.setattr(dropout.configuring, "compiles", lambda: False)
        assert dropout.kind() == "hash"  # checkpoints name the kind of the masks in the graph


def test_with_xla_a_script_has_the_same_dropout_without_a_conditional(monkeypatch):
    def outputs(compiles):
        monkeypatch.setattr(dropout.configuring, "compiles", lambda: compiles)
        monkeypatch.setattr(dropout, "kind", lambda: "random")
        with tf.Graph().as_default() as graph, tf.Session() as session:
            phase = tf.placeholder(tf.bool, [])
            x = tf.placeholder(tf.float32, [None, 7])
            dropout.make_repeatable()
            y = keras.layers.Dropout(0.3, name="drop")(x, training=phase)
            slope = tf.gradients(y, x)[0]
            feed = {x: np.random.RandomState(0).randn(20, 7), dropout.step_input(): 5}
            values = [session.run([y, slope], {**feed, phase: on}) for on in (True, False)]
            return np.array(values), "Switch" in {op.type for op in graph.get_operations()}

    (compiled, one), (usual, other) = outputs(True), outputs(False)
    np.testing.assert_array_equal(compiled, usual)
    assert (one, other) == (False, True)


@pytest.mark.parametrize("draws", [2**21, pytest.param(10**8, marks=pytest.mark.long)])
def test_hashed_masks_are_independent(draws):
    """Share kept, and pairs of masks: each statistic has chi-square's distribution."""
    elements, step = np.arange(draws, dtype=np.uint32), 12345
    keys = hash_keys(step)
    mask = hash_mask(keys, elements)
    scores = [(mask.mean() - (1 - RATE)) / (RATE * (1 - RATE) / draws) ** 0.5]

    def compare(one, other):
        kept, both = 1 - RATE, np.count_nonzero(one & other) / one.size
        covariance = both - kept * (np.count_nonzero(one) + np.count_nonzero(other)) / one.size
        scores.append((covariance + kept**2) / (kept * RATE) * one.size**0.5)

    for distance in (1, 2, 3, 4, 8, 64, 384, 768, 2**16, 384 * 384, 2**20):
        compare(mask[:-distance], mask[distance:])
    others = [hash_keys(step + k) for k in (1, 2, 3, 8, 1000)]
    names = (f"2/{LAYER}/0", f"1/{LAYER}/1", f"1/{LAYER}/0/rank 1", "1/Transformer-1-FeedForward/0")
    for other in others + [hash_keys(step, name) for name in names]:
        compare(mask, hash_mask(other, elements))
        # If masks were translations of one another, one of these would be the same mask.
        for translation in (keys[0] ^ other[0], keys[0] ^ other[0] ^ keys[1] ^ other[1]):
            compare(mask, hash_mask(other, elements ^ translation))
    squares = np.square(scores)
    assert squares.max() < 16 and squares.sum() < len(scores) + 4 * (2 * len(scores)) ** 0.5
