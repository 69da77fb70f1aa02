"""Floating dtypes by name, the same for NumPy, JAX, TensorFlow and strings."""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import Any, Dict, Optional, Tuple, Union

import numpy as np

# Canonical name -> spellings, the first of which str(Policy) writes (jmp's, so that they mix).
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
    """Return ``float16``, ``bfloat16``, ``float32`` or ``float64`` for any dtype or name.

    Raises:
      ValueError: anything else; the message lists what is allowed.
    """
    if isinstance(dtype, str):
        name = dtype.strip()
        if name == "half":
            return canonical(half_dtype())
        if name in NAMES:
            return NAMES[name]
    else:
        base = getattr(dtype, "base_dtype", dtype)  # TensorFlow's reference dtypes
        for attribute in ("name", "__name__"):  # dtypes have the one, scalar types the other
            spelled = getattr(base, attribute, None)
            if isinstance(spelled, str) and spelled in SPELLINGS:
                return spelled
        with contextlib.suppress(TypeError):
            name = np.dtype(base).name
            if name in SPELLINGS:
                return name
    raise ValueError(
        f"Unknown dtype {dtype!r}; allowed: half, " + ", ".join(NAMES) + ", or such a dtype of "
        "NumPy, JAX or TensorFlow"
    )


def scalar_type(name: str) -> Any:
    """Return the NumPy scalar type of a dtype, which every framework accepts.

    bfloat16 is ``ml_dtypes``', else TensorFlow's if it is imported, else the plain name.
    """
    if name != "bfloat16":
        return getattr(np, name)
    try:
        return importlib.import_module("ml_dtypes").bfloat16
    except ImportError:
        tensorflow = sys.modules.get("tensorflow")
        return name if tensorflow is None else tensorflow.bfloat16.as_numpy_dtype


def half_dtype(platform: Optional[str] = None) -> Any:
    """Return this machine's half precision, a scalar type: bfloat16 on TPU, else float16.

    ``set_half_dtype`` overrides it.

    Args:
      platform: ``cpu``, ``gpu``, ``tpu``; None = JAX's, if it is imported. This call starts JAX's
        devices.
    """
    if _half is not None:
        return scalar_type(_half)
    if platform is None:
        jax = sys.modules.get("jax")
        platform = "" if jax is None else jax.default_backend()
    return scalar_type("bfloat16" if platform == "tpu" else "float16")


class set_half_dtype:  # reads as a verb, also in a with statement
    """Override of ``half_dtype()`` from now on, or within a ``with`` block.

    Args:
      dtype: ``float16``, ``bfloat16``, or None to detect again.

    Raises:
      ValueError: not a half precision.
    """

    def __init__(self, dtype: Union[str, Any, None]) -> None:
        global _half
        name = None if dtype is None else canonical(dtype)
        if name not in (None, "float16", "bfloat16"):
            raise ValueError(f"{name} is not a half precision; allowed: float16, bfloat16")
        self._before, _half = _half, name

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: Any) -> None:
        global _half
        _half = self._before
