"""Initial weights of a language model, and the loss of the mean vector, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import K, tf
from amp_xla.data.pretraining import cooccurrence
from amp_xla.models.language_model import LanguageModel
from amp_xla.models.options import bert_config
from amp_xla.models.weights import google
from amp_xla.training.step import initialize_variables
from tests.models import google_folder

CONFIG = bert_config(100, 1, 64, 1, 16, 0.0)


@pytest.fixture(autouse=True)
def session():
    K.clear_session()
    yield backend.session()
    K.clear_session()


def test_the_topic_loss_is_that_of_the_mean_vector(session):
    lm = LanguageModel(CONFIG, 16)
    rng = np.random.RandomState(0)
    ids = rng.randint(1, 100, (3, 16))
    ids[1, 9:] = 0  # padding, which is not in the mean
    labels, weights = rng.randint(5, 100, (3, 4)), np.ones((3, 4), np.float32)
    labels[0, :2] = 7  # the same word twice
    weights[0, 3] = weights[2] = 0.0  # no room used; a row that does not count at all
    kinds = {"token_ids": tf.int32, "labels": tf.int32, "weights": tf.float32}
    feed = {name: tf.placeholder(kind, [None, None]) for name, kind in kinds.items()}
    vectors = tf.placeholder(tf.float32, [None, 16, 64])
    loss = lm.topic_loss(feed, vectors)
    means = tf.placeholder(tf.float32, [None, 1, 64])
    # The head as it is used for masked positions, on the mean in place of a position.
    logits = lm.logits(tf.tile(means, [1, 16, 1]), tf.zeros([3, 1], tf.int32))
    gradients = tf.gradients(loss, lm.weights)
    initialize_variables()
    shown = rng.randn(3, 16, 64).astype(np.float32)
    values = dict(zip(feed.values(), (ids, labels, weights)))
    found = session.run(loss, {vectors: shown, **values})
    real = (ids != 0)[:, :, None]
    mean = (shown * real).sum(1, keepdims=True) / real.sum(1, keepdims=True)
    scores = session.run(logits, {means: mean}).astype(np.float64)
    scores -= np.log(np.exp(scores).sum(1, keepdims=True))
    each = -np.take_along_axis(scores, labels, 1) * weights
    np.testing.assert_allclose(found, each.sum() / weights.sum(), rtol=1e-4)
    names = [v.name for v, g in zip(lm.weights, gradients) if g is not None]
    assert any("MLM-Dense" in name for name in names)
    assert any("Embedding-Token" in name for name in names)


@pytest.mark.parametrize(
    "objective, expected", [("mlm", [-1, 1, -2, 2, -3, 3]), ("lm", [-1, -2, -3, -4, -5, -6])]
)
def test_heads_of_a_new_model_attend_to_neighbours(session, objective, expected):
    lm = LanguageModel(bert_config(300, 2, 192, 3, 32, 0.0), 32, objective, informed=True)
    initialize_variables()
    layers = lm.transformer.layers
    place = session.run(layers["Embedding-Position"].embeddings)[:32].astype(np.float64)
    place /= np.sqrt((place**2).mean())
    found = []
    for number in range(2):
        attention = layers[f"Transformer-{number}-MultiHeadSelfAttention"]
        query, key = session.run([attention.q_dense.kernel, attention.k_dense.kernel])
        for head in range(3):
            part = slice(64 * head, 64 * head + 64)
            scores = (place @ query[:, part]) @ (place @ key[:, part]).T / 8
            middle = np.arange(8, 24)
            offsets = scores[middle].argmax(1) - middle
            assert (offsets == offsets[0]).all()
            found.append(int(offsets[0]))
            peak = scores[middle, middle + offsets[0]]
            assert np.allclose(peak, peak[0], rtol=1e-4) and peak[0] > 4
    assert found == expected


def test_an_encoder_gets_a_new_head(session, tmp_path, capfd):
    shapes = google_folder.tensors(google_folder.CONFIG, language_model=True)
    head = {name: None for name in shapes if name.startswith("cls/")}
    folder = google_folder.write(tmp_path / "encoder", head)
    lm = LanguageModel(google_folder.CONFIG, 16, "unilm", str(folder))
    assert "has no head that predicts tokens: a new one is trained" in capfd.readouterr().err
    initialize_variables()
    name = "bert/embeddings/word_embeddings"
    stored = google.pretrained(str(folder)).take({name: shapes[name]})[name]
    table = session.run(lm.transformer.layers["Embedding-Token"].embeddings)
    np.testing.assert_array_equal(table[:20], stored)


def test_weights_may_have_more_rows_than_the_vocabulary_has_tokens(session, tmp_path):
    """As ERNIE 3.0: 40,000 rows, 39,979 tokens."""
    folder = google_folder.write(tmp_path / "ernie")
    lm = LanguageModel({**google_folder.CONFIG, "vocab_size": 18}, 16, "unilm", str(folder))
    initialize_variables()
    name = "bert/embeddings/word_embeddings"
    stored = google.pretrained(str(folder)).take({name: (20, 16)})[name]
    table = session.run(lm.transformer.layers["Embedding-Token"].embeddings)
    np.testing.assert_array_equal(table[:18], stored[:18])
    assert not table[18:].any() and lm.config["vocab_size"] == 18


def test_known_tokens_start_from_their_vectors(session, monkeypatch):
    lm = LanguageModel(CONFIG, 16)  # 128 rows
    table = lm.transformer.layers["Embedding-Token"].embeddings
    initialize_variables()
    before = session.run(table)
    vectors = np.random.RandomState(0).choice([-1.0, 1.0], (100, 64)).astype(np.float32)
    known = np.arange(100) >= 5
    monkeypatch.setattr(cooccurrence, "sample", id)
    monkeypatch.setattr(cooccurrence, "word_vectors", lambda *_: (vectors, known))
    lm.start_from_counts(None, (), 0)
    initialize_variables()  # what training does next, and what must not draw them again
    after = session.run(table)
    spread = lm.config["initializer_range"]
    np.testing.assert_allclose(after[5:100], vectors[5:] * spread, rtol=1e-6)
    assert (after[:5] == before[:5]).all() and (after[100:] == before[100:]).all()
    assert 0.5 < before.std() / spread < 1.1
