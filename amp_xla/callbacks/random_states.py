"""States of ``numpy.random``, of ``random`` and of a script's random generators."""

from __future__ import annotations

import contextlib
import random
from typing import Any, Iterator

import numpy as np

GENERATORS: Any = (random.Random, np.random.RandomState, np.random.Generator)


def generator(kind: str, state: Any) -> Any:
    """Return a new generator with a state that was saved as JSON; lists become tuples again."""
    new: Any = random.Random()
    if kind == "Random":
        version, key, gauss = state
        state = version, tuple(key), gauss
    else:
        new = getattr(np.random, kind)(getattr(np.random, state["bit_generator"])())
    new.__setstate__(state)
    return new


def random_state() -> Any:
    """Return the states of ``numpy.random`` and ``random`` for JSON."""
    state: Any = np.random.get_state()
    return [[state[0], state[1].tolist(), *state[2:]], random.getstate()]


def set_random_state(state: Any) -> None:
    """Set the states of ``numpy.random`` and ``random``."""
    numpy_state, (version, key, gauss) = state
    np.random.set_state(tuple(numpy_state))
    random.setstate((version, tuple(key), gauss))


def seeded(*numbers: int) -> None:
    """Seed ``numpy.random`` and ``random`` with ``numbers``."""
    np.random.seed(list(numbers))
    random.seed("/".join(map(str, numbers)))


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Restore the states of ``numpy.random`` and ``random`` after the block."""
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
            batch = next(batches, None)
            state = random_state()
        if batch is None:
            return
        yield batch
