"""Attention by cuDNN: all around XLA's call, which TensorFlow's operations replace on a CPU."""

from __future__ import annotations

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import configuring, tf
from amp_xla.errors import UnsupportedError
from amp_xla.graph import recompute
from amp_xla.models import derivatives, dropout, fused
from amp_xla.models.options import EncoderOptions
from amp_xla.settings import Precision, Settings
from amp_xla.training import step

pytestmark = pytest.mark.skipif(backend.kind() == "tf1", reason="needs TensorFlow 2")
LENGTH, LENGTHS = 128, [128, 50, 1, 0]
MASK = np.arange(LENGTH) < np.array(LENGTHS)[:, None]


def by_tensorflow(operands, results, direction=""):
    """The mathematics of ``fused.call``; padding that cuDNN leaves out is NaN."""
    assert all(x.dtype == tf.float16 for x in operands if x.shape.ndims == 4)
    assert [x.dtype for x in operands[-2:]] == [tf.int32] * 2
    q, k, v, *rest = (tf.cast(x, tf.float32) for x in operands[:-2])
    queries, keys = (tf.sequence_mask(x, q.shape[2]) for x in operands[-2:])
    scores = tf.matmul(q, k, transpose_b=True)
    scores -= (
        1e30
        * (1.0 - tf.cast(tf.logical_and(queries[..., None], keys[:, None]), tf.float32))[:, None]
    )
    if direction:
        statistics, dout, out = rest
        weights = tf.exp(scores - statistics[..., None])
        along = tf.reduce_sum(dout * out, -1, keepdims=True)
        dscores = weights * (tf.matmul(dout, v, transpose_b=True) - along)
        skipped = tf.where_v2(keys, 0.0, np.nan)[:, None, :, None]
        values = [
            tf.matmul(dscores, k),
            tf.matmul(dscores, q, transpose_a=True) + skipped,
            tf.matmul(weights, dout, transpose_a=True) + skipped,
        ]
    else:
        values = [tf.matmul(tf.nn.softmax(scores), v), tf.reduce_logsumexp(scores, -1)]
    return [tf.ensure_shape(tf.cast(x, d), s) for x, (d, s) in zip(values, results)]


@pytest.fixture(autouse=True)
def on_a_cpu(cleared, monkeypatch):
    monkeypatch.setattr(fused, "call", by_tensorflow)
    dropout.install(1)


def relative(found, expected):
    return np.abs(found - expected).max() / np.abs(expected).max()


def test_values_and_gradients_are_those_of_plain_attention():
    query, key, value, slopes = np.random.RandomState(1).normal(0, 1, (4, 4, LENGTH, 3, 64))
    inputs = [tf.constant(x, tf.float32) for x in (query / 8, key, value)]
    bias = derivatives.mask_bias(tf.constant(MASK[:, None, None]))
    installed = fused.Batch(4, LENGTH)
    outs = [
        fused.attention(*inputs, tf.constant(MASK), installed),
        derivatives.attention(*inputs, bias),
    ]
    assert (installed.heads, installed.size) == (3, 64)
    fetches = [[out, *tf.gradients(out, inputs, tf.constant(slopes, tf.float32))] for out in outs]
    ours, plain = tf.Session().run(fetches)
    for found, expected in zip(ours, plain):
        assert found.dtype == np.float32 and relative(found[:3], expected[:3]) < 2e-3
        assert np.isfinite(found[3]).all()  # a row of padding alone
    np.testing.assert_allclose(ours[0][3], np.broadcast_to(value[3, :1], value[3].shape), atol=2e-3)
    out = fused.attention(*inputs, None, installed)
    found, expected = tf.Session().run([out, derivatives.attention(*inputs)])
    assert relative(found, expected) < 2e-3


