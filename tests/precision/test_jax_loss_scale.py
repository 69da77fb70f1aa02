"""Loss scales in JAX: eager, jit and scan; one call for gradients; devices; Optax; checkpoints."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings

from amp_xla.precision import Policy, PolicyRules, get_policy, half_dtype, set_half_dtype
from amp_xla.precision.jax import (
    DynamicLossScale,
    NoOpLossScale,
    StaticLossScale,
    all_finite,
    select_tree,
    value_and_grad,
)
from amp_xla.precision.jax.optax import loss_scaled
from tests.precision.reference import cases, reference
from tests.precision.snippets import blocks, run

pytestmark = pytest.mark.jax


def run_eager(case, adjust=lambda scale, finite: scale.adjust(finite)):
    scale, seen = DynamicLossScale(**case.arguments), []
    for finite in case.finite:
        scale = adjust(scale, jnp.bool_(finite))
        seen.append((float(scale.loss_scale), int(scale.counter)))
    return seen


def run_jit(case):
    traces = []

    @jax.jit
    def adjust(scale, finite):
        traces.append(1)
        return scale.adjust(finite)

    seen = run_eager(case, adjust)
    assert len(traces) == 1
    return seen


@jax.jit
def scanned(scale, flags):
    def body(scale, finite):
        scale = scale.adjust(finite)
        return scale, (scale.loss_scale, scale.counter)

    return jax.lax.scan(body, scale, flags)[1]


def run_scan(case):
    scales, counters = scanned(DynamicLossScale(**case.arguments), jnp.array(case.finite))
    return list(zip(map(float, scales), map(int, counters)))


RUNS = pytest.mark.parametrize("run", [run_eager, run_jit, run_scan])


@RUNS
@settings(max_examples=25)
@given(case=cases(12))
def test_random_sequences_equal_the_reference(run, case):
    assert run(case) == reference(case)


def test_everything_survives_flattening_copying_and_pickling():
    scale = DynamicLossScale(
        8.0, 1, growth_interval=7, growth_factor=4, backoff_factor=0.25, minimum=0.5, maximum=64
    )
    leaves, structure = jax.tree_util.tree_flatten(scale)
    assert [float(leaf) for leaf in leaves] == [8.0, 1.0]
    others = (
        structure.unflatten(leaves),
        jax.jit(lambda s: s)(scale),
        copy.deepcopy(scale),
        pickle.loads(pickle.dumps(scale)),
    )
    assert all(other == scale for other in others)


def test_half_precision_goes_through_float32():
    scale = DynamicLossScale(2**15)
    assert scale.scale(jnp.float16(4)) == 2.0**17
    assert jax.jit(scale.unscale)({"w": jnp.float16(2.0**-11)})["w"] == 2.0**-26


def test_all_finite_and_select_tree():
    good = {"w": jnp.ones(2), "n": jnp.arange(2), "key": jax.random.key(0), "none": None}
    assert all_finite(good) and all_finite({}) and all_finite(None)
    for bad in (jnp.inf, -jnp.inf, jnp.nan):
        assert not all_finite({**good, "bad": jnp.array([1, bad], jnp.bfloat16)})
    assert select_tree(jnp.bool_(True), {"a": 1.0, "b": None}, {"a": 2.0, "b": None})["a"] == 1
    with pytest.raises(AssertionError, match="boolean scalar"):
        select_tree(jnp.ones([1]), 1, 2)


def loss_fn(params, x):
    y = x @ params["w"] + params["b"]
    return jnp.mean(jnp.square(y.astype(jnp.float32))), {"y": y, "seen": params["w"].dtype.name}


PARAMS = {"w": jnp.linspace(-1, 1, 6).reshape(3, 2), "b": jnp.zeros(2)}
X = jnp.arange(12.0).reshape(4, 3) / 10


@pytest.mark.parametrize(
    "loss_scale", [NoOpLossScale(), StaticLossScale(1024), DynamicLossScale(1024, maximum=2048)]
)
def test_value_and_grad_gives_true_values(loss_scale):
    (loss, _), grads = jax.value_and_grad(loss_fn, has_aux=True)(PARAMS, X)
    found = value_and_grad(lambda p, x: loss_fn(p, x)[0], loss_scale)(PARAMS, X)
    assert found.finite and found.value == loss
    jax.tree_util.tree_map(np.testing.assert_array_equal, found.grads, grads)
    assert type(found.loss_scale) is type(loss_scale)


def test_value_and_grad_applies_a_policy():
    step = value_and_grad(loss_fn, StaticLossScale(256), "p=f32,c=f16,o=f32", has_aux=True)
    (loss, aux), grads, finite, _ = step(PARAMS, X)
    assert aux["seen"] == "float16" and aux["y"].dtype == loss.dtype == jnp.float32
    assert grads["w"].dtype == jnp.float32 and finite
    rules = PolicyRules("mixed_float16", [("w", "float32")])
    assert value_and_grad(loss_fn, NoOpLossScale(), rules, has_aux=True)(PARAMS, X).value[1][
        "seen"
    ] == ("float32")


def test_overflow_in_half_is_seen_and_the_scale_backs_off():
    step = jax.jit(
        lambda scale, p, x: value_and_grad(lambda p, x: loss_fn(p, x)[0], scale, "c=f16")(p, x)
    )
    scale, skipped = DynamicLossScale(2.0**24, growth_interval=100), 0
    for _ in range(20):
        _, grads, finite, scale = step(scale, PARAMS, X)
        skipped += not finite
    assert 0 < skipped < 20 and finite and all_finite(grads)
    assert scale.loss_scale == 2.0 ** (24 - skipped)


def leaves_the_device(program):
    return any(word in str(program) for word in ("callback", "debug_print", "infeed", "outfeed"))


def test_no_host_callback_in_the_program():
    optimizer = loss_scaled(optax.adam(1e-2), "dynamic")

    def step(scale, state, params, x):
        run = value_and_grad(lambda p, x: loss_fn(p, x)[0], scale, "mixed_float16")
        loss, grads, finite, scale = run(params, x)
        updates, state = optimizer.update(state.loss_scale.scale(grads), state, params)
        return loss, updates, scale, finite, state

    program = jax.make_jaxpr(step)(DynamicLossScale(), optimizer.init(PARAMS), PARAMS, X)
    assert "cond[" in str(program) and not leaves_the_device(program)
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    one = jax.make_jaxpr(lambda x: jax.pure_callback(np.sin, shape, x))(1.0)
    assert leaves_the_device(one)  # the check can fail


def test_optax_wrapper_skips_whole_steps():
    optimizer = loss_scaled(optax.adam(0.1), DynamicLossScale(8.0, growth_interval=2))
    plain = optax.adam(0.1)
    params, theirs = PARAMS, PARAMS
    state, other = optimizer.init(params), plain.init(params)
    update = jax.jit(optimizer.update)
    for factor in (1.0, jnp.inf, 1.0, jnp.nan, 1.0):
        before, scale = state, state.loss_scale
        grads = jax.grad(lambda p, f, s=scale: s.scale(loss_fn(p, X)[0]) * f)(params, factor)
        updates, state = update(grads, state, params)
        params = optax.apply_updates(params, updates)
        assert bool(state.finite) == bool(np.isfinite(factor))
        if not state.finite:
            jax.tree_util.tree_map(np.testing.assert_array_equal, state.inner, before.inner)
            continue
        updates, other = plain.update(jax.grad(lambda p: loss_fn(p, X)[0])(theirs), other, theirs)
        theirs = optax.apply_updates(theirs, updates)
    jax.tree_util.tree_map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), params, theirs
    )
    assert (state.applied_steps, state.skipped_steps) == (3, 2)
    # 8, then halved by inf; one finite step; halved by nan; one finite step.
    assert state.loss_scale.loss_scale == 2.0 and state.loss_scale.counter == 1


DEVICES = """
import jax, jax.numpy as jnp, numpy as np
from functools import partial
from jax.sharding import Mesh, PartitionSpec as P
from amp_xla.precision.jax import DynamicLossScale, value_and_grad
assert jax.device_count() == 2

