"""Loss scales in JAX: compiled; one call for gradients; devices; Optax; jmp's names and tests."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings

import amp_xla.precision.compat.jmp as jmp
from amp_xla.precision import PolicyRules
from amp_xla.precision.compat import neurai
from amp_xla.precision.jax import DynamicLossScale, NoOpLossScale, select_tree, value_and_grad
from amp_xla.precision.jax.optax import loss_scaled
from tests.support import update_sequences as updates
from tests.support.running import run_python
from tests.support.scale_reference import cases, reference
from tests.support.snippets import blocks, run

pytestmark = pytest.mark.jax


@jax.jit
def scanned(scale, flags):
    def body(scale, finite):
        scale = scale.adjust(finite)
        return scale, (scale.loss_scale, scale.counter)

    return jax.lax.scan(body, scale, flags)[1]


@settings(max_examples=25)
@given(case=cases(12))
def test_random_sequences_equal_the_reference(case):
    scales, counters = scanned(DynamicLossScale(**case.arguments), jnp.array(case.finite))
    assert list(zip(map(float, scales), map(int, counters))) == reference(case)


def loss_fn(params, x):
    y = x @ params["w"] + params["b"]
    return jnp.mean(jnp.square(y.astype(jnp.float32))), {"y": y, "seen": params["w"].dtype.name}


PARAMS = {"w": jnp.linspace(-1, 1, 6).reshape(3, 2), "b": jnp.zeros(2)}
X = jnp.arange(12.0).reshape(4, 3) / 10


def test_value_and_grad_applies_a_policy():
    step = value_and_grad(loss_fn, 256, "p=f32,c=f16,o=f32", has_aux=True)
    (loss, aux), grads, finite, _ = step(PARAMS, X)
    assert aux["seen"] == "float16" and aux["y"].dtype == loss.dtype == jnp.float32
    assert grads["w"].dtype == jnp.float32 and finite
    rules = PolicyRules("mixed_float16", [("w", "float32")])
    _, aux = value_and_grad(loss_fn, NoOpLossScale(), rules, has_aux=True)(PARAMS, X).value
    assert aux["seen"] == "float32"
    step = value_and_grad(loss_fn, 1, PolicyRules("f16", [("^w$", "f32")]), has_aux=True)
    assert step(PARAMS, x=X).value[1]["seen"] == "float32"
    step = jax.jit(lambda scale: value_and_grad(jnp.sum, scale)(X).loss_scale.loss_scale)
    assert [step(scale) for scale in (256.0, 1.0, 3)] == [256, 1, 3]  # tracers inside jit


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


@jax.jit
def sequence_step(state, factor, shift):
    params, slots, loss_scale, average = state
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.sgd(updates.RATE, updates.MOMENTUM, accumulator_dtype=jnp.float32),
    )

    def loss(params):
        return sum(jnp.sum(value * updates.SLOPES) for value in params.values()) * factor + shift

    _, grads, finite, loss_scale = value_and_grad(loss, loss_scale)(params)
    moved, new_slots = optimizer.update(grads, slots, params)
    new = optax.apply_updates(params, moved), new_slots, 0.5 * average + 0.5 * factor
    params, slots, average = select_tree(finite, new, (params, slots, average))
    return (params, slots, loss_scale, average), finite


def check_sequence(case):
    """The moving average is part of the state; an abandoned step is a state not taken over."""
    params = {name: jnp.ones(2) for name in "eab"}
    slots = optax.chain(optax.identity(), optax.sgd(updates.RATE, updates.MOMENTUM)).init(params)
    state, counts = (params, slots, updates.scale(), jnp.float32(0)), [0, 0]

    def train(micro):
        nonlocal state
        new, finite = sequence_step(state, jnp.float32(micro.factor), jnp.float32(micro.shift))
        if not micro.abandoned:
            state = new
            counts[not finite] += 1
        weights, _, loss_scale, average = state
        seen = [*counts, loss_scale.loss_scale, loss_scale.counter]
        return micro.abandoned or finite, weights, seen, {"whole": average}

    updates.follow((case[0], 1), train, clips_always=True)


test_random_sequences_of_updates, test_a_thousand = updates.checked(
    updates.sequences(("whole",), abandon=True), check_sequence
)


@pytest.mark.parametrize("mapped", ["argument", "closure"])
def test_an_axis_of_vmap_is_averaged_over(mapped):
    params, x = jnp.ones([3, 1]), jnp.arange(12.0).reshape(2, 2, 3)

    def mean_square(p, x):
        return jnp.mean((x @ p) ** 2)

    def step(p, x):
        return value_and_grad(mean_square, 8.0, axis_name="d")(p, x)

    if mapped == "argument":
        run = jax.vmap(step, in_axes=(None, 0), axis_name="d")
    else:
        run = jax.vmap(lambda p, x: step(params, x), in_axes=(None, 0), axis_name="d")
    for done in (run(params, x), jax.jit(run)(params, x)):
        want = jnp.mean(jnp.stack([jax.grad(mean_square)(params, part) for part in x]), 0)
        np.testing.assert_allclose(done.grads, jnp.stack([want, want]), rtol=1e-6)
    done = jax.jit(run)(params, x.at[1, 0, 0].set(jnp.inf))
    assert done.finite.tolist() == [False, False]


DEVICES = """
import jax, jax.numpy as jnp, numpy as np
from functools import partial
from jax.sharding import Mesh, PartitionSpec as P
from amp_xla.precision.jax import DynamicLossScale, value_and_grad
assert jax.device_count() == 2