@pytest.mark.parametrize(
    "joined, again", [(True, False), (False, True)], ids=["joined", "recompute"]
)
def test_a_model_has_plain_gradients_and_plain_attention_outside_training(
    monkeypatch, joined, again
):
    monkeypatch.setattr(configuring, "compiles", lambda: joined)
    options, tokens = EncoderOptions(layers=2, hidden=128, dropout=0.0), np.where(MASK, 7, 0)
    tokens += MASK * np.random.RandomState(2).randint(30, size=MASK.shape)
    fused.install([MASK.shape])
    model = options.classifier(40, 3, LENGTH)
    mean = tf.constant([[1.0], [1.0], [1.0], [0.0]])  # the weights of rows
    gradients, outputs = [], []
    for training in (model.output, dropout.without(model)):
        loss = tf.reduce_sum(tf.square(training - 1.0) * mean)
        gradients.append(
            [tf.convert_to_tensor(g) for g in tf.gradients(loss, model.trainable_weights)]
        )
        outputs.append(training)
    if again:
        recompute.recompute(tf.reduce_sum(tf.square(outputs[0] - 1.0)), gradients[0])
    step.initialize_variables()
    feed = dict(zip(model.inputs, (tokens, tokens * 0)))
    (ours, plain), (first, second) = backend.session().run([gradients, outputs], feed)
    assert relative(first[:3], second[:3]) < 1e-3 and not np.array_equal(first[:3], second[:3])
    for found, expected in zip(ours, plain):
        assert np.abs(found - expected).max() <= 1e-2 * np.abs(expected).max() + 1e-5


@pytest.mark.parametrize(
    "build, found",
    [
        (lambda: fused.install([(8, 64), (8, 128)]), "8x64, 8x128"),
        (lambda: fused.install([(8, 96)]), "8x96"),
        (lambda: EncoderOptions(hidden=32).classifier(40, 3, LENGTH), "32"),
        (lambda: EncoderOptions().classifier(40, 3, LENGTH, slots=2), "MultiHeadSelfAttention, of"),
        (
            lambda: EncoderOptions().language_model(40, LENGTH, "unilm"),
            "MultiHeadSelfAttention, of",
        ),
    ],
    ids=["shapes", "length", "heads", "packed", "unilm"],
)
def test_what_it_cannot_compute_is_an_error(build, found):
    fused.install([(4, LENGTH)])
    with pytest.raises(UnsupportedError, match=f"found: .*{found}.* or take --attention plain"):
        build()


def wrong(operands, results, direction=""):
    """As a call that reads an operand in another layout."""
    values = by_tensorflow(operands, results, direction)
    return [values[0], *values[:0:-1]] if direction else values


@pytest.mark.parametrize(
    "change, message",
    [
        ({}, None),
        (
            {"call": wrong},
            r"to 2%; found: a difference of \d+.\d+% in the gradient of the (key|value)",
        ),
        ({"gpus": []}, "needs an NVIDIA GPU; found: none"),
        ({"capability": (7, 5)}, "compute capability 8.0 or higher; found: 7.5"),
        ({"half": "bfloat16"}, "float16 and XLA .*; found: precision amp .bfloat16"),
        ({"precision": "fp32"}, "float16 and XLA .*; found: precision fp32, XLA on"),
        ({"xla": "off"}, "float16 and XLA .*; found: .*, XLA off"),
        ({"call": None}, "cuDNN 8.9.4 or later that computes it on this GPU; found: "),
    ],
)
def test_a_machine_is_checked_before_the_first_step(monkeypatch, capsys, change, message):
    settings = {
        "precision": "amp",
        "xla": "on",
        **{k: v for k, v in change.items() if k in ("precision", "xla")},
    }
    precision = Precision.of(Settings(**settings), change.get("half", "float16"))
    monkeypatch.setattr(backend, "gpus", lambda: change.get("gpus", ["GPU"]))
    monkeypatch.setattr(backend, "compute_capability", lambda: change.get("capability", (8, 6)))
    fused.verify(precision)  # nothing is installed
    fused.install([(32, LENGTH)])
    EncoderOptions(layers=1, hidden=128).classifier(40, 3, LENGTH)
    if "call" in change:
        monkeypatch.undo() if change["call"] is None else monkeypatch.setattr(
            fused, "call", change["call"]
        )
        monkeypatch.setattr(backend, "gpus", lambda: ["GPU"])
        monkeypatch.setattr(backend, "compute_capability", lambda: (8, 6))
    if message is None:
        fused.verify(precision)
        assert "agrees with plain attention: at most a difference of 0." in capsys.readouterr().err
    else:
        with pytest.raises(UnsupportedError, match=message) as refused:
            fused.verify(precision)
        assert "\n" not in str(refused.value) and "take --attention plain" in str(refused.value)
