"""Word vectors from counts."""

from __future__ import annotations

import numpy as np
import pytest

from amp_xla.data.pretraining import cooccurrence

pytestmark = pytest.mark.once

SPECIAL = (0, 1, 2)


def test_words_used_alike_are_near_each_other():
    rng = np.random.RandomState(0)
    # A word of kind k stands between those of kinds k - 1 and k + 1, of 5 in a circle.
    kinds = (rng.randint(0, 5, (2000, 1)) + np.arange(30)) % 5
    ids = 3 + kinds * 8 + rng.randint(0, 8, (2000, 30))
    vectors, known = cooccurrence.word_vectors(ids, 50, 5, SPECIAL)
    assert known[3:43].all() and not known[:3].any() and not known[43:].any()
    assert (vectors[~known] == 0).all()
    np.testing.assert_allclose((vectors[known] ** 2).mean(1), 1, rtol=1e-4)
    alike = vectors[3:43] @ vectors[3:43].T / 5
    same = np.arange(40)[:, None] // 8 == np.arange(40)[None, :] // 8
    assert alike[same].min() > 0.8 and alike[~same].max() < 0.6  # they share one neighbour of two
