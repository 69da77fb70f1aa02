"""Attention by cuDNN: all around XLA's call, which TensorFlow's operations replace on a CPU."""

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
REAL = np.arange(128) < np.array([128, 50, 1, 0])[:, None]
by_xla = fused.call


def by_tensorflow(operands, results, direction=""):
    """The mathematics of ``fused.call``; gradients of padding, which cuDNN leaves out, are NaN."""
    assert all(x.dtype == tf.float16 for x in operands if x.shape.ndims == 4)
    q, k, v, *more = (tf.cast(x, tf.float32) for x in operands[:-2])
    queries, keys = (tf.sequence_mask(x, 128)[:, None] for x in operands[-2:])
    allowed = tf.logical_and(queries[..., None], keys[:, :, None])
    scores = tf.matmul(q, k, transpose_b=True) + tf.math.log(tf.cast(allowed, tf.float32))
    values = [tf.matmul(tf.nn.softmax(scores), v), tf.reduce_logsumexp(scores, -1)]
    if direction:
        statistics, dout, out = more
        weights = tf.exp(scores - statistics[..., None])
        along = tf.reduce_sum(dout * out, -1, keepdims=True)
        ds = weights * (tf.matmul(dout, v, transpose_b=True) - along)
        products = (ds, k, False), (ds, q, True), (weights, dout, True)
        values = [tf.matmul(a, b, transpose_a=turned) for a, b, turned in products]
        values[1:] = (tf.where_v2(keys[..., None], x, np.nan) for x in values[1:])
    return [tf.ensure_shape(tf.cast(x, d), s) for x, (d, s) in zip(values, results)]


def swapped(operands, results, direction=""):
    """Return wrong gradients, as a call does that takes an operand for another one."""
    values = by_tensorflow(operands, results, direction)
    return [values[0], *values[:0:-1]] if direction else values


@pytest.fixture(autouse=True)
def on_a_cpu(cleared, monkeypatch):
    monkeypatch.setattr(fused, "call", by_tensorflow)
    dropout.install(1)
    fused.install([REAL.shape])


@pytest.mark.parametrize("xla", [True, False], ids=["joined", "recomputed"])
def test_a_model_has_plain_gradients_and_plain_attention_outside_training(monkeypatch, xla):
    monkeypatch.setattr(configuring, "compiles", lambda: xla)
    model = EncoderOptions(layers=2, hidden=128, dropout=0.0).classifier(40, 3, 128)
    losses = [
        tf.reduce_sum(tf.square(output - 1.0)[:3])
        for output in (model.output, dropout.without(model))
    ]
    gradients = [
        [tf.convert_to_tensor(g) for g in tf.gradients(loss, model.trainable_weights)]
        for loss in losses
    ]
    if not xla:
        recompute.recompute(losses[0], gradients[0])
    step.initialize_variables()
    tokens = REAL * np.random.RandomState(2).randint(1, 40, REAL.shape)
    feed = dict(zip(model.inputs, (tokens, tokens * 0)))
    (first, ours), (second, plain) = backend.session().run(list(zip(losses, gradients)), feed)
    assert first == pytest.approx(second, rel=1e-3)
    assert any((found != expected).any() for found, expected in zip(ours, plain))
    for found, expected in zip(ours, plain):
        assert np.abs(found - expected).max() <= 1e-2 * np.abs(expected).max() + 1e-5


@pytest.mark.parametrize("build, found", [
    (lambda: fused.install([(8, 64), (8, 128)]), "8x64, 8x128"),
    (lambda: fused.install([(8, 96)]), "8x96"),
    (lambda: EncoderOptions(hidden=32).classifier(40, 3, 128), "32"),
    (lambda: EncoderOptions().classifier(40, 3, 128, slots=2), "another kind in Transformer-0-M"),
    (lambda: EncoderOptions().language_model(40, 128, "unilm"), "another kind in Transformer-0-M"),
])  # fmt: skip
def test_what_it_cannot_compute_is_an_error(build, found):
    with pytest.raises(UnsupportedError, match=f"found: {found}.*; .* take --attention plain"):
        build()


@pytest.mark.parametrize(
    "change, found",
    [
        ({}, None),
        ({"call": swapped}, r"by at most 2%; found: \d\d+.\d% of the largest number"),
        ({"call": lambda *a: [x * np.nan for x in by_tensorflow(*a)]}, "found: inf% of the "),
        ({"call": by_xla}, "cuDNN 8.9.4 or later that computes attention on this GPU; found: "),
        ({"gpus": []}, "a GPU of .*; found: none"),
        ({"compute_capability": (7, 5)}, "a GPU of .*; found: compute capability 7.5"),
        ({"half": "bfloat16"}, "float16 and XLA .*; found: precision amp .bfloat16"),
        ({"precision": "fp32"}, "float16 and XLA .*; found: precision fp32, XLA on"),
        ({"xla": "off"}, "float16 and XLA .*; found: .*, XLA off"),
    ],
)
def test_a_machine_is_checked_before_the_first_step(monkeypatch, capsys, change, found):
    values = {"gpus": ["GPU"], "compute_capability": (8, 6), "half": "float16", **change}
    for name in ("gpus", "compute_capability"):
        monkeypatch.setattr(backend, name, lambda name=name: values[name])
    monkeypatch.setattr(fused, "call", values.get("call", by_tensorflow))
    settings = Settings(precision=values.get("precision", "amp"), xla=values.get("xla", "on"))
    fused.batch().heads, fused.batch().size = 2, 64
    precision = Precision.of(settings, values["half"])
    if found is None:
        fused.verify(precision, derivatives.attention)
        assert "differs from plain attention by 0." in capsys.readouterr().err
        return
    with pytest.raises(UnsupportedError, match=f"needs .*{found}[^\n]*; .* --attention plain$"):
        fused.verify(precision, derivatives.attention)
