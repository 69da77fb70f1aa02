"""Word vectors from counts, against counting by hand and a full decomposition."""

from __future__ import annotations

import numpy as np

from amp_xla.data.pretraining import cooccurrence, prepare
from amp_xla.data.pretraining.prepared import Manifest, Sequences

PAD, CLS, SEP = range(3)
SPECIAL = (PAD, CLS, SEP)


def text(rows, vocab, length=24, seed=0):
    """Sequences of two documents each; the last one is padded."""
    ids = np.random.RandomState(seed).randint(3, vocab, (rows, length)).astype(np.int32)
    ids[:, 0], ids[:, 9], ids[:, -1] = CLS, SEP, SEP
    ids[-1, 15:] = PAD
    return ids


def special_of(vocab):
    return np.isin(np.arange(vocab), SPECIAL)


def counted_by_hand(ids, vocab):
    counts = np.zeros((vocab, vocab))
    for row in ids.tolist():
        for i, token in enumerate(row):
            for j in range(i + 1, min(i + cooccurrence.WINDOW, len(row) - 1) + 1):
                if not set(row[i : j + 1]) & set(SPECIAL):
                    counts[token, row[j]] += 1 / (j - i)
                    counts[row[j], token] += 1 / (j - i)
    return counts


def test_neighbours_count_by_nearness_and_within_their_document():
    ids = text(12, 40)
    ids[ids == 30] = 31  # a token of the vocabulary that does not occur
    found = cooccurrence._counts(ids, 40, special_of(40))
    often = np.bincount(ids.ravel(), minlength=40)
    often[list(SPECIAL)] = 0
    common = np.argsort(-often, kind="stable")[: np.count_nonzero(often)]
    assert found.shape == (40, 36)
    np.testing.assert_allclose(found, counted_by_hand(ids, 40)[:, common], rtol=1e-5)


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


def test_the_seed_turns_the_vectors_and_nothing_else():
    ids = text(60, 40)
    first, again, other = (cooccurrence.word_vectors(ids, 40, 16, SPECIAL, s)[0] for s in (1, 1, 2))
    assert (first == again).all() and not np.allclose(first, other, atol=0.1)
    np.testing.assert_allclose(first @ first.T, other @ other.T, atol=1e-3)


def test_little_text_fills_as_many_dimensions_as_it_has():
    ids = np.array([[CLS, 3, 4, 3, 5, SEP, PAD, PAD]], np.int32)
    vectors, known = cooccurrence.word_vectors(ids, 64, 16, SPECIAL)
    assert known.sum() == 3 and np.isfinite(vectors).all()
    nothing, none = cooccurrence.word_vectors(ids * 0, 64, 16, SPECIAL)
    assert not none.any() and not nothing.any()


def test_a_large_corpus_is_sampled_evenly(tmp_path, monkeypatch):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"word{i // 40} " * 14 + "\n" for i in range(1200)))
    prepare.prepare(
        prepare.Config(out=str(tmp_path / "data"), corpus=str(corpus), vocab_size=128, length=16,
                       heldout=0, workers=1))  # fmt: skip
    sequences = Sequences(Manifest.load(str(tmp_path / "data")))
    whole = cooccurrence.sample(sequences)
    assert len(whole) == len(sequences) > 1100
    monkeypatch.setattr(cooccurrence, "SAMPLE", 256)
    some = cooccurrence.sample(sequences)
    assert some.shape == (256, 16)
    assert (some[:64] == whole[:64]).all() and (some[-64:] == whole[-64:]).all()
