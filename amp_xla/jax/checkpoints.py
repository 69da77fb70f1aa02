"""JAX pytrees as NumPy arrays by name, for checkpoints."""

from __future__ import annotations

from typing import Any, Dict

import jax
import numpy as np

from amp_xla.jax import processes
from amp_xla.jax.bert import named
from amp_xla.training.checkpoint import Checkpoint, fitting, shape_of


def shapes(tree: Any, prefix: str = "") -> Dict[str, str]:
    """Return name -> ``float32[21128,768]`` of each array."""
    return {prefix + name: shape_of(leaf) for name, leaf in named(tree)}


def snapshot(tree: Any) -> Dict[str, np.ndarray]:
    """Return name -> array in host memory of each array."""
    return {name: np.asarray(leaf.addressable_data(0)) for name, leaf in named(tree)}


def restored(checkpoint: Checkpoint, like: Any, prefix: str = "") -> Any:
    """Return a tree like ``like`` with the arrays of a checkpoint, on all devices.

    Args:
      checkpoint: where to read.
      like: a ``State``, or a part of one.
      prefix: name of that part in the state, such as ``.model``.

    Raises:
      CheckpointError: an array is missing or of another shape.
    """
    arrays = fitting(checkpoint, shapes(like, prefix), exactly=not prefix)
    leaves = [
        arrays[prefix + name].astype(leaf.dtype) for name, leaf in named(like)
    ]  # the order of ``named`` is that of the tree
    return processes.put(jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(like), leaves))