def loss_fn(p, x):
    return jnp.mean(jnp.square(x @ p["w"])) + jnp.sum(p["table"] * x[0, 0])

def step(scale, params, x):
    run = value_and_grad(loss_fn, scale, axis_name="d", model_parallel=lambda path: path == "table")
    return tuple(run(params, x))

mesh = Mesh(np.array(jax.devices()), ("d",))
shapes = {"w": P(), "table": P("d")}
out = (P(), shapes, P(), P())

def mapped(how):
    if how != "vmap":
        return jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(P(), shapes, P("d")),
                                     out_specs=out, check_vma=how == "shard_map checked"))
    flat = jax.vmap(step, in_axes=(None, {"w": None, "table": 0}, 0), axis_name="d",
                    out_axes=(0, {"w": 0, "table": 0}, 0, 0))
    def run(scale, params, x):
        params = {"w": params["w"], "table": params["table"].reshape(2, 1)}
        v, g, f, s = flat(scale, params, x.reshape(2, 2, 3))
        np.testing.assert_array_equal(g["w"][0], g["w"][1])
        assert f[0] == f[1]
        first = lambda leaf: jax.tree_util.tree_map(lambda a: a[0], leaf)
        return first(v), {"w": g["w"][0], "table": g["table"].reshape(2)}, f[0], first(s)
    return run

