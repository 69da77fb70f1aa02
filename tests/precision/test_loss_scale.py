"""Loss scales and policies as plain values, and in a v1 graph."""

import collections
import copy
import dataclasses
import json
import pickle

import numpy as np
import pytest
from hypothesis import given

from amp_xla.backend import tf
from amp_xla.precision import (
    DynamicLossScale,
    NoOpLossScale,
    Policy,
    PolicyRules,
    StaticLossScale,
    arrays,
    full_precision,
    get_policy,
    half_dtype,
    set_half_dtype,
)
from amp_xla.precision.loss_scale import from_spec
from amp_xla.precision.tensorflow import LossScaleVariables
from tests.support.scale_reference import VECTORS, cases, of_vector, reference


def states(case):
    scale = DynamicLossScale(**case.arguments)
    seen = []
    for finite in case.finite:
        scale = scale.adjust(np.bool_(finite))
        assert scale.loss_scale.dtype == np.float32 and scale.counter.dtype == np.int32
        seen.append((float(scale.loss_scale), int(scale.counter)))
    return seen


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_vectors(vector):
    for implementation in (states, reference):
        scales = [scale for scale, _ in implementation(of_vector(vector))]
        assert scales == [float(np.float32(value)) for value in vector["expect"]]


@given(cases(30))
def test_random_sequences_equal_the_reference_within_bounds(case):
    assert states(case) == reference(case)
    bounds = case.arguments
    assert all(bounds["minimum"] <= scale <= bounds["maximum"] for scale, _ in states(case))


@pytest.mark.parametrize(
    "cls, value", [(StaticLossScale, np.float64(2**15)), (DynamicLossScale, 2**15)]
)
def test_half_precision_is_scaled_and_unscaled_in_float32(cls, value):
    scale = cls(value)
    loss = scale.scale(np.float16(4.0))
    assert loss == 2.0**17 and loss.dtype == np.float32
    (gradient,) = scale.unscale([np.array([2.0**-11], np.float16)])
    assert gradient[0] == 2.0**-26 and gradient.dtype == np.float32


def test_only_floats_are_scaled():
    tree = {"a": np.int32(3), "b": [None, "text", np.bool_(True)], "c": (np.float64(0.5), 0.25)}
    scaled = StaticLossScale(8).scale(tree)
    assert scaled == {"a": 3, "b": [None, "text", True], "c": (4.0, 2.0)}
    assert scaled["c"][0].dtype == np.float64
    assert DynamicLossScale(4.0, 7, growth_interval=3).adjust(np.bool_(True)).loss_scale == 8


def test_copies_pickles_and_specs_keep_everything():
    scale = DynamicLossScale(
        8.0, 1, growth_interval=7, growth_factor=4, backoff_factor=0.25, minimum=0.5, maximum=64
    )
    through_json = from_spec(json.loads(json.dumps(scale.spec())))
    for other in (copy.copy(scale), copy.deepcopy(scale), through_json):
        assert other == scale
    assert pickle.loads(pickle.dumps(scale)) == scale
    assert scale.adjust(np.bool_(True)) != scale
    for fixed in (StaticLossScale(3.0), NoOpLossScale()):
        assert from_spec(fixed.spec()) == fixed
    assert from_spec("dynamic") == DynamicLossScale()
    assert from_spec("1000") == StaticLossScale(1000)
    assert from_spec(1) == NoOpLossScale() == from_spec(None)
    array, field = {"kind": "dynamic", "loss_scale": (2,)}, {"kind": "dynamic", "growth": 3}
    for unknown in ("fast", {"kind": "other"}, [1, 2], np.ones(1), array, field):
        with pytest.raises(ValueError, match="; allowed: .*(number|dynamic|growth_factor)"):
            from_spec(unknown)


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"loss_scale": float("inf")}, "loss_scale is inf"),
        ({"growth_interval": 1.5}, "growth_interval is 1.5"),
        ({"growth_factor": 1}, "growth_factor is 1"),
        ({"backoff_factor": 1}, "backoff_factor is 1"),
        ({"minimum": 8, "maximum": 4}, "above maximum"),
        ({"loss_scale": 2, "minimum": 4}, "loss_scale is 2"),
    ],
)
def test_impossible_values_are_refused_by_name(arguments, said):
    with pytest.raises(ValueError, match=said):
        DynamicLossScale(**arguments)


def test_tensors_of_half_precision_are_unscaled_in_float32(session):
    now = LossScaleVariables(2.0**15).at(tf.constant(2.0**15))
    rows = tf.IndexedSlices(tf.constant([[2.0**-11]], tf.float16), tf.constant([7]))
    dense, none, sparse = now.unscale([tf.constant(2.0**-11, tf.float16), None, rows])
    assert none is None and sparse.indices is rows.indices and sparse.dense_shape is None
    assert session.run([dense, sparse.values[0, 0]]) == [2.0**-26, 2.0**-26]


@dataclasses.dataclass(frozen=True, eq=False)
class Quartering(DynamicLossScale):
    """A rule that this package does not have: a quarter after an overflow, else an eighth more."""

    def adjust(self, grads_finite):
        xp = arrays.namespace(self.loss_scale, self.counter, grads_finite)
        factor = xp.where(grads_finite, np.float32(1.125), np.float32(0.25))
        return self.replace(self.loss_scale * factor, self.counter)


def test_a_new_rule_is_a_class_with_an_adjust_and_nothing_else(session):
    """What CONTRIBUTING.md promises: variables and sessions take it as it is."""
    finite, state = tf.placeholder(tf.bool, []), LossScaleVariables(Quartering(64.0))
    step, scales = state.adjust(finite, state.loss_scale), []
    session.run(tf.global_variables_initializer())
    for flag in (True, False, True):
        session.run(step, {finite: flag})
        scales.append(session.run(state.state_variables)[0])
    assert scales == [72.0, 18.0, 20.25]


@pytest.mark.parametrize("text, names", [
    (" half ", "float16 float16 float16"), ("mixed_bfloat16", "float32 bfloat16 bfloat16"),
    ("output=half", "float32 float32 float16"),
    (" o =full,  params = f64 ,c= f16", "float64 float16 float32"),
    ("compute=float64,p=bf16", "bfloat16 float64 float64"),
])  # fmt: skip
def test_keys_and_defaults(text, names):
    policy = get_policy(text)
    assert " ".join(policy.names) == names and pickle.loads(pickle.dumps(policy)) == policy


@pytest.mark.parametrize("text, said", [
    ("c=f17", "Unknown dtype 'f17'"), ("x=f16", "Unknown key 'x'"),
    ("c=f16,compute=f32", "a second time"), ("c=f16,", "Unknown key ''"),
])  # fmt: skip
def test_mistakes_are_named(text, said):
    with pytest.raises(ValueError, match=said):
        get_policy(text)
    with pytest.raises(ValueError, match="Unknown dtype None"):  # NumPy's is float64
        Policy("f16", "f16", None)


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
    dtypes = []
    wrapped = full_precision(lambda x: dtypes.append(x.dtype) or x, "half")
    assert wrapped(np.ones(2, np.float16)).dtype == np.float16 and dtypes == [np.float32]


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
