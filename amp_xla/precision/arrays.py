"""Dtypes, arrays and trees of NumPy, JAX and TensorFlow; imports neither JAX nor TensorFlow.

JAX and TensorFlow are taken from ``sys.modules``, if other code has imported them.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from typing import Any, Callable, Dict, Optional, Tuple, TypeVar, Union

import numpy as np

T = TypeVar("T")

# Canonical name -> accepted spellings. str(Policy) writes the first one, as jmp does.
SPELLINGS: Dict[str, Tuple[str, ...]] = {
    "bfloat16": ("bf16", "bfloat16"),
    "float16": ("f16", "float16"),
    "float32": ("full", "f32", "float32", "f"),
    "float64": ("f64", "float64"),
}
NAMES: Dict[str, str] = {
    spelling: name for name, spellings in SPELLINGS.items() for spelling in spellings
}

_half: Optional[str] = None


def canonical(dtype: Any) -> str:
    """Return the name ``float16``, ``bfloat16``, ``float32`` or ``float64`` of a dtype.

    Args:
      dtype: a spelling in ``NAMES``, ``half``, or a dtype of NumPy, JAX or TensorFlow.

    Raises:
      ValueError: it is not one of these four dtypes; the message lists the allowed names.
    """
    if isinstance(dtype, str):
        name = dtype.strip()
        if name == "half":
            return canonical(half_dtype())
        if name in NAMES:
            return NAMES[name]
    elif dtype is not None:  # which NumPy takes for float64
        with contextlib.suppress(TypeError):
            name = np.dtype(getattr(dtype, "as_numpy_dtype", dtype)).name
            if name in SPELLINGS:
                return name
    raise ValueError(
        f"Unknown dtype {dtype!r}; allowed: half, " + ", ".join(NAMES) + ", or one of these "
        "dtypes of NumPy, JAX or TensorFlow"
    )


def scalar_type(name: str) -> Any:
    """Return the NumPy scalar type for a dtype's name; every framework accepts this type.

    For bfloat16 it is the type of ``ml_dtypes``. Without that package it is TensorFlow's type if
    TensorFlow is imported, else the name itself.
    """
    if name != "bfloat16":
        return getattr(np, name)
    try:
        return importlib.import_module("ml_dtypes").bfloat16
    except ImportError:
        tensorflow = sys.modules.get("tensorflow")
        return name if tensorflow is None else tensorflow.bfloat16.as_numpy_dtype


def half_dtype() -> Any:
    """Return this machine's half-precision dtype, a scalar type: bfloat16 on a TPU, else float16.

    ``set_half_dtype`` overrides it. If JAX is imported, this call starts JAX's devices.
    """
    if _half is not None:
        return scalar_type(_half)
    jax = sys.modules.get("jax")
    on_tpu = jax is not None and jax.default_backend() == "tpu"
    return scalar_type("bfloat16" if on_tpu else "float16")


class set_half_dtype:  # reads as a verb, also in a with statement
    """Override ``half_dtype()`` from now on, or within a ``with`` block.

    Args:
      dtype: ``float16``, ``bfloat16``, or None to detect again.

    Raises:
      ValueError: not a half-precision dtype.
    """

    def __init__(self, dtype: Union[str, Any, None]) -> None:
        global _half
        name = None if dtype is None else canonical(dtype)
        if name not in (None, "float16", "bfloat16"):
            raise ValueError(f"{name} is not a half-precision dtype; allowed: float16, bfloat16")
        self._before, _half = _half, name

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: Any) -> None:
        global _half
        _half = self._before


HALF = ("float16", "bfloat16")


def family(x: Any) -> str:
    """Return a value's framework: ``tensorflow``, ``jax`` or ``numpy`` (Python scalars, too)."""
    for cls in type(x).__mro__:
        root = cls.__module__.partition(".")[0]
        if root in ("tensorflow", "tensorflow_core", "tf_keras", "keras"):
            return "tensorflow"
        if root in ("jax", "jaxlib"):
            return "jax"
    return "numpy"


def namespace(*values: Any) -> Any:
    """Return an object with the functions of the values' framework under NumPy's names."""
    families = {family(value) for value in values}
    if "tensorflow" in families:
        tf = sys.modules["tensorflow"]
        return types.SimpleNamespace(
            isfinite=tf.math.is_finite,
            minimum=tf.minimum,
            maximum=tf.maximum,
            logical_and=tf.logical_and,
            logical_not=tf.logical_not,
            where=lambda c, a, b: tf.compat.v1.where(c, a, tf.convert_to_tensor(b, dtype=a.dtype)),
            int32=lambda x: tf.cast(x, tf.int32),
        )
    return sys.modules["jax"].numpy if "jax" in families else np


