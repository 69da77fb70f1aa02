"""The model: hidden states equal bert4keras'; dropout, damaged weights."""

import re
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
# eea35f5, because no runtime has both TensorFlow and JAX; the weights then became safetensors.
FOLDER = Path(__file__).resolve().parent / "reference"
HUGGING_FACE = Path(__file__).resolve().parents[1] / "models" / "hugging_face"


def loaded(folder=FOLDER):
    shape = weights.pretrained(str(folder)).config
    return weights.load(jax.eval_shape(lambda: bert.new_classifier(shape, 3, 0).bert), str(folder))


@jax.jit
def hidden_states(model, tokens, segments):
    return model(tokens, segments)


@pytest.mark.parametrize("dtype, tolerance", [("f32", 1e-4), ("f16", 0.03), ("bf16", 0.25)])
def test_hidden_states_are_bert4keras(dtype, tolerance):
    wanted = np.load(str(FOLDER / "hidden.npz"))
    real = wanted["tokens"] > 0
    policy = get_policy(f"p=f32,c={dtype},o=f32")
    found = hidden_states(policy.cast_to_compute(loaded()), wanted["tokens"], wanted["segments"])
    assert np.abs(wanted["hidden"][real]).max() > 1.0 and found.dtype == policy.compute_dtype
    found = np.asarray(found.astype(jnp.float32))
    np.testing.assert_allclose(found[real], wanted["hidden"][real], atol=tolerance)


@pytest.mark.parametrize("name", ["bert", "bert_old", "bert_zip"])
def test_hidden_states_are_those_of_transformers(name):
    wanted = np.load(str(HUGGING_FACE / name / "hidden.npz"))
    model = loaded(HUGGING_FACE / name)
    found = np.asarray(hidden_states(model, wanted["tokens"], wanted["segments"]))
    real = wanted["tokens"] > 0
    np.testing.assert_allclose(found[real], wanted["hidden"][real], atol=1e-4)


def test_dropout_drops_its_share_anew_each_step_and_place():
    x = jnp.ones([64, 32, 48])
    key = jax.random.key_data(jax.random.key(0))
    drops = []
    for step, place in ((0, 0), (0, 1), (1, 0)):
        mask = np.asarray(bert.dropped(x, bert.Dropout(key + np.uint32(step), 0.25, 0.25), place))
        assert set(np.unique(mask)) == {0.0, np.float32(1 / 0.75)}
        for axis in ((0, 1), (0, 2), (1, 2)):  # no row, column or plane is special
            shares = (mask == 0).mean(axis)
            assert abs(shares.mean() - 0.25) < 0.003 and shares.std() < 0.02
        for other in drops:
            assert abs(((mask == 0) & other).mean() - 0.0625) < 0.003
        drops.append(mask == 0)
    assert bert.dropped(x, None, 0) is x


@pytest.mark.parametrize("size", [16, 24, 64])
def test_large_products_in_float16_do_not_overflow(size):
    query = jnp.full((1, 2, 1, size), 90.0, jnp.float16).at[0, 1].set(-90.0)  # 90^2 * 16 > 2^16
    value, allowed = jnp.arange(2 * size, dtype=jnp.float16), jnp.ones((1, 1, 1, 2), bool)
    found = bert.attention(query, query, value.reshape(query.shape), allowed, None, 0)
    np.testing.assert_array_equal(found.ravel(), value)


def gradients(model, tokens, fused=False):
    """Return gradients and hidden states of a training step without dropout."""
    dropout = bert.Dropout(jnp.zeros(2, jnp.uint32), 0.0, 0.0, fused)

    def loss(model):
        hidden = model(tokens, jnp.zeros_like(tokens), dropout).astype(jnp.float32)
        return jnp.where((tokens != 0)[:, :, None], jnp.square(hidden), 0.0).sum(), hidden

    return jax.grad(loss, has_aux=True)(model)


def test_attention_by_lengths_equals_attention_by_a_mask(monkeypatch):
    """Rows of 12, 5, 1 and no tokens; JAX's own implementation stands for cuDNN's."""
    tokens = np.random.RandomState(1).randint(1, 20, (4, 12))
    for row, length in enumerate((12, 5, 1, 0)):
        tokens[row, length:] = 0
    grads, hidden = gradients(loaded(), jnp.asarray(tokens))
    monkeypatch.setattr(bert, "FUSED", "xla")
    fused_grads, fused = gradients(loaded(), jnp.asarray(tokens), True)
    np.testing.assert_allclose(fused[tokens > 0], hidden[tokens > 0], atol=1e-5)
    jax.tree_util.tree_map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3), fused_grads, grads
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_fused_the_program_for_a_gpu_has_cudnns_attention_in_half(monkeypatch, dtype):
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    # They ask the driver; all else is what a GPU's program is made of.
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)
    model, tokens = get_policy(f"p=f32,c={dtype},o=f32").cast_to_compute(loaded()), jnp.ones((2, 8))

    def program(fused):
        step = jax.jit(lambda m, t: gradients(m, t, fused))
        lowered = step.trace(model, tokens.astype(jnp.int32)).lower(lowering_platforms=("cuda",))
        return lowered.as_text()

    assert "__cudnn" not in program(False)
    calls = [line for line in program(True).splitlines() if "__cudnn$fmha" in line]
    layers = len(model.layers)
    assert sum("__cudnn$fmhaSoftmaxBackward(" in call for call in calls) == layers
    assert len(calls) == 2 * layers
    for call in calls:
        operands = re.findall(r"tensor<((?:\d+x){4})(\w+)>", call.split(" : ")[-1].split("->")[0])
        short = {"float16": "f16", "bfloat16": "bf16"}[dtype]
        assert len(operands) in (3, 5) and {kind for _, kind in operands} == {short}


def test_cudnns_attention_is_for_gpus_and_half_precision_only(monkeypatch):
    class Device:
        compute_capability = "9.0"

    query = (jnp.bfloat16, 64)
    assert not bert.has_fused_attention(*query)  # a CPU
    monkeypatch.setattr(jax, "local_devices", lambda: [Device])
    assert bert.has_fused_attention(*query)
    assert not bert.has_fused_attention(jnp.float32, 64)
    assert not bert.has_fused_attention(jnp.bfloat16, 260)
    for other in ("7.5", "gfx942"):
        Device.compute_capability = other
        assert not bert.has_fused_attention(*query)


@pytest.mark.parametrize("name", ["bert_model.ckpt", "model.ckpt-100"])
def test_other_families_and_a_tensorflow_checkpoint_are_refused(tmp_path, name):
    folder = tmp_path / "bert"
    shutil.copytree(str(FOLDER), str(folder))
    for ending in ("index", "data-00000-of-00001"):
        (folder / f"{name}.{ending}").write_bytes(b"")
    loaded(folder)  # the safetensors beside it are read
    (folder / "model.safetensors").unlink()
    with pytest.raises(weights.DataError, match="convert .*bert NEW-FOLDER --format hf") as refused:
        loaded(folder)
    assert f"{name}.index is a TensorFlow checkpoint" in str(refused.value)
    assert "\n" not in str(refused.value)
    words = "only model_type bert with hidden_act gelu; found: alb"
    with pytest.raises(weights.DataError, match=words):
        loaded(HUGGING_FACE / "albert")
