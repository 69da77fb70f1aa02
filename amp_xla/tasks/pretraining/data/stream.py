"""Pretraining batches by position.

With n sequences, position p of a run is sequence ``p % n`` of epoch ``p // n``. The order is a
function of (seed, epoch); masks are a function of (seed, epoch, sequence). So a run resumes at any
step without replaying earlier steps. Blocks of neighbouring sequences are shuffled first, then the
sequences within a group of blocks, so that disks read in long stretches.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
from typing import Iterator, List, Optional, Tuple

import numpy as np
from typing_extensions import Annotated

from amp_xla.config import MAY_CHANGE, within
from amp_xla.data.batches.order import permutation, uniform
from amp_xla.data.batches.protocol import Batch
from amp_xla.errors import DataError
from amp_xla.tasks.pretraining.data.masking import Masking
from amp_xla.tasks.pretraining.data.pool import ahead
from amp_xla.tasks.pretraining.data.prepared import SPLITS, Manifest, Sequences

BLOCK, GROUP = 64, 1 << 14  # sequences per block and per group
AHEAD = 4  # batches that are prepared early
_HELDOUT_ROWS = 16  # maximum rows per held-out batch, for any number of ranks


@dataclasses.dataclass(eq=False)
class Stream:
    """The batches of a run, or of a held-out split: B sequences of L tokens; K are predicted.

    Arrays have the same names with every objective; ``Masking.__call__`` describes them.

    Args:
      sequences: the prepared text.
      masking: masks for ``mlm``; the other objectives use only its tokenizer and seed.
      batch_size, batches: B, and the number of batches.
      objective: ``mlm``, ``lm`` (predict every next token) or ``unilm`` (predict the second of two
        segments, separated by a [SEP] at a random position).
      shuffle: False = order of the files.

    Attributes:
      length: L.
      predicted: K.
    """

    sequences: Sequences
    masking: Masking
    batch_size: int
    batches: int
    objective: str = "mlm"
    shuffle: bool = True

    def __post_init__(self) -> None:
        if not len(self.sequences):
            raise DataError(
                "the prepared training text or held-out text is empty: there are no sequences to "
                "read; prepare more text"
            )
        self.length = length = self.sequences.length
        self.predicted = self.masking.positions(length) if self.objective == "mlm" else length - 1
        self._order = functools.lru_cache(maxsize=2)(self._group)
        self._blocks = functools.lru_cache(maxsize=2)(self._block_order)

    @property
    def shapes(self) -> List[Tuple[int, int]]:
        """(B, L), the shape of all batches."""
        return [(self.batch_size, self.length)]

    def describe(self) -> str:
        """Return a text with the number of updates, epochs and predicted positions."""
        epochs = self.batches * self.batch_size / len(self.sequences)
        return (
            f"{self.batches} updates = {epochs:.1f} epochs; {self.predicted} of {self.length} "
            "positions predicted"
        )

    def steps_per_epoch(self) -> int:
        """Return the number of batches of the run; the training loop sees the run as one epoch."""
        return self.batches

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """Yield batches from ``start`` on, prepared ahead by a thread."""
        with concurrent.futures.ThreadPoolExecutor(1, "pretraining-batches") as thread:
            yield from ahead(thread.submit, self.batch, range(start, self.batches), AHEAD)

    def batch(self, index: int) -> Batch:
        """Return batch ``index`` of the run."""
        positions = np.arange(index * self.batch_size, (index + 1) * self.batch_size)
        epochs, places = np.divmod(positions, len(self.sequences))
        samples = np.array(list(map(self._number, epochs.tolist(), places.tolist())), np.int64)
        # A batch may have sequences of several epochs.
        parts = [self._arrays(e, samples[epochs == e]) for e in np.unique(epochs).tolist()]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _number(self, epoch: int, place: int) -> int:
        if not self.shuffle:
            return place
        group, row = divmod(place, GROUP)
        return int(self._order(epoch, group)[row])

    def _group(self, epoch: int, group: int) -> np.ndarray:
        """Return the shuffled sequence numbers of one group, int64 [at most GROUP]."""
        each = GROUP // BLOCK
        firsts = self._blocks(epoch)[group * each : (group + 1) * each] * BLOCK
        numbers = (firsts[:, None] + np.arange(BLOCK)).reshape(-1)
        numbers = numbers[numbers < len(self.sequences)]
        return numbers[permutation(len(numbers), self.masking.seed, epoch, 1 + group)]

    def _block_order(self, epoch: int) -> np.ndarray:
        """Return the numbers of all blocks in the epoch's order, int64; a short block is last."""
        full, rest = divmod(len(self.sequences), BLOCK)
        order = permutation(full, self.masking.seed, epoch)
        return np.append(order, np.arange(full, full + (rest > 0)))

    def _arrays(self, epoch: int, samples: np.ndarray) -> Batch:
        ids, starts = self.sequences.read(samples)
        if self.objective == "mlm":
            return self.masking(ids, starts, epoch, samples)
        segments = np.zeros_like(ids)
        if self.objective == "unilm":
            ids, segments = self._two_segments(ids, epoch, samples)
        labels = ids[:, 1:]
        weights = labels != 0
        if self.objective == "unilm":
            weights &= segments[:, 1:] == 1
        columns = np.arange(labels.shape[1], dtype=np.int32)
        return {
            "token_ids": ids,
            "segment_ids": segments,
            "positions": np.broadcast_to(columns, labels.shape),
            "labels": labels,
            "weights": weights.astype(np.float32),
            "sample_ids": samples,
        }

    def _two_segments(
        self, ids: np.ndarray, epoch: int, samples: np.ndarray
    ) -> Tuple[np.ndarray, np.ndarray]:
        """Insert [SEP] at a random place of each row, and drop the row's last token.

        Return the new token ids and the segment ids: 1 for tokens after the inserted [SEP].
        """
        length = ids.shape[1]
        random = uniform(samples, 1, self.masking.seed, epoch, 63)[:, 0]
        border = 1 + (random * (length - 2)).astype(np.int64)
        columns = np.arange(length)
        second = columns[None, :] > border[:, None]
        out = np.take_along_axis(ids, columns[None, :] - second, 1)
        out[np.arange(len(ids)), border] = self.masking.tokenizer.sep_id
        return out, (second & (out != 0)).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class LengthOptions:
    """Length of the training."""

    steps: Annotated[int, within(1, 10**9)] = 2000
    """updates in total"""
    phase2_length: Annotated[Optional[int], within(at_least=16)] = None
    """tokens per sequence in a second phase of training; none = only one phase"""
    phase2_share: Annotated[float, within(above=0, below=1)] = 0.1
    """share of the updates in the second phase"""
    global_batch: Annotated[int, within(at_least=1)] = 16
    """sequences per update, over all ranks"""
    micro_batch: Annotated[int, within(at_least=1), MAY_CHANGE] = 16
    """maximum sequences per micro-batch on each rank"""

    def plan(self, length: int) -> List[Tuple[int, int]]:
        """Return (tokens per sequence, updates) of each phase; phase 1 has the prepared length."""
        if self.phase2_length is None:
            return [(length, self.steps)]
        last = round(self.steps * self.phase2_share)
        if not 0 < last < self.steps:
            raise DataError(
                f"--phase2-share {self.phase2_share:g} of --steps {self.steps} leaves a phase "
                "without an update; change one of them"
            )
        return [(length, self.steps - last), (self.phase2_length, last)]

    def accumulation(self, ranks: int) -> int:
        """Return the micro-batches per update on each rank, as few as --micro-batch allows."""
        return -(-self.global_batch // (self.micro_batch * ranks))


def read(
    data: Manifest, lengths: LengthOptions, heldout: int, objective: str, masking: Masking
) -> List[Tuple[Stream, Stream]]:
    """Return training and held-out batches of each phase of a run; see ``Stream``.

    The first phase is evaluated on at most ``heldout`` sequences of held-out text, a later phase on
    the same number of tokens.
    """
    size, plan = lengths.global_batch, lengths.plan(data.settings["length"])
    # Held-out masks are the same in all runs, so that their losses are comparable.
    fixed = dataclasses.replace(masking, seed=0)
    phases: List[Tuple[Stream, Stream]] = []
    for length, batches in plan:
        texts, held = (Sequences(data, split, length) for split in SPLITS)
        train = Stream(texts, masking, size, batches, objective)
        count = min(max(heldout * plan[0][0] // length, 1), len(held))
        rows = max(1, min(size, _HELDOUT_ROWS, count))
        held_out = Stream(held, fixed, rows, count // rows, objective, shuffle=False)
        phases.append((train, held_out))
    return phases


class Phases:
    """The batches of several streams, one stream after another; all have the same batch size."""

    def __init__(self, *streams: Stream) -> None:
        self._streams = streams

    @property
    def shapes(self) -> List[Tuple[int, int]]:
        """(B, L) of each stream."""
        return [shape for stream in self._streams for shape in stream.shapes]

    def steps_per_epoch(self) -> int:
        """Return the number of batches of all streams."""
        return sum(stream.steps_per_epoch() for stream in self._streams)

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """Yield batches from ``start`` on."""
        for stream in self._streams:
            yield from stream.epoch(epoch, start)
            start = max(start - stream.steps_per_epoch(), 0)
