"""The state of Python's and NumPy's generators as JSON, and what no state can bring back."""

from __future__ import annotations

import random
from typing import Any, Dict, List

import numpy as np

_RANDOM_OPS = (
    "RandomUniform",
    "RandomUniformInt",
    "RandomStandardNormal",
    "TruncatedNormal",
    "ParameterizedTruncatedNormal",
    "Multinomial",
    "RandomGamma",
    "RandomShuffle",
)


def get() -> Dict[str, Any]:
    """Both generators' states."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, [int(k) for k in keys], int(position), int(has_gauss), float(cached)],
    }


def put(state: Dict[str, Any]) -> None:
    """Sets both from ``get``."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, cached))


def unrepeatable(fetch: Any) -> List[str]:
    """Names of operations under ``fetch`` whose random numbers a resumed run cannot repeat.

    TensorFlow keeps their state inside the kernel, where nothing can read it. This project's own
    dropout is not among them.

    Args:
      fetch: an operation or a tensor of a v1 graph.
    """
    stack, seen, found = [getattr(fetch, "op", fetch)], set(), []
    while stack:
        op = stack.pop()
        if op in seen:
            continue
        seen.add(op)
        if op.type in _RANDOM_OPS:
            found.append(op.name)
        stack += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return sorted(found)
