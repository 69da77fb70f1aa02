"""The states of ``numpy.random`` and ``random``: the script's, and another one for its data."""

from __future__ import annotations

import contextlib
import random
from typing import Any, Iterator

import numpy as np


def random_state() -> Any:
    """Return the states of ``numpy.random`` and ``random`` for JSON."""
    state: Any = np.random.get_state()
    name, key, *rest = state
    return [[name, key.tolist(), *rest], random.getstate()]


def set_random_state(state: Any) -> None:
    """Set the states of ``numpy.random`` and ``random``."""
    numpy_state, (version, key, gauss) = state
    np.random.set_state(tuple(numpy_state))
    random.setstate((version, tuple(key), gauss))


def seeded(*numbers: int) -> None:
    """Set both states by ``numbers``."""
    np.random.seed(list(numbers))
    random.seed("/".join(map(str, numbers)))


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Set the random states at the end to what they are now: the script's."""
    script = random_state()
    try:
        yield
    finally:
        set_random_state(script)


def apart(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield batches, read with random states that are separate from the script's."""
    state = random_state()
    while True:
        with restored():
            set_random_state(state)
            batch = next(batches)
            state = random_state()
        yield batch
