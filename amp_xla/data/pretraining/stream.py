"""Pretraining batches by position: which sequences, in what order, with which masks.

Position p of a run is sequence ``p % n`` of pass ``p // n``, in an order that is a function of
(seed, pass); masks are a function of (seed, pass, sequence). So a run resumes at any step without
replaying the ones before. Sequences are read in runs of ``BLOCK`` neighbours, ``GROUP`` blocks at
a time, which disks and network file systems like; the order within a group is a full shuffle.
"""

from __future__ import annotations

import queue
import threading
from typing import Any, Iterator, List, Optional, Tuple, Union

import numpy as np

from amp_xla.data.batches.order import permutation, uniform
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.pretraining.masking import Masking
from amp_xla.data.pretraining.prepared import Joined, Sequences
from amp_xla.errors import DataError

BLOCK, GROUP = 64, 256  # 16,384 sequences are shuffled among each other; 5 MB at 128 tokens
AHEAD = 4  # batches that are ready before they are asked for
OBJECTIVES = ("mlm", "lm", "unilm")


class Order:
    """The order of ``n`` sequences in one pass; ``locate`` tells where a position leads."""

    def __init__(self, n: int, seed: int, epoch: int) -> None:
        self._n, self._seed, self._epoch = n, seed, epoch
        blocks = -(-n // BLOCK)
        self._blocks = permutation(blocks, seed, epoch, 0)
        sizes = np.minimum(BLOCK, n - self._blocks * BLOCK)
        groups = np.add.reduceat(sizes, np.arange(0, blocks, GROUP))
        self._first = np.concatenate([[0], np.cumsum(groups)])

    def group_at(self, position: int) -> int:
        """Which group a position lies in."""
        return int(np.searchsorted(self._first, position, side="right")) - 1

    def bounds(self, group: int) -> Tuple[int, int]:
        """First position of a group, and of the one after it."""
        return int(self._first[group]), int(self._first[group + 1])

    def runs(self, group: int) -> List[Tuple[int, int]]:
        """(first sequence, count) of the blocks of a group, to be read in this order."""
        blocks = self._blocks[group * GROUP : (group + 1) * GROUP]
        return [(int(b) * BLOCK, min(BLOCK, self._n - int(b) * BLOCK)) for b in blocks]

    def within(self, group: int) -> np.ndarray:
        """int64: the shuffle of a group's sequences."""
        begin, end = self.bounds(group)
        return permutation(end - begin, self._seed, self._epoch, 1 + group)


class Stream:
    """The micro-batches of a run, or of a held-out split; ``BatchSource``'s protocol.

    Arrays: ``token_ids``, ``segment_ids``: int32 [B, L]; ``positions``, ``labels``: int32 [B, K];
    ``weights``: float32 [B, K], 1 if a label counts; ``sample_ids``: int64 [B].

    Args:
      sequences: where they are read: ``Sequences`` or ``Joined``.
      masking: how they are masked; None for ``lm`` and ``unilm``.
      batch_size: B.
      batches: in the whole run; None = one pass, the last batch filled up with weight 0.
      objective: ``mlm``, ``lm`` (predict every next token) or ``unilm`` (the tokens of the
        second of two segments, whose border is drawn, and is a [SEP]).
      seed: decides order and borders.
      shuffle: False reads in order of the files.
      sep_id: for ``unilm``.

    Raises:
      DataError: there is nothing to read.
    """

    def __init__(
        self,
        sequences: Union[Sequences, Joined],
        masking: Optional[Masking],
        batch_size: int,
        batches: Optional[int] = None,
        objective: str = "mlm",
        seed: int = 1,
        shuffle: bool = True,
        sep_id: int = 0,
    ) -> None:
        if not len(sequences):
            raise DataError("no sequences to read: was anything held out, or prepared?")
        if objective not in OBJECTIVES:
            raise DataError(f"objective {objective!r} is not one of {', '.join(OBJECTIVES)}")
        self._sequences, self._masking = sequences, masking
        self._size, self._objective, self._seed = batch_size, objective, seed
        self._shuffle, self._sep = shuffle, sep_id
        self._once = batches is None
        self._batches = -(-len(sequences) // batch_size) if batches is None else batches
        self._order: Tuple[int, Optional[Order]] = (-1, None)
        self._group: Tuple[Tuple[int, int], Any] = ((-1, -1), None)

    padding_share = 0.0  # documents stand end to end

    @property
    def shapes(self) -> List[Tuple[int, int]]:
        """(B, L): one."""
        return [(self._size, self._sequences.length)]

    @property
    def passes(self) -> float:
        """Over all sequences, in the whole run."""
        return self._batches * self._size / len(self._sequences)

    def steps_per_epoch(self, epoch: int = 0) -> int:
        """All of the run's micro-batches: passes over the data are this class' own affair."""
        return self._batches

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """Micro-batches ``start``, ``start + 1``, ...; made ahead by a thread."""
        return _ahead((self.batch(i) for i in range(start, self._batches)), AHEAD)

    def batch(self, index: int) -> Batch:
        """Micro-batch number ``index`` of the run."""
        n = len(self._sequences)
        begin, end = index * self._size, (index + 1) * self._size
        if self._once:
            end = min(end, n)
        parts = []
        while begin < end:
            stop = min(end, (begin // n + 1) * n)
            parts.append(self._part(begin // n, begin % n, stop - begin))
            begin = stop
        batch = parts[0] if len(parts) == 1 else _joined(parts)
        missing = self._size - len(batch["sample_ids"])
        return _joined([batch, _nothing(batch, missing)]) if missing else batch

    def _part(self, epoch: int, first: int, count: int) -> Batch:
        samples, ids, starts = self._read(epoch, first, count)
        if self._objective == "mlm":
            assert self._masking is not None
            masked = self._masking(ids, starts, epoch, samples)
            return {**masked._asdict(), "segment_ids": np.zeros_like(ids), "sample_ids": samples}
        segments = np.zeros_like(ids)
        if self._objective == "unilm":
            ids, segments = self._two_segments(ids, epoch, samples)
        labels = ids[:, 1:]
        counted = labels != 0
        if self._objective == "unilm":
            counted &= segments[:, 1:] == 1
        columns = np.arange(labels.shape[1], dtype=np.int32)
        positions = np.broadcast_to(columns, labels.shape)
        return {
            "token_ids": ids,
            "segment_ids": segments,
            "positions": positions,
            "labels": labels,
            "weights": counted.astype(np.float32),
            "sample_ids": samples,
        }

    def _two_segments(
        self, ids: np.ndarray, epoch: int, samples: np.ndarray
    ) -> Tuple[np.ndarray, np.ndarray]:
        """Puts a [SEP] at a drawn place; what follows moves one on, the last token drops out."""
        length = ids.shape[1]
        draw = uniform(samples, 1, self._seed, epoch, 63)[:, 0]
        border = 1 + (draw * (length - 2)).astype(np.int64)
        columns = np.arange(length)
        after = columns[None, :] > border[:, None]
        source = columns[None, :] - after
        out = np.take_along_axis(ids, source, 1)
        out[np.arange(len(ids)), border] = self._sep
        # The border itself ends the first segment; padding belongs to neither.
        return out, (after & (out != 0)).astype(np.int32)

    def _read(
        self, epoch: int, first: int, count: int
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(sequence numbers, ids, word starts) of positions ``first`` ... of a pass."""
        if not self._shuffle:
            ids, starts = self._sequences.read(first, count)
            return np.arange(first, first + count), ids, starts
        if self._order[0] != epoch:
            self._order = (epoch, Order(len(self._sequences), self._seed, epoch))
        order = self._order[1]
        assert order is not None
        parts = []
        end = first + count
        while first < end:
            group = order.group_at(first)
            begin, after = order.bounds(group)
            stop = min(end, after)
            numbers, ids, starts = self._load(order, epoch, group)
            parts.append(tuple(a[first - begin : stop - begin] for a in (numbers, ids, starts)))
            first = stop
        return tuple(np.concatenate(arrays) for arrays in zip(*parts))

    def _load(self, order: Order, epoch: int, group: int) -> Any:
        if self._group[0] != (epoch, group):
            runs = order.runs(group)
            read = [self._sequences.read(first, count) for first, count in runs]
            numbers = np.concatenate([np.arange(f, f + c) for f, c in runs])
            shuffle = order.within(group)
            ids = np.concatenate([ids for ids, _ in read])
            starts = np.concatenate([starts for _, starts in read])
            self._group = ((epoch, group), (numbers[shuffle], ids[shuffle], starts[shuffle]))
        return self._group[1]


def _joined(parts: List[Batch]) -> Batch:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _nothing(like: Batch, rows: int) -> Batch:
    """Return ``rows`` rows of padding."""
    batch = {name: array[:1].repeat(rows, 0) for name, array in like.items()}
    batch["weights"] = np.zeros_like(batch["weights"])
    batch["sample_ids"] = np.full(rows, -1, np.int64)
    return batch


def _ahead(batches: Iterator[Batch], depth: int) -> Iterator[Batch]:
    """Draws from ``batches`` in a thread, ``depth`` of them ahead; errors come out in order."""
    ready: Any = queue.Queue(depth)
    stopped = threading.Event()

    def give(item: Tuple[str, Any]) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for batch in batches:
                if not give(("batch", batch)):
                    return
            give(("end", None))
        except BaseException as error:
            give(("error", error))

    thread = threading.Thread(target=work, name="pretraining-batches", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = ready.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
    finally:
        stopped.set()
        thread.join()
