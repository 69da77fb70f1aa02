"""Dynamic loss scaling in plain Python, and sequences to compare implementations on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Tuple

import numpy as np
from hypothesis import strategies as st

VECTORS: List[Dict[str, Any]] = json.loads(
    (Path(__file__).parent / "loss_scale_vectors.json").read_text()
)
LARGEST = float(np.finfo(np.float32).max)


class Case(NamedTuple):
    """Arguments of DynamicLossScale, and whether the gradients of each step are finite."""

    arguments: Dict[str, Any]
    finite: Tuple[bool, ...]


def _case(loss_scale, growth_interval, growth_factor, backoff_factor, minimum, maximum, finite):
    arguments = dict(locals())
    return Case(arguments, tuple(map(bool, arguments.pop("finite"))))


def reference(case: Case) -> List[Tuple[float, int]]:
    """Return (scale, counter) after every step: float32 products, else float64."""
    given, counter, states = case.arguments, 0, []
    scale = float(np.float32(given["loss_scale"]))
    for finite in case.finite:
        counter = counter + 1 if finite else 0
        if not finite:
            scale = max(_product(scale, given["backoff_factor"]), given["minimum"])
        elif counter == given["growth_interval"]:
            counter, grown = 0, _product(scale, given["growth_factor"])
            scale = min(grown, given["maximum"]) if grown <= LARGEST else scale
        states.append((scale, counter))
    return states


def _product(scale: float, factor: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(scale) * np.float32(factor))


def of_vector(vector: Dict[str, Any]) -> Case:
    """Return a published vector as a case."""
    factor = float(vector["mult"])
    bounds = (1.0, LARGEST)
    return _case(vector["init"], vector["period"], factor, 1 / factor, *bounds, vector["finite"])


def expected(vector: Dict[str, Any]) -> List[float]:
    """Return the scales that a vector expects, as float32 numbers."""
    return [float(np.float32(value)) for value in vector["expect"]]


def cases(steps: int) -> st.SearchStrategy[Case]:
    """Return random cases of that many steps, with random bounds and factors."""
    return st.builds(
        _case,
        st.integers(0, 100).map(lambda power: 2.0**power),
        st.integers(1, 4),
        st.sampled_from([2.0, 3.0, 1.5, 10.0, 2.0**60]),
        st.sampled_from([0.5, 0.1, 0.75, 2.0**-60]),
        st.integers(-126, 0).map(lambda power: 2.0**power),
        st.integers(100, 127).map(lambda power: 2.0**power),
        st.lists(st.sampled_from([True, True, True, False]), min_size=steps, max_size=steps),
    )
