"""jmp's own tests run against amp_xla.precision.compat.jmp, and what jmp 0.0.4 gets wrong."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import amp_xla.precision.compat.jmp as jmp
from amp_xla.precision.compat.neurai import policy, scale

pytestmark = pytest.mark.jax

RUN_JMPS_TESTS = """
import importlib, sys, unittest
import jmp
import {ours} as ours
source = sys.modules["jmp._src"]
for name in ("loss_scale", "policy"):
    if ours is not jmp:
        sys.modules["jmp._src." + name] = ours
        setattr(source, name, ours)
suite = unittest.TestSuite(
    unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(f"jmp._src.{{n}}_test"))
    for n in ("loss_scale", "policy")
)
result = unittest.TextTestRunner(verbosity=0).run(suite)
assert importlib.import_module("jmp._src.policy_test").jmp.__name__.startswith({prefix!r})
print("ran", result.testsRun, "failed", len(result.failures) + len(result.errors))
"""


def test_jmps_own_97_tests_pass():
    code = RUN_JMPS_TESTS.format(ours="amp_xla.precision.compat.jmp", prefix="amp_xla.")
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=env)
    assert b"ran 97 failed 0" in done.stdout, done.stderr


def test_all_of_jmps_names_are_here():
    original = importlib.import_module("jmp")
    assert sorted(jmp.__all__) == sorted(original.__all__)
    assert all(hasattr(jmp, name) for name in original.__all__)


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


def test_neurai_has_the_same():
    for module in (policy, scale):
        assert all(getattr(module, name) is getattr(jmp, name) for name in module.__all__)
