"""The JAX snippets of NeurAI's documentation, adapted in the import line and in their own slips.

The slips: `layer` unpacks a tuple and is called with a dictionary; `...` stands for arguments;
`train_step` is called without what it returns being the same in all three kinds.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_xla.precision.compat.neurai import policy, scale
from tests.precision.snippets import blocks, run

pytestmark = pytest.mark.jax

half = jnp.float16  # On TPU this should be jnp.bfloat16
full = jnp.float32


def test_policies():
    my_policy = policy.Policy(param_dtype=full, compute_dtype=half, output_dtype=half)

    def layer(params, x):
        params, x = my_policy.cast_to_compute((params, x))
        w, b = params
        y = x @ w + b
        return my_policy.cast_to_output(y)

    params = (
        jnp.ones([3, 2], dtype=my_policy.param_dtype),
        jnp.zeros([2], dtype=my_policy.param_dtype),
    )
    x = jnp.ones([4, 3])
    y = layer(params, x)
    assert y.dtype == half

    my_policy = my_policy.with_output_dtype(full)
    assert layer(params, x).dtype == full

    my_policy = policy.get_policy("params=float32,compute=float16,output=float32")
    float16 = policy.get_policy("float16")  # Everything in f16.
    half_ = policy.get_policy("half")  # Everything in half (f16 or bf16).
    assert layer(params, x).dtype == full and float16 == half_


def apply_optimizer(params, grads):
    return jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, params, grads)


def my_loss_fn(params, loss_scale: scale.LossScale, x):
    loss = jnp.sum(params["w"] * x)
    # You should apply regularization etc before scaling.
    loss = loss_scale.scale(loss)
    return loss


@pytest.mark.parametrize(
    "start",
    [
        scale.DynamicLossScale(jnp.float32(2**15)),
        # jmp's README has this one; in jmp 0.0.4 `adjust` raises a TypeError on a float16 scale.
        scale.DynamicLossScale(policy.half_dtype()(2**15)),
        # jmp 0.0.4 cannot hash this one: it fails under jit.
        scale.StaticLossScale(jnp.float32(2**12)),
        scale.NoOpLossScale(),
    ],
    ids=lambda s: type(s).__name__,
)
@pytest.mark.parametrize("compiled", [False, True])
def test_one_step_function_for_every_kind(start, compiled):
    def train_step(params, loss_scale: scale.LossScale, x):
        grads = jax.grad(my_loss_fn)(params, loss_scale, x)
        grads = loss_scale.unscale(grads)
        # You should put gradient clipping etc after unscaling.

        # You definitely want to skip non-finite updates with the dynamic loss scale,
        # but you might also want to consider skipping them when using a static loss
        # scale if you experience NaN's when training.
        skip_nonfinite_updates = isinstance(loss_scale, scale.DynamicLossScale)

        if skip_nonfinite_updates:
            grads_finite = scale.all_finite(grads)
            # Adjust our loss scale depending on whether gradients were finite. The
            # loss scale will be periodically increased if gradients remain finite and
            # will be decreased if not.
            loss_scale = loss_scale.adjust(grads_finite)
            # Only apply our optimizer if grads are finite, if any element of any
            # gradient is non-finite the whole update is discarded.
            params = scale.select_tree(grads_finite, apply_optimizer(params, grads), params)
        else:
            # With static or no loss scaling just apply our optimizer.
            params = apply_optimizer(params, grads)

        # Since our loss scale is dynamic we need to return the new value from
        # each step. All loss scales are `PyTree`s.
        return params, loss_scale

    step = jax.jit(train_step) if compiled else train_step
    params, loss_scale = {"w": jnp.ones(3)}, start
    for _ in range(3):
        params, loss_scale = step(params, loss_scale, jnp.arange(3.0))
    np.testing.assert_allclose(params["w"], 1 - 0.3 * np.arange(3.0), rtol=1e-6)
    if isinstance(start, scale.DynamicLossScale):
        params, loss_scale = step(params, loss_scale, jnp.array([1, 2, jnp.inf]))
        assert loss_scale.loss_scale == 2**14 and loss_scale.loss_scale.dtype == full
        np.testing.assert_allclose(params["w"], 1 - 0.3 * np.arange(3.0), rtol=1e-6)


@pytest.mark.parametrize("code", blocks("jax"))
def test_our_documentations_blocks_run(code):
    run(code)
