"""Training phases: batches of short sequences, then of long ones, as in BERT's pretraining."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from amp_xla.data.batches.protocol import Batch
from amp_xla.data.pretraining.masking import Masking
from amp_xla.data.pretraining.prepared import Joined, Manifest, Sequences
from amp_xla.data.pretraining.stream import Stream
from amp_xla.data.text.tokenizer import Tokenizer

_HELDOUT_ROWS = 16  # rows per held-out batch, for any global batch and number of ranks


class Phase(NamedTuple):
    """Training and held-out batches of ``length`` tokens, ``predicted`` of which are predicted."""

    length: int
    predicted: int
    batches: Stream
    held: Stream

    def describe(self) -> str:
        """Return the number of updates, epochs and predicted positions."""
        return (
            f"{self.batches.steps_per_epoch()} updates = {self.batches.epochs:.1f} epochs; "
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
    """Return the phases of a run.

    Args:
      data: the prepared text.
      tokenizer: its tokenizer.
      plan: (tokens per sequence, updates) of each phase; the first length is the prepared
        one, the others are multiples.
      size: sequences per global batch.
      heldout: most held-out sequences of the first length; later phases use as many tokens.
      objective, seed: as for ``Stream``.
      mask, mask_rate: as ``unit`` and ``rate`` of ``Masking``.

    Raises:
      DataError: a length is not a multiple of the prepared one, or there are no sequences.
    """
    options: Dict[str, Any] = dict(objective=objective, sep_id=tokenizer.sep_id)
    phases: List[Phase] = []
    for length, batches in plan:
        texts: List[Any] = [Sequences(data), Sequences(data, "heldout")]
        if phases:
            texts = [Joined(text, length) for text in texts]
        masking = Masking.of(tokenizer, length, mask_rate, mask, seed)
        # Held-out masks are the same in all runs, so that their losses are comparable.
        fixed = dataclasses.replace(masking, seed=0)
        most = min(heldout * plan[0][0] // length, len(texts[1]))
        rows = min(size, _HELDOUT_ROWS)
        train = Stream(texts[0], masking, size, batches, seed=seed, **options)
        held = Stream(texts[1], fixed, rows, most // rows or None, seed=0, shuffle=False, **options)
        predicted = masking.positions if objective == "mlm" else length - 1
        phases.append(Phase(length, predicted, train, held))
    return phases


def in_turn(phases: Sequence[Phase]) -> Any:
    """Return the training batches of all phases, one phase after the other."""
    streams = [phase.batches for phase in phases]
    return Phases(*streams) if len(streams) > 1 else streams[0]


class Phases:
    """The micro-batches of one stream, then of another, with steps counted through.

    Args:
      first, second: streams with the same number of sequences per micro-batch.
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
        """Return the micro-batches of both."""
        return sum(stream.steps_per_epoch() for stream in self._streams)

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """Yield micro-batches from ``start`` on."""
        first, second = self._streams
        if start < self.border:
            yield from first.epoch(epoch, start)
        yield from second.epoch(epoch, max(start - self.border, 0))
