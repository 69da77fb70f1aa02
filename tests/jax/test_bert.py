"""The model: hidden states equal bert4keras'; dropout, damaged weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_xla.jax import bert, weights
from amp_xla.precision.policy import get_policy

pytestmark = pytest.mark.jax
# A tiny BERT and its hidden states, written with bert4keras by tests/jax/reference.py of revision
# eea35f5, because no runtime has both TensorFlow and JAX.
FOLDER = Path(__file__).resolve().parent / "reference"
HUGGING_FACE = Path(__file__).resolve().parents[1] / "models" / "hugging_face"


def loaded(folder=FOLDER):
    model = bert.new_classifier(bert.Shape.of(weights.pretrained(str(folder)).config), 3, 0)
    return weights.load(model.bert, str(folder))


def test_hidden_states_are_bert4keras():
    found = np.load(str(FOLDER / "hidden.npz"))
    real = found["tokens"] > 0
    model = loaded()
    hidden = np.asarray(jax.jit(lambda m, t, s: m(t, s))(model, found["tokens"], found["segments"]))
    assert np.abs(found["hidden"][real]).max() > 1.0
    np.testing.assert_allclose(hidden[real], found["hidden"][real], atol=1e-4)
    for policy, tolerance in (("p=f32,c=f16,o=f32", 0.03), ("p=f32,c=bf16,o=f32", 0.25)):
        half = get_policy(policy).cast_to_compute(model)(found["tokens"], found["segments"])
        assert half.dtype in (jnp.float16, jnp.bfloat16)
        wide = np.asarray(half.astype(jnp.float32))
        np.testing.assert_allclose(wide[real], found["hidden"][real], atol=tolerance)


@pytest.mark.parametrize("name", ["bert", "bert_old", "bert_zip"])
def test_hidden_states_are_those_of_transformers(name):
    wanted = np.load(str(HUGGING_FACE / name / "hidden.npz"))
    hidden = np.asarray(loaded(HUGGING_FACE / name)(wanted["tokens"], wanted["segments"]))
    real = wanted["tokens"] > 0
    np.testing.assert_allclose(hidden[real], wanted["hidden"][real], atol=1e-4)


def test_other_families_are_refused():
    with pytest.raises(
        weights.DataError, match="only model_type bert with hidden_act gelu; found: alb"
    ):
        loaded(HUGGING_FACE / "albert")


def test_dropout_drops_its_share_anew_each_step_and_place():
    x = jnp.ones([64, 32, 48])
    key = jax.random.key_data(jax.random.key(0))
    drops = []
    for step, place in ((0, 0), (0, 1), (1, 0)):
        mask = np.asarray(bert.dropped(x, bert.Dropout(key + np.uint32(step), 0.25), place))
        assert set(np.unique(mask)) == {0.0, np.float32(1 / 0.75)}
        for axis in ((0, 1), (0, 2), (1, 2)):  # no row, column or plane is special
            shares = (mask == 0).mean(axis)
            assert abs(shares.mean() - 0.25) < 0.003 and shares.std() < 0.02
        for other in drops:
            assert abs(((mask == 0) & other).mean() - 0.0625) < 0.003
        drops.append(mask == 0)
    assert bert.dropped(x, None, 0) is x


def test_damaged_weights_are_named(tmp_path):
    folder = tmp_path / "bert"
    shutil.copytree(str(FOLDER), str(folder))
    for name, change, words in (
        ("data-00000-of-00001", lambda b: b[:5000] + b"x" + b[5001:], r"bert/.* is damaged \(its"),
        ("index", lambda b: b[:100] + b"x" + b[101:], r"bert_model.ckpt.index is damaged"),
        ("index", lambda b: b[:-9], "not a TensorFlow checkpoint, or truncated"),
    ):
        file = folder / f"bert_model.ckpt.{name}"
        whole = file.read_bytes()
        file.write_bytes(change(whole))
        with pytest.raises(weights.DataError, match=words):
            loaded(folder)
        file.write_bytes(whole)
