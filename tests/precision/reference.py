"""Dynamic loss scaling in plain Python, and sequences to compare implementations on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
from hypothesis import strategies as st

VECTORS: List[Dict[str, Any]] = json.loads(
    (Path(__file__).parent / "loss_scale_vectors.json").read_text()
)
LARGEST = float(np.finfo(np.float32).max)


class Case(NamedTuple):
    """One loss scale and the steps it lives through."""

    initial: float
    interval: int
    growth: float
    backoff: float
    minimum: float
    maximum: float
    finite: Tuple[bool, ...]

    @property
    def arguments(self) -> Dict[str, Any]:
        """For DynamicLossScale."""
        return {
            "loss_scale": self.initial,
            "growth_interval": self.interval,
            "growth_factor": self.growth,
            "backoff_factor": self.backoff,
            "minimum": self.minimum,
            "maximum": self.maximum,
        }


def reference(case: Case) -> List[Tuple[float, int]]:
    """Return (scale, counter) after every step: float32 products, else float64."""
    scale, counter, states = float(np.float32(case.initial)), 0, []
    for finite in case.finite:
        counter = counter + 1 if finite else 0
        if not finite:
            scale = max(_product(scale, case.backoff), case.minimum)
        elif counter == case.interval:
            counter, grown = 0, _product(scale, case.growth)
            scale = min(grown, case.maximum) if grown <= LARGEST else scale
        states.append((scale, counter))
    return states


def _product(scale: float, factor: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(scale) * np.float32(factor))


def of_vector(vector: Dict[str, Any]) -> Case:
    """Return a published vector as a case."""
    finite = tuple(bool(flag) for flag in vector["finite"])
    factor = float(vector["mult"])
    return Case(vector["init"], vector["period"], factor, 1 / factor, 1.0, LARGEST, finite)


def expected(vector: Dict[str, Any]) -> List[float]:
    """Return the scales that a vector expects, as float32 numbers."""
    return [float(np.float32(value)) for value in vector["expect"]]


def _case(parts: Tuple[Any, ...]) -> Case:
    low, middle, high, interval, growth, backoff, finite = parts
    return Case(2.0**middle, interval, growth, backoff, 2.0**low, 2.0**high, tuple(finite))


def cases(steps: int) -> st.SearchStrategy[Case]:
    """Return random cases of that many steps, with random bounds and factors."""
    factors = st.sampled_from([2.0, 3.0, 1.5, 10.0, 2.0**60])
    shrink = st.sampled_from([0.5, 0.1, 0.75, 2.0**-60])
    flags: Sequence[Any] = [True, True, True, False]
    return st.tuples(
        st.integers(-126, 0),
        st.integers(0, 100),
        st.integers(100, 127),
        st.integers(1, 4),
        factors,
        shrink,
        st.lists(st.sampled_from(flags), min_size=steps, max_size=steps),
    ).map(_case)
