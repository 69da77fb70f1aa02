"""Which rows a step of packed batches has, and which lengths share a row.

Attention over a row costs its length for every token, whatever the samples in it need. So a step
has rows of three lengths, as many of the shorter ones as the samples allow, all laid end to end in
one line of tokens: everything but attention and pooling works token by token.

The plan of an epoch is made once from the histogram of lengths, as in Krell et al., "Efficient
Sequence Packing without Cross-contamination" (arXiv:2107.02027), here by best fit.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla.errors import DataError

GAIN = 0.001  # another slot a row must save this share of all tokens, or it is not worth its cost
# How many positions to attend to cost a token as much as all else in a layer: measured on two
# cores at hidden 512, where rows of 256 spend a fifth of a step on attention.
REST_OF_A_TOKEN = 900
SHORTER = (13 / 16, 9 / 16)  # the other rows' lengths; exact halves are harder to fill
MULTIPLE = 8  # of the shorter rows' lengths: tensor cores want it

Pattern = Tuple[int, ...]  # lengths of the samples of a row, longest first
Blocks = Tuple[Tuple[int, int], ...]  # (rows, length of each), longest first
Plan = Dict[Tuple[int, Pattern], int]  # (length of a row, what is in it) -> how many are so


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a step's line of tokens is cut into rows, and a row into samples.

    Attributes:
      blocks: (rows, length) of the rows that stand in a block, longest first.
      slots: S, most samples of a row.

    Raises:
      DataError: no rows, a number that is not positive, or lengths that do not descend.
    """

    blocks: Blocks
    slots: int

    def __post_init__(self) -> None:
        lengths = [length for _, length in self.blocks]
        numbers = [("slots", self.slots), *(("rows", rows) for rows, _ in self.blocks)]
        for name, size in [*numbers, *(("length", length) for length in lengths)]:
            if size < 1:
                raise DataError(f"{name}={size}; it must be positive")
        if not lengths or lengths != sorted(set(lengths), reverse=True):
            raise DataError(f"lengths of rows {lengths}; one or more, longest first")

    @property
    def rows(self) -> int:
        """R, rows of a step."""
        return sum(rows for rows, _ in self.blocks)

    @property
    def tokens(self) -> int:
        """T, length of the line."""
        return sum(rows * length for rows, length in self.blocks)

    @property
    def row_lengths(self) -> np.ndarray:
        """int64 [R]."""
        rows, lengths = np.array(self.blocks, np.int64).T
        return np.repeat(lengths, rows)

    def piece(self, of: int) -> Layout:
        """That of each of ``of`` pieces: every block's rows are shared out."""
        return Layout(tuple((-(-rows // of), length) for rows, length in self.blocks), self.slots)

    def __str__(self) -> str:
        return " + ".join(f"{rows}x{length}" for rows, length in self.blocks)


def choose_layout(counts: Sequence[int], length: int, batch_size: int) -> Layout:
    """The rows that cost least for steps of about ``batch_size`` samples.

    Args:
      counts: samples of each length, from 0 on.
      length: of the longest rows; a step has one at least.
      batch_size: samples a step.

    Returns:
      The layout, with the fewest slots that cost at most 0.1% more tokens.
    """
    numbers = np.asarray(counts)
    sizes = np.arange(len(numbers))
    tokens = int((numbers * sizes).sum())
    shortest = int(np.flatnonzero(numbers)[0])
    free = length // max(1, shortest)  # as many slots as could ever be used
    cheapest, best, most_steps = math.inf, Layout(((1, length),), free), 0
    for blocks in _candidates(numbers, length, batch_size):
        layout = Layout(blocks, free)
        work = sum(rows * n * (n + REST_OF_A_TOKEN) for rows, n in blocks)
        if -(-tokens // layout.tokens) * work < cheapest:
            steps, _ = pack(counts, layout)
            if steps * work < cheapest:
                cheapest, best = steps * work, layout
                most_steps = math.floor(steps * (1 + GAIN))
    for slots in range(1, free):
        fewer = Layout(best.blocks, slots)
        if best_fit(counts, fewer, most_steps) is not None:
            return fewer
    return best


def _candidates(numbers: np.ndarray, length: int, batch_size: int) -> List[Blocks]:
    """Rows that hold about the tokens of ``batch_size`` samples.

    What no shorter row can hold, and no two of which share a row, says how many of a length there
    must be at least. From there on it is tried.
    """
    steps = numbers.sum() / batch_size
    tokens = float((numbers * np.arange(len(numbers))).sum() / steps)
    lengths = [length]
    for share in SHORTER:
        shorter = -(-int(length * share) // MULTIPLE) * MULTIPLE
        if shorter < lengths[-1]:
            lengths.append(shorter)
    found: List[Blocks] = [((max(1, round(tokens / length)), length),)]
    if len(lengths) < 1 + len(SHORTER):
        return found
    long, middle = (math.ceil(numbers[n + 1 :].sum() / steps) for n in lengths[1:])
    grain = max(1, round(tokens / length) // 12)
    for first in range(max(1, long), max(1, long) + 3 * grain, grain):
        least = max(0, middle - first)
        for second in range(least, least + 4 * grain, grain):
            left = max(0.0, tokens - first * length - second * lengths[1]) / lengths[2]
            for third in sorted({math.floor(left), math.ceil(left)}):
                blocks = zip((first, second, third), lengths)
                found.append(tuple((rows, n) for rows, n in blocks if rows))
    # Steps of another size are not what was asked for.
    near = [b for b in found if 0.9 * tokens <= Layout(b, 1).tokens <= 1.1 * tokens]
    return near or found[:1]


def pack(counts: Sequence[int], layout: Layout) -> Tuple[int, Plan]:
    """The fewest steps that hold the samples (by best fit, so nearly the fewest), and how."""
    tokens = sum(size * count for size, count in enumerate(counts))
    least = max(1, -(-tokens // layout.tokens))
    more = 0
    plan = best_fit(counts, layout, least)
    while plan is None:
        more = 2 * more + 1
        plan = best_fit(counts, layout, least + more)
    steps, too_few = least + more, least + more // 2
    while more and steps - too_few > 1:
        between = (steps + too_few) // 2
        found = best_fit(counts, layout, between)
        if found is None:
            too_few = between
        else:
            steps, plan = between, found
    return steps, plan


def best_fit(counts: Sequence[int], layout: Layout, steps: int) -> Optional[Plan]:
    """Packs counts[l] samples of every length l into the rows of so many steps.

    Best fit decreasing on the histogram: equal rows are handled as one, so the work depends on
    the lengths, not on the number of samples.

    Returns:
      (length of a row, lengths of the samples in it) -> how many rows are so, empty ones among
      them; None where the samples do not fit.
    """
    # Room left -> rows with that room, and how many of each.
    rooms: List[Plan] = [{} for _ in range(layout.blocks[0][1] + 1)]
    for rows, length in layout.blocks:
        rooms[length][length, ()] = rows * steps
    for size in range(len(counts) - 1, 0, -1):
        left = int(counts[size])
        while left:
            room = next((n for n in range(size, len(rooms)) if rooms[n]), None)
            if room is None:
                return None
            (length, held), rows = rooms[room].popitem()
            many = min(room // size, layout.slots - len(held), left)
            taken = min(rows, left // many)
            if rows > taken:
                rooms[room][length, held] = rows - taken
            held += (size,) * many
            # A row whose slots are all taken has no room.
            room = room - size * many if len(held) < layout.slots else 0
            rooms[room][length, held] = rooms[room].get((length, held), 0) + taken
            left -= many * taken
    plan: Plan = {}
    for rows_of_room in rooms:
        for row, rows in rows_of_room.items():
            plan[row] = plan.get(row, 0) + rows
    return plan


def table(plan: Plan, slots: int) -> np.ndarray:
    """int64 [rows, slots]: length of the sample in every slot, 0 = empty. Longest rows first."""
    kinds = sorted(plan.items(), reverse=True)
    table = np.zeros((len(kinds), slots), np.int64)
    for i, ((_, held), _) in enumerate(kinds):
        table[i, : len(held)] = held
    return np.repeat(table, [rows for _, rows in kinds], axis=0)