def loss_fn(p, x):
    return jnp.mean(jnp.square(x @ p["w"]))

def step(scale, params, x):
    return tuple(value_and_grad(loss_fn, scale, axis_name="d")(params, x))

mesh = Mesh(np.array(jax.devices()), ("d",))

params = {"w": jnp.arange(3.0).reshape(3, 1)}
x = jnp.arange(12.0).reshape(4, 3)
parts = [x[:2], x[2:]]
want = [jax.grad(lambda w: jnp.mean(jnp.square(p @ w)))(params["w"]) for p in parts]
for checked in (False, True):
    scale = DynamicLossScale(8.0, growth_interval=1)
    run = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(P(), P(), P("d")), out_specs=P(),
                                check_vma=checked))
    value, grads, finite, after = run(scale, params, x)
    np.testing.assert_allclose(grads["w"], (want[0] + want[1]) / 2, rtol=1e-6)
    assert finite and after.loss_scale == 16.0
    # NaN reaches only the second device: both must skip.
    value, grads, finite, after = run(scale, params, x.at[2, 0].set(jnp.nan))
    assert not finite and after.loss_scale == 4.0
    print("ok")
"""


def test_devices_decide_together():
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    assert run_python("-c", DEVICES, env=flags).out.count("ok") == 2


@pytest.mark.parametrize("code", blocks("jax"))
def test_the_documentations_blocks_run(code):
    run(code)


RUN_JMPS_TESTS = """
import importlib, sys, unittest
import jmp
import amp_xla.precision.compat.jmp as ours
suite = unittest.TestSuite()
for name in ("loss_scale", "policy"):
    sys.modules["jmp._src." + name] = ours
    setattr(sys.modules["jmp._src"], name, ours)
    tests = importlib.import_module(f"jmp._src.{name}_test")
    suite.addTests(unittest.defaultTestLoader.loadTestsFromModule(tests))
assert tests.jmp is ours
result = unittest.TextTestRunner(verbosity=0).run(suite)
print("ran", result.testsRun, "failed", len(result.failures) + len(result.errors))
"""


def test_jmps_own_97_tests_pass():
    done = run_python("-c", RUN_JMPS_TESTS, env={"JAX_PLATFORMS": "cpu"})
    assert "ran 97 failed 0" in done.out, done.err


def test_all_of_jmps_names_are_here_and_in_neurai():
    assert sorted(jmp.__all__) == sorted(importlib.import_module("jmp").__all__)
    for module in (neurai.policy, neurai.scale):
        assert all(getattr(module, name) is getattr(jmp, name) for name in jmp.__all__)


def test_what_jmp_0_0_4_gets_wrong():
    """In jmp 0.0.4 it is lost in tree_flatten and becomes 1."""
    adjust = jax.jit(lambda state, finite: state.adjust(finite))
    state = jmp.DynamicLossScale(jnp.float32(1), min_loss_scale=jnp.float32(2.0**-4))
    for _ in range(8):
        state = adjust(jax.tree_util.tree_map(lambda x: x, state), jnp.bool_(False))
    assert state.loss_scale == 2.0**-4 and state.min_loss_scale == 2.0**-4
    # In jmp 0.0.4 2**-11 / 2**15 is 0 in float16.
    grads = {"w": jnp.array([2.0**-11], jnp.float16)}
    assert jmp.StaticLossScale(2**15).unscale(grads)["w"][0] == 2.0**-26


@pytest.mark.parametrize("kind", [int, np.float16, jnp.asarray])
def test_three_static_values_trace_once(kind):
    traces = []

    @jax.jit
    def scaled(loss_scale, x):
        traces.append(1)
        return loss_scale.scale(x)

    for value in (2, 4, 8):
        assert scaled(jmp.StaticLossScale(kind(value)), jnp.float32(1)) == value
    assert len(traces) == 1
