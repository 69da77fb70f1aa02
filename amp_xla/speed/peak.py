"""Peak memory of a recipe's step with any batch, measured in a process of its own."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Iterator, List, Sequence, Tuple

from amp_xla.data.batches.options import BatchOptions
from amp_xla.errors import AmpXlaError
from amp_xla.process.fields import part
from amp_xla.speed.child import Request
from amp_xla.speed.measure import Child, ChildEnded
from amp_xla.speed.memory import DoesNotFit, Probe


def packs(recipe_config: Any) -> bool:
    """Whether the recipe packs several samples in a row."""
    batches = part(recipe_config, BatchOptions)
    return batches is not None and batches.packed


def needs_rows_of_one_length(recipe_config: Any) -> None:
    """Raises AmpXlaError where the recipe packs: there the memory model has nothing to vary."""
    if packs(recipe_config):
        raise AmpXlaError(
            "memory is measured by rows of one length, which --packed does not have; leave "
            "--packed out: a packed step of as many tokens takes no more memory"
        )


def longest(shapes: Sequence[Sequence[int]]) -> Tuple[int, int]:
    """(rows, length) of the shape that takes most: the longest rows, of those the most."""
    rows, length = max(shapes, key=lambda shape: (shape[1], shape[0]))
    return rows, length


@dataclasses.dataclass(frozen=True)
class Peak:
    """Measures one combination.

    Attributes:
      recipe, words, precision, xla, address_space: see ``Request``.
      seconds: longest wait for one answer.
      say: called with a line for every measurement.
    """

    recipe: str
    words: Sequence[str]
    precision: str
    xla: str = "off"
    address_space: int = 0
    seconds: float = 900.0
    say: Any = lambda text: None

    def __call__(self, rows: int, length: int) -> int:
        """Bytes at the peak of a few steps of ``rows`` x ``length``.

        Raises:
          DoesNotFit: the memory ran out.
          AmpXlaError: the process ended otherwise.
        """
        with self._child(rows, length) as child:
            child.answer(self.seconds)
            child.ask(self.seconds, do="warm")
            seen = int(child.ask(self.seconds, do="end")["peak_bytes"])
        self.say(f"memory probe {rows}x{length}: {seen / 2**20:.0f} MiB")
        return seen

    def all(self, pairs: Sequence[Tuple[int, int]]) -> List[Probe]:
        """Several, with what was seen."""
        return [(rows, length, self(rows, length)) for rows, length in pairs]

    def shapes(self) -> List[List[int]]:
        """The recipe's own (rows, length); raises as a measurement does."""
        with self._child() as child:
            return list(child.answer(self.seconds)["shapes"])

    @contextlib.contextmanager
    def _child(self, rows: int = 0, length: int = 0) -> Iterator[Child]:
        """A process that is closed afterwards, its untimely end an error of this module."""
        what = f"{rows}x{length}" if rows else "the recipe's own batches"
        child = Child.of(
            Request(self.recipe, tuple(self.words), self.precision, self.xla, rows=rows,
                    length=length, address_space=self.address_space)
        )  # fmt: skip
        try:
            yield child
        except ChildEnded as end:
            self.say(f"memory probe {what}: {end.status}: {end.why}")
            if end.status == "out of memory":
                raise DoesNotFit(f"{what} does not fit the memory: {end.why}") from None
            raise AmpXlaError(
                f"the memory of {what} could not be measured: {end.status}: {end.why}"
            ) from None
        finally:
            child.close()
