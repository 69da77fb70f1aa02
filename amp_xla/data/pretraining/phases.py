"""Batches of short sequences, then of long ones: how BERT was trained for less."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from amp_xla.data.batches.protocol import Batch
from amp_xla.data.pretraining.masking import Masking
from amp_xla.data.pretraining.prepared import Joined, Manifest, Sequences
from amp_xla.data.pretraining.stream import Stream
from amp_xla.data.text.tokenizer import Tokenizer

_HELDOUT_ROWS = 16  # of a batch to evaluate: the same for any global batch and number of ranks


class Phase(NamedTuple):
    """Sequences of ``length`` tokens, ``predicted`` of them, to train on and held out."""

    length: int
    predicted: int
    batches: Stream
    held: Stream

    def describe(self) -> str:
        """Return the number of updates, passes and predicted positions."""
        return (
            f"{self.batches.steps_per_epoch()} updates = {self.batches.passes:.1f} passes; "
            f"{self.predicted} of {self.length} positions predicted"
        )


def read(
    data: Manifest,
    tokenizer: Tokenizer,
    plan: Sequence[Tuple[int, int]],
    size: int,
    heldout: int,
    objective: str,
    mask: str,
    mask_rate: float,
    seed: int,
) -> List[Phase]:
    """A run's phases.

    Args:
      data: the prepared text.
      tokenizer: its.
      plan: (tokens a sequence, updates) of each phase; the first one's are as prepared, the
        others are joined of those.
      size: sequences a global batch.
      heldout: held-out sequences to evaluate on, at most; where they are longer, as many tokens.
      objective, seed: as for ``Stream``.
      mask, mask_rate: as ``unit`` and ``rate`` for ``Masking``.

    Raises:
      DataError: a length is no multiple of the prepared one, or there is nothing to read.
    """
    options: Dict[str, Any] = dict(objective=objective, sep_id=tokenizer.sep_id)
    found: List[Phase] = []
    for length, batches in plan:
        texts: List[Any] = [Sequences(data), Sequences(data, "heldout")]
        if found:
            texts = [Joined(text, length) for text in texts]
        masking = Masking.of(tokenizer, length, mask_rate, mask, seed)
        # The held-out masks have a seed of their own: runs with different seeds are comparable.
        fixed = dataclasses.replace(masking, seed=0)
        most = min(heldout * plan[0][0] // length, len(texts[1]))
        rows = min(size, _HELDOUT_ROWS)
        found.append(
            Phase(
                length,
                masking.positions if objective == "mlm" else length - 1,
                Stream(texts[0], masking, size, batches, seed=seed, **options),
                Stream(
                    texts[1], fixed, rows, most // rows or None, seed=0, shuffle=False, **options
                ),
            )
        )
    return found


def in_turn(phases: Sequence[Phase]) -> Any:
    """The micro-batches to train on, of all phases: a ``BatchSource``."""
    streams = [phase.batches for phase in phases]
    return Phases(*streams) if len(streams) > 1 else streams[0]


class Phases:
    """One stream's micro-batches, then another's; ``BatchSource``'s protocol.

    Steps are counted through, so a run resumes anywhere, before the border, after it, or on it.

    Args:
      first, second: as many sequences a micro-batch in both.
    """

    padding_share = 0.0

    def __init__(self, first: Stream, second: Stream) -> None:
        self._streams = (first, second)
        self.border = first.steps_per_epoch()

    @property
    def shapes(self) -> List[Tuple[int, int]]:
        """(B, L) of both."""
        return [shape for stream in self._streams for shape in stream.shapes]

    def steps_per_epoch(self, epoch: int = 0) -> int:
        """Of both together."""
        return sum(stream.steps_per_epoch() for stream in self._streams)

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """Micro-batches ``start``, ``start + 1``, ... of the run."""
        first, second = self._streams
        if start < self.border:
            yield from first.epoch(epoch, start)
        yield from second.epoch(epoch, max(start - self.border, 0))
