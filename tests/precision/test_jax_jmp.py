"""jmp's own tests run against amp_xla.precision.compat.jmp, and what jmp 0.0.4 gets wrong."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import amp_xla.precision.compat.jmp as jmp
from amp_xla.precision.compat.neurai import policy, scale
from tests.support.running import run_python

pytestmark = pytest.mark.jax
needs_jmp = pytest.mark.skipif(
    importlib.util.find_spec("jmp") is None, reason="compares with jmp, which is not installed"
)

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


@needs_jmp
def test_jmps_own_97_tests_pass():
    done = run_python("-c", RUN_JMPS_TESTS, env={"JAX_PLATFORMS": "cpu"})
    assert "ran 97 failed 0" in done.out, done.err


@needs_jmp
def test_all_of_jmps_names_are_here_and_in_neurai():
    assert sorted(jmp.__all__) == sorted(importlib.import_module("jmp").__all__)
    for module in (policy, scale):
        assert all(getattr(module, name) is getattr(jmp, name) for name in jmp.__all__)


def test_the_minimum_survives_jit_and_tree_map():
    """In jmp 0.0.4 it is lost in tree_flatten and becomes 1."""
    adjust = jax.jit(lambda state, finite: state.adjust(finite))
    state = jmp.DynamicLossScale(jnp.float32(1), min_loss_scale=jnp.float32(2.0**-4))
    for _ in range(8):
        state = adjust(jax.tree_util.tree_map(lambda x: x, state), jnp.bool_(False))
    assert state.loss_scale == 2.0**-4 and state.min_loss_scale == 2.0**-4


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


def test_an_integer_scale_unscales_half_gradients_in_float32():
    """In jmp 0.0.4 2**-11 / 2**15 is 0 in float16."""
    grads = {"w": jnp.array([2.0**-11], jnp.float16)}
    assert jmp.StaticLossScale(2**15).unscale(grads)["w"][0] == 2.0**-26
