"""Dropout masks are a function of (seed, step, layer, rank), in training graphs only."""

from __future__ import annotations

import numpy as np
import pytest

from amp_xla.backend import keras, tf
from amp_xla.models import dropout
from amp_xla.models.options import EncoderOptions, LanguageModelOptions
from amp_xla.process.world import World


class Graph:
    """Two dropout layers over ones, the first one called twice."""

    def __init__(self, seed=1):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.step = dropout.install(seed)
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


def test_steps_layers_calls_seeds_and_ranks_differ(monkeypatch):
    graph = Graph()
    masks = [graph.run(tensor, 3) for tensor in graph.training]
    other = Graph(seed=2)
    masks += [graph.run(graph.training[0], 4), other.run(other.training[0], 3)]
    monkeypatch.setattr(dropout, "world", lambda: World(1, 2))
    rank = Graph()
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


def test_a_language_model_has_both_rates():
    options = LanguageModelOptions(dropout=0.1, attention_dropout=0.0)
    with tf.Graph().as_default():
        config = options.language_model(30, 12).config
    assert (config["hidden_dropout_prob"], config["attention_probs_dropout_prob"]) == (0.1, 0.0)
