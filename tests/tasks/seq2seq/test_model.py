"""Initial weights of a UniLM."""

from __future__ import annotations

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import K
from amp_xla.models.options import EncoderOptions
from amp_xla.tasks.seq2seq import model
from amp_xla.training.step import initialize_variables


@pytest.fixture(autouse=True)
def session():
    K.clear_session()
    yield backend.session()
    K.clear_session()


def test_heads_of_a_new_model_attend_to_neighbours(session):
    lm = model.language_model(EncoderOptions(), 300, 32, True)
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
    assert found == [-1, 1, -2, 2, -3, 3]