def dtype_name(x: Any) -> Optional[str]:
    """Return the name of a value's dtype, e.g. ``int32``; None if it has none (Python scalars)."""
    dtype = getattr(x, "dtype", None)
    if dtype is None:
        return None
    dtype = getattr(dtype, "base_dtype", dtype)  # TensorFlow's reference dtypes
    return getattr(dtype, "name", None) or str(dtype)


def is_float(x: Any) -> bool:
    """Return True for arrays, tensors and NumPy scalars of a real floating dtype."""
    name = dtype_name(x)
    return name is not None and name.startswith(("float", "bfloat")) and name != "float0"


def is_finite(values: np.ndarray) -> bool:
    """Return True if a NumPy array has no NaN and no infinity."""
    # Minimum and maximum propagate NaN and need no array of booleans.
    return not values.size or bool(np.isfinite(values.min()) and np.isfinite(values.max()))


def is_sparse(x: Any) -> bool:
    """Return True for ``tf.IndexedSlices``: rows of a gradient, with the row numbers."""
    return hasattr(x, "values") and hasattr(x, "indices") and hasattr(x, "dense_shape")


def cast(x: Any, dtype: str) -> Any:
    """Cast ``x`` to the dtype with this name; return ``x`` itself if it already has this dtype."""
    if dtype_name(x) == dtype:
        return x
    if family(x) == "tensorflow":
        return sys.modules["tensorflow"].cast(x, dtype)
    return x.astype(scalar_type(dtype))


def widen(x: Any) -> Any:
    """Cast a half-precision value to float32; return any other value unchanged."""
    return cast(x, "float32") if dtype_name(x) in HALF else x


def cast_like(scalar: Any, like: Any) -> Any:
    """Cast a scalar to the dtype of ``like``, a float32 or float64 array."""
    return cast(scalar, dtype_name(like) or "float32")


def scalar(x: Any, dtype: str) -> Any:
    """Return ``x`` as a scalar of the named dtype; a Python number becomes a NumPy scalar."""
    return getattr(np, dtype)(x) if family(x) == "numpy" else cast(x, dtype)


def map_floats(function: Callable[[Any], Any], tree: T, python_floats: bool = False) -> T:
    """Apply ``function`` to every floating leaf of a tree; other leaves are unchanged.

    A tree consists of dicts, lists, tuples and, if JAX is loaded, node types registered with
    JAX. A sparse gradient keeps indices and shape. Python floats are included only with
    ``python_floats``.
    """

    def leaf(path: str, x: Any) -> Any:
        if python_floats and type(x) is float:
            return function(np.float32(x))
        if is_sparse(x):
            return type(x)(function(x.values), x.indices, x.dense_shape) if is_float(x) else x
        return function(x) if is_float(x) else x

    return map_with_path(leaf, tree)


def map_with_path(leaf: Callable[[str, Any], Any], tree: Any, path: str = "") -> Any:
    """Return a tree with ``leaf(path, value)`` in place of each leaf; path: e.g. ``norm/scale``."""
    if tree is None or is_sparse(tree) or hasattr(tree, "dtype"):
        return leaf(path, tree)
    if isinstance(tree, dict):
        pairs = {k: map_with_path(leaf, v, _join(path, k)) for k, v in tree.items()}
        clone = tree.copy()  # also of subclasses
        clone.update(pairs)
        return clone
    if isinstance(tree, (list, tuple)):
        names = getattr(tree, "_fields", range(len(tree)))
        parts = [map_with_path(leaf, part, _join(path, k)) for k, part in zip(names, tree)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    if "jax" not in sys.modules:
        return leaf(path, tree)
    tree_util = sys.modules["jax"].tree_util

    def named(keys: Any, part: Any) -> Any:
        return leaf(_join(path, tree_util.keystr(keys, simple=True, separator="/")), part)

    return tree_util.tree_map_with_path(named, tree)  # a node registered with JAX, or a leaf


def _join(path: str, key: Any) -> str:
    return "/".join(part for part in (path, str(key)) if part)
