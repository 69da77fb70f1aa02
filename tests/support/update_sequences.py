"""Random sequences of micro-batches, and in NumPy what training by them gives."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from amp_xla.precision import DynamicLossScale

RATE, MOMENTUM, CLIP = 0.125, 0.5, 1.0
SLOPES = np.array([1.0, -2.0], np.float32)  # gradient of each variable at factor 1
HEADS = {"whole": "eab", "head": "ea", "clipped": "eb", "by hand": "ea", "plain": "eb", "one": "e"}
TOO_LARGE = 3e38  # finite, not after scaling by 2


class Micro(NamedTuple):
    """A micro-batch.

    Attributes:
      kind: key of ``HEADS``: which variables get gradients, and how.
      factor: of loss and gradients.
      shift: added to the loss; does not change gradients.
      after: added to the gradients after they are unscaled.
      abandoned: the script goes on to the next micro-batch before it applies the gradients.
    """

    kind: str
    factor: float
    shift: float
    after: float
    abandoned: bool

    @property
    def gradients(self):
        """Gradients by variable; NaN if they must not be applied."""
        scaled = self.kind not in ("by hand", "plain")
        bad = not np.isfinite(self.factor) or not np.isfinite(self.after)
        bad |= self.factor == TOO_LARGE and self.kind != "plain"
        bad |= scaled and not np.isfinite(self.shift)
        clips = self.kind == "clipped"
        bad |= clips and abs(self.factor) > 1e20  # finite gradients, whose norm is infinite
        slope = np.float32(np.nan if bad else self.factor) * SLOPES
        if clips and not bad:
            slope = slope / max(1.0, np.sqrt(2 * np.square(slope).sum()))
        return dict.fromkeys(HEADS[self.kind], slope)


def sequences(kinds, abandon, afters=True):
    """Return a strategy of (micro-batches, micro-batches per update)."""
    good, bad = [0.5, 1.0, -1.0, 2.0], [np.inf, np.nan, TOO_LARGE]

    def micro(kind):
        others = {"plain": [np.nan], "clipped": [*bad, 1e25]}
        factors = good * 4 + others.get(kind, bad)
        after = afters and kind in ("head", "clipped")
        return st.builds(
            Micro, st.just(kind), st.sampled_from(factors), st.sampled_from([0.0] * 8 + [np.inf]),
            st.sampled_from([0.0] * 8 + [np.nan] * after),
            st.sampled_from([False] * 4 + [True] * (abandon and kind != "plain")),
        )  # fmt: skip

    batches = st.lists(st.sampled_from(kinds).flatmap(micro), min_size=6, max_size=12)
    return st.tuples(batches, st.integers(1, 3))


def checked(strategy, check):
    """Return two tests of ``check``: 25 examples of the strategy, and a thousand, for ``long``."""

    def test(examples):
        phases = (Phase.explicit, Phase.generate)  # shrinking would take minutes
        options = settings(
            max_examples=examples, phases=phases, suppress_health_check=list(HealthCheck)
        )

        def random_sequences(case):
            check(case)

        return options(given(case=strategy)(random_sequences))

    return test(25), pytest.mark.long(test(1000))


def scale():
    """Return the loss scale of all sequences."""
    return DynamicLossScale(8.0, growth_interval=2, minimum=2.0, maximum=64.0)


class Reference:
    """State after each micro-batch; ``pending`` are those since the last update."""

    def __init__(self, window, clips_always=False):
        self.window, self.scale, self._clips_always = window, scale(), clips_always
        self.weights = {name: np.ones(2, np.float32) for name in "eab"}
        self.slots = {name: np.zeros(2, np.float32) for name in "eab"}
        self.averages = self._before = dict.fromkeys(HEADS, np.float32(0.0))
        self.applied = self.skipped = 0
        self.pending = []

    def step(self, micro):
        """Add a micro-batch; return the decision, True within a window."""
        if micro.abandoned:
            return True
        if not self.pending:
            self._before = dict(self.averages)
        self.pending.append(micro)
        if np.isfinite(list(micro.gradients.values())).all():
            average = self.averages[micro.kind]
            self.averages[micro.kind] = np.float32(0.5) * (average + np.float32(micro.factor))
        if len(self.pending) < self.window:
            return True
        means = {}
        for gradients in (each.gradients for each in self.pending):
            for name, gradient in gradients.items():
                means[name] = means.get(name, 0.0) + gradient / self.window
        self.pending = []
        finite = all(np.isfinite(mean).all() for mean in means.values())
        self.scale = self.scale.adjust(np.bool_(finite))
        self.applied, self.skipped = self.applied + finite, self.skipped + (not finite)
        if not finite:
            self.averages = self._before
            return False
        norm = np.sqrt(sum(np.square(mean).sum() for mean in means.values()))
        for name, mean in means.items():
            mean = mean / max(1.0, norm / CLIP) if self._clips_always else mean
            self.slots[name] = MOMENTUM * self.slots[name] - RATE * mean
            self.weights[name] = self.weights[name] + self.slots[name]
        return True


def follow(case, train, clips_always=False):
    """Compare training with ``Reference`` after each micro-batch.

    Args:
      case: of ``sequences``.
      train: trains on a micro-batch; returns its decision, the weights by name, the numbers of
        applied and skipped steps, the loss scale, its counter, and moving averages by kind.
      clips_always: whether each update is clipped.

    Returns:
      True if sums over micro-batches must be zero now.
    """
    batches, window = case
    reference = Reference(window, clips_always)
    for micro in batches:
        finite, weights, state, averages = train(micro)
        assert bool(finite) == reference.step(micro)
        scale, counter = float(reference.scale.loss_scale), int(reference.scale.counter)
        expected = [reference.applied, reference.skipped, scale, counter]
        assert [float(value) for value in state] == expected
        for name, weight in weights.items():
            np.testing.assert_allclose(weight, reference.weights[name], rtol=1e-5, atol=1e-6)
        assert all(average == reference.averages[kind] for kind, average in averages.items())
    return window > 1 and not reference.pending