params = {"w": jnp.arange(3.0).reshape(3, 1), "table": jnp.ones(2)}
x = jnp.arange(12.0).reshape(4, 3)
parts = [x[:2], x[2:]]
want = [jax.grad(lambda w: jnp.mean(jnp.square(p @ w)))(params["w"]) for p in parts]
for how in ("shard_map", "shard_map checked", "vmap"):
    scale = DynamicLossScale(8.0, growth_interval=1)
    run = mapped(how)
    value, grads, finite, after = run(scale, params, x)
    np.testing.assert_allclose(grads["w"], (want[0] + want[1]) / 2, rtol=1e-6)
    np.testing.assert_allclose(grads["table"], [x[0, 0], x[2, 0]])  # each device's own
    assert finite and after.loss_scale == 16.0, how
    # NaN reaches only the second device's table: both must skip.
    bad = {**params, "table": jnp.array([1.0, jnp.nan])}
    nan_x = x.at[2, 0].set(jnp.nan)
    value, grads, finite, after = run(scale, params, nan_x)
    assert not finite and after.loss_scale == 4.0, how
    print("ok", how)
"""


def test_devices_decide_together():
    done = subprocess.run(
        [sys.executable, "-c", DEVICES],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={
            **os.environ,
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
            "JAX_PLATFORMS": "cpu",
        },
    )
    output = done.stdout.decode()
    assert output.count("ok ") == 3 and done.returncode == 0, output


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_policies_are_equal_across_dtypes(name):
    spellings = [name, getattr(jnp, name), jnp.dtype(name), getattr(jnp, name).dtype]
    policies = [Policy(s, s, s) for s in spellings]
    assert len(set(policies)) == 1
    assert policies[0].param_dtype == getattr(jnp, name)


def test_policies_cast_jax_trees():
    class Pair:
        def __init__(self, a, b):
            self.a, self.b = a, b

    jax.tree_util.register_pytree_node(
        Pair, lambda p: ((p.a, p.b), None), lambda _, children: Pair(*children)
    )
    key = jax.random.key(0)
    tree = {"x": jnp.ones(2), "i": jnp.arange(2), "z": 1j * jnp.ones(1), "key": key, "none": None}
    cast = get_policy("bf16").cast_to_compute({**tree, "pair": Pair(jnp.ones(1), [jnp.ones(1)])})
    assert cast["x"].dtype == jnp.bfloat16 and cast["pair"].b[0].dtype == jnp.bfloat16
    assert cast["i"] is tree["i"] and cast["z"] is tree["z"] and cast["key"] is key
    assert jax.jit(get_policy("f16").cast_to_output)(jnp.ones(1)).dtype == jnp.float16


def test_half_dtype_starts_no_device_before_it_is_asked():
    code = (
        "import jax, jax._src.xla_bridge as bridge;"
        "import amp_xla.precision.compat.jmp, amp_xla.precision.compat.neurai;"
        "assert not bridge._backends, bridge._backends;"
        "amp_xla.precision.compat.jmp.half_dtype(); assert bridge._backends"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}
    )
    with set_half_dtype("bf16"):
        assert half_dtype() == jnp.bfloat16


@pytest.mark.parametrize("code", blocks("jax"))
def test_the_documentations_blocks_run(code):
    run(code)
