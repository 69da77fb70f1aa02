"""Several texts in a row give each text the answer, and the weights the gradient, it has alone."""

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import K, keras, tf
from amp_xla.data.batches.buckets import Batches, PackedBatches
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.models import losses, packed
from amp_xla.models.options import EncoderOptions
from amp_xla.training.step import initialize_variables

CLASSES = 3


@pytest.fixture(autouse=True)
def session():
    """With the infinity of mixed precision, which must be enough to keep texts apart."""
    K.clear_session()
    tf.set_random_seed(0)
    source = backend.bert4keras("backend").K
    before = source.infinity() if hasattr(source, "set_infinity") else None
    if before is not None:
        source.set_infinity(1e4)
    yield backend.session()
    if before is not None:
        source.set_infinity(before)
    K.clear_session()


def answers_and_gradients(session, net, batches, names):
    """Logits by sample, and the sum of the gradients of all batches."""
    each = [None] * (net.output.shape.ndims - 1)
    labels, weights = tf.placeholder(tf.int32, each), tf.placeholder(tf.float32, each)
    loss = tf.reduce_sum(losses.cross_entropy(labels, net.output) * weights)
    slopes = [tf.convert_to_tensor(g) for g in tf.gradients(loss, net.trainable_weights)]
    answers, total = {}, None
    for batch in batches.epoch(0):
        feed = dict(zip(net.inputs, [batch[name] for name in names]))
        feed.update({labels: batch["labels"], weights: batch["weights"]})
        logits, found = session.run([net.output, slopes], feed)
        assert np.isfinite(logits).all()
        rows = zip(batch["sample_ids"].ravel(), logits.reshape(-1, CLASSES))
        answers.update({int(i): row for i, row in rows if i >= 0})
        total = found if total is None else [a + b for a, b in zip(total, found)]
    return np.array([answers[i] for i in sorted(answers)]), total


@pytest.mark.parametrize("slots", [1, 3])
def test_an_answer_over_windows_is_their_mean(session, slots):
    source = np.random.RandomState(3)
    logits = keras.layers.Input((5,) if slots == 1 else (slots, 5))
    model = packed.over_windows(keras.models.Model([logits], logits))
    windows = np.array([[0, 0, 2], [0, 1, -1], [0, 0, 0]])
    if slots > 1:
        windows = np.array([[0, 1, -1, 0, 4, 5, 0, -1, -1]])
    values = source.randn(windows.size // slots, slots, 5).astype(np.float32)
    values = values[:, 0] if slots == 1 else values
    found = session.run(model.output, dict(zip(model.inputs, (values, windows))))
    grouped, expected = (x.reshape(*windows.shape, 5) for x in (values, np.zeros_like(values)))
    for group, place in np.ndindex(*windows.shape):
        members = grouped[group][windows[group] == place]
        expected[group, place] = members.mean(0) if len(members) else 0
    np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", pytest.param("pooler", marks=pytest.mark.once)])
def test_every_text_gets_the_answer_and_gives_the_gradient_it_has_alone(session, pooling):
    rng = np.random.RandomState(0)
    texts = [" ".join(rng.choice(list("abcdefgh"), rng.randint(1, 30))) for _ in range(40)]
    pairs = [" ".join(rng.choice(list("abcdefgh"), rng.randint(1, 9))) for _ in texts]
    tokenizer = Tokenizer.train(texts, 60)
    encoded = tokenizer.encode(texts, pairs, max_length=48)
    labels = rng.randint(0, CLASSES, len(texts))
    options = EncoderOptions(layers=2, hidden=128, dropout=0.0)
    single = Batches(encoded, labels, [48], len(texts), shuffle=False)
    several = PackedBatches(encoded, labels, [64], len(texts) - 3, shuffle=False)
    assert several.rows > 3 and several.slots > 2 and "packed" in several.describe()
    alone, rows = (
        options.classifier(tokenizer.vocab_size, CLASSES, 64, slots, pooling=pooling)
        for slots in (1, several.slots)
    )
    assert [w.shape.as_list() for w in alone.weights] == [w.shape.as_list() for w in rows.weights]
    initialize_variables()
    # Larger than at the start, or attention is too even for a leak to show. With 8 times, rounding
    # in float32 alone moves the gradients of two of 25 draws by more than the tolerance.
    values = [v * 4 + rng.normal(0, 0.1, v.shape) for v in alone.get_weights()]
    alone.set_weights(values)
    rows.set_weights(values)
    names = ["token_ids", "segment_ids", "position_ids", "slots"]
    expected, slopes = answers_and_gradients(session, alone, single, names[:2])
    answers, others = answers_and_gradients(session, rows, several, names)
    assert np.ptp(expected, axis=0).min() > 0.1  # the texts do have different answers
    np.testing.assert_allclose(answers, expected, rtol=1e-3, atol=1e-4)
    # That of a key's bias is zero on paper and rounding in practice: measured against the largest.
    largest = max(float(np.abs(slope).max()) for slope in slopes)
    for one, other in zip(slopes, others):
        scale = max(largest / 100, float(np.abs(one).max()))
        np.testing.assert_allclose(other / scale, one / scale, atol=2e-4)
