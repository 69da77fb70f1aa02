"""Pretrained weights, read and checked before training starts. Imports no TensorFlow.

``DataError`` is raised if they are missing, damaged, or do not fit the model; it names file and
tensor.
"""

from __future__ import annotations

import functools
import operator
from typing import Callable, Dict, NamedTuple, Sequence, Tuple

import numpy as np

from amp_xla.errors import DataError

Shape = Tuple[int, ...]


class Stored(NamedTuple):
    """A tensor in a file: shape, dtype, file name for messages, and a function that reads it."""

    shape: Shape
    dtype: str
    source: str
    read: Callable[[], np.ndarray]


Tensors = Dict[str, Stored]


def product(shape: Sequence[int]) -> int:
    """Return the number of elements of a tensor."""
    if len(shape) > 8:
        raise ValueError(f"a tensor with {len(shape):,} dimensions")
    return functools.reduce(operator.mul, shape, 1)


def decoded(data: bytes, dtype: str) -> np.ndarray:
    """Return numbers from little-endian bytes; bfloat16 becomes float32."""
    if dtype == "bfloat16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<"))


def damaged(what: str, error: Exception) -> DataError:
    """Return the error for a file or tensor whose reader raised ``error``."""
    return DataError(f"{what} is damaged ({first_line(error)}); copy or download it again")


def first_line(error: Exception) -> str:
    """Return the first line of an exception's message."""
    text = getattr(error, "message", None) or getattr(error, "strerror", None) or str(error)
    return (str(text).strip().splitlines() or [type(error).__name__])[0][:200]
