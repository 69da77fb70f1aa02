"""Dynamic loss scaling in plain Python, and sequences on which implementations are compared."""

import json
from pathlib import Path
from typing import Any, Dict, NamedTuple, Tuple

import numpy as np
from hypothesis import strategies as st

VECTORS = json.loads((Path(__file__).parent / "loss_scale_vectors.json").read_text())
LARGEST = float(np.finfo(np.float32).max)


class Case(NamedTuple):
    """Arguments of DynamicLossScale, and whether the gradients of each step are finite."""

    arguments: Dict[str, Any]
    finite: Tuple[bool, ...]


def reference(case):
    """Return (scale, counter) after each step; products are float32, all else is float64."""
    arguments, counter, states = case.arguments, 0, []
    scale = float(np.float32(arguments["loss_scale"]))
    for finite in case.finite:
        counter = counter + 1 if finite else 0
        if not finite:
            scale = max(_product(scale, arguments["backoff_factor"]), arguments["minimum"])
        elif counter == arguments["growth_interval"]:
            counter, grown = 0, _product(scale, arguments["growth_factor"])
            scale = min(grown, arguments["maximum"]) if grown <= LARGEST else scale
        states.append((scale, counter))
    return states


def _product(scale, factor):
    with np.errstate(over="ignore"):
        return float(np.float32(scale) * np.float32(factor))


def of_vector(vector):
    """Return a published vector as a case."""
    arguments = {
        "loss_scale": vector["init"], "growth_interval": vector["period"], "minimum": 1.0,
        "growth_factor": vector["mult"], "backoff_factor": 1 / vector["mult"], "maximum": LARGEST,
    }  # fmt: skip
    return Case(arguments, tuple(map(bool, vector["finite"])))


def cases(steps):
    """Return random cases of ``steps`` steps, with random bounds and factors."""

    def powers(first, last):
        return st.integers(first, last).map(lambda power: 2.0**power)

    arguments = st.fixed_dictionaries({
        "loss_scale": powers(0, 100),
        "growth_interval": st.integers(1, 4),
        "growth_factor": st.sampled_from([2.0, 3.0, 1.5, 10.0, 2.0**60]),
        "backoff_factor": st.sampled_from([0.5, 0.1, 0.75, 2.0**-60]),
        "minimum": powers(-126, 0),
        "maximum": powers(100, 127),
    })  # fmt: skip
    finite = st.lists(st.sampled_from([True, True, True, False]), min_size=steps, max_size=steps)
    return st.builds(Case, arguments, finite.map(tuple))
