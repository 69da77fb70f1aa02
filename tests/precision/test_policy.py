"""Policies: grammar, equality, casting; NumPy and TensorFlow. With JAX, jmp's own tests run."""

import collections

import numpy as np
import pytest

from amp_xla.precision import PolicyRules, get_policy, half_dtype, set_half_dtype
from amp_xla.precision.tensorflow import tf


@pytest.mark.parametrize("text, names", [
    (" half ", "float16 float16 float16"), ("mixed_bfloat16", "float32 bfloat16 bfloat16"),
    ("output=half", "float32 float32 float16"),
    (" o =full,  params = f64 ,c= f16", "float64 float16 float32"),
    ("compute=float64,p=bf16", "bfloat16 float64 float64"),
])  # fmt: skip
def test_keys_and_defaults(text, names):
    assert " ".join(get_policy(text).names) == names


@pytest.mark.parametrize("text, said", [
    ("c=f17", "Unknown dtype 'f17'"), ("x=f16", "Unknown key 'x'"),
    ("c=f16,compute=f32", "a second time"), ("c=f16,", "Unknown key ''"),
])  # fmt: skip
def test_mistakes_are_named(text, said):
    with pytest.raises(ValueError, match=said):
        get_policy(text)


Pair = collections.namedtuple("Pair", ["left", "right"])


def test_casts_floats_in_any_tree_and_nothing_else():
    with tf.Graph().as_default():
        integers = tf.constant([0, 1])
        sparse = tf.IndexedSlices(tf.ones([2, 3]), integers)
        tensors = [tf.get_variable("v", [2], use_resource=True), integers, sparse]
        arrays = Pair([np.ones(1), np.arange(2), np.array([True])], 1j * np.ones(1))
        tree = {"tensors": tensors, "arrays": arrays, "rest": (None, 1, 2.5, "text")}
        cast = get_policy("f16").cast_to_compute(tree)
    variable, same, rows = cast["tensors"]
    assert variable.dtype == rows.dtype == tf.float16 and same is rows.indices is integers
    assert isinstance(rows, tf.IndexedSlices) and isinstance(cast["arrays"], Pair)
    assert [x.dtype.name for x in cast["arrays"].left] == ["float16", "int64", "bool"]
    assert cast["arrays"].right.dtype == np.complex128 and cast["rest"] == tree["rest"]


def test_half_dtype_can_be_overridden():
    with set_half_dtype("bfloat16"):
        assert get_policy("half").names == ("bfloat16",) * 3
        with set_half_dtype(None):
            assert half_dtype() == np.float16
    assert get_policy("half").names == ("float16",) * 3
    with pytest.raises(ValueError, match="float32 is not a half-precision dtype"):
        set_half_dtype("float32")


def test_rules_choose_by_name():
    rules = PolicyRules("mixed_float16", [("softmax|norm|logits", "float32"), ("pool", "bf16")])
    assert rules.policy_for("Encoder-0-FeedForward-Norm") == get_policy("float32")
    assert rules.policy_for("pooler") == get_policy("bf16")
    assert rules.policy_for("dense") == get_policy("mixed_float16")
    tree = {"encoder": {"norm": {"scale": np.ones(1)}, "dense": [np.ones(1)]}, "step": 3}
    cast = rules.cast_to_compute(tree)
    norm, (dense,) = cast["encoder"]["norm"]["scale"], cast["encoder"]["dense"]
    assert norm.dtype == np.float32 and dense.dtype == np.float16 and cast["step"] == 3
