"""The batches of ``fit``, from any position on, in an order that a resumed run repeats.

A position is the number of a batch, counted from 0 over the whole run. ``numpy.random`` and
``random`` are seeded from the run's seed and the position, so that data shuffled with them repeat.
"""

from __future__ import annotations

import inspect
import random
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

import numpy as np
from typing_extensions import Protocol

from amp_xla import backend
from amp_xla.backend import keras
from amp_xla.errors import DataError, UnsupportedError
from amp_xla.process.progress import note


class Source(Protocol):
    """Batches that can be read from any position on.

    Attributes:
      steps: batches per epoch of ``fit``.
    """

    steps: int

    def batches(self, seed: int, position: int) -> Iterator[Any]:
        """Yield the batches from ``position`` on, as tuples for Keras."""


def source(given: Mapping[str, Any]) -> Source:
    """Return the source of the batches that were passed to ``fit``.

    Args:
      given: the arguments of ``fit`` or ``fit_generator`` by name.

    Raises:
      UnsupportedError: the order of this kind of data cannot be repeated.
    """
    data = given["generator"] if "generator" in given else given["x"]
    steps = given["steps_per_epoch"]
    if isinstance(data, keras.utils.Sequence):
        # With workers=0 Keras does not shuffle.
        shuffle = bool(given["shuffle"]) and given["workers"] > 0
        return Sequences(data, steps or len(data), shuffle)
    if inspect.isgenerator(data):
        if not steps:
            raise UnsupportedError("fit with a generator needs steps_per_epoch")
        return Generator(data, steps)
    arrays = (data, given.get("y"), given.get("sample_weight"))
    leaves = backend.tensorflow().nest.flatten(data)
    if leaves and all(isinstance(leaf, np.ndarray) for leaf in leaves) and not steps:
        return Arrays(
            arrays, given["batch_size"] or 32, bool(given["shuffle"]), given["validation_split"]
        )
    raise UnsupportedError(
        f"data of type {type(data).__name__}{' with steps_per_epoch' if steps else ''}; Run allows "
        f"a keras.utils.Sequence, a generator with steps_per_epoch, or numpy arrays without "
        f"steps_per_epoch"
    )


def _seed(*numbers: int) -> None:
    np.random.seed(list(numbers))
    random.seed("/".join(map(str, numbers)))


class Sequences:
    """Batches of a ``keras.utils.Sequence``; a resumed run does not read earlier batches again.

    Args:
      sequence: its ``on_epoch_end`` is called after each pass; a resumed run repeats the calls.
      steps: batches per epoch of ``fit``; may differ from the length of ``sequence``.
      shuffle: whether each pass takes the batches in a new order.
    """

    def __init__(self, sequence: Any, steps: int, shuffle: bool) -> None:
        self._sequence, self.steps, self._shuffle = sequence, steps, shuffle

    def batches(self, seed: int, position: int) -> Iterator[Any]:
        ended = 0
        while True:
            for end in range(ended, position // len(self._sequence)):
                _seed(seed, end)
                self._sequence.on_epoch_end()
                ended = end + 1
            count = len(self._sequence)
            passes, index = divmod(position, count)
            order = np.arange(count)
            if self._shuffle:
                np.random.RandomState([seed, passes]).shuffle(order)
            _seed(seed, passes, index)  # for sequences that draw random numbers in a batch
            yield self._sequence[int(order[index])]
            position += 1


class Generator:
    """Batches of a generator, which is seeded at the start of each epoch.

    bert4keras' ``DataGenerator.forfit()`` with ``steps`` batches per pass can start at any epoch. A
    resumed run reads any other generator again from its first batch.
    """

    def __init__(self, generator: Any, steps: int) -> None:
        self._generator, self.steps = generator, steps

    def batches(self, seed: int, position: int) -> Iterator[Any]:
        number = position // self.steps * self.steps if self._starts_over() else 0
        if position - number:
            note(f"skipping {position - number} batches of the generator that were trained before")
        while True:
            if number % self.steps == 0:
                _seed(seed, number // self.steps)
            try:
                batch = next(self._generator)
            except StopIteration:
                raise DataError(
                    f"the generator ended after {number} batches; it must yield batches for all "
                    f"epochs, e.g. in `while True:` or by bert4keras' forfit()"
                ) from None
            number += 1
            if number > position:
                yield batch

    def _starts_over(self) -> bool:
        """Return whether each epoch is exactly one pass of a new bert4keras ``DataGenerator``."""
        known = backend.bert4keras("snippets").DataGenerator
        frame, code = self._generator.gi_frame, self._generator.gi_code
        if frame is None or code is not known.forfit.__code__:
            return False
        fresh = inspect.getgeneratorstate(self._generator) == inspect.GEN_CREATED
        return fresh and frame.f_locals["self"].steps == self.steps


class Arrays:
    """Batches of NumPy arrays.

    Args:
      arrays: inputs, targets and sample weights, each None, an array, or nested arrays.
      size: samples per batch.
      shuffle: whether each epoch takes the samples in a new order.
      held_out: share of the samples, taken from the end, that is used for validation.

    Attributes:
      validation: arrays of the held-out samples; None if there are none.
    """

    def __init__(
        self, arrays: Tuple[Any, ...], size: int, shuffle: bool, held_out: float = 0.0
    ) -> None:
        while arrays[-1] is None:
            arrays = arrays[:-1]
        self._size, self._shuffle = size, shuffle
        self._samples = int(len(backend.tensorflow().nest.flatten(arrays)[0]) * (1.0 - held_out))
        self._arrays = _rows(arrays, slice(self._samples))
        self.validation = _rows(arrays, slice(self._samples, None)) if held_out else None
        self.steps = -(-self._samples // size)

    def batches(self, seed: int, position: int) -> Iterator[Any]:
        while True:
            epoch, index = divmod(position, self.steps)
            order = np.arange(self._samples)
            if self._shuffle:
                np.random.RandomState([seed, epoch]).shuffle(order)
            for first in range(index * self._size, self._samples, self._size):
                yield _rows(self._arrays, order[first : first + self._size])
            position = (epoch + 1) * self.steps


def _rows(arrays: Any, rows: Any) -> Any:
    return backend.tensorflow().nest.map_structure(lambda array: array[rows], arrays)


class Feed:
    """The batches as a generator for Keras; reads the next batch while a step runs.

    Args:
      source: source of the batches.
      seed: seed of the run.
      position: position of the first batch to train on.

    Attributes:
      first: the batch at ``position``.
      batch: the batch of the current step.
    """

    def __init__(self, source: Source, seed: int, position: int) -> None:
        self._steps, self._position = source.steps, position
        self._batches = source.batches(seed, position)
        self._pool = ThreadPoolExecutor(1)
        self._ahead: Optional[Future] = None
        self.batch = self._first = next(self._batches)

    @property
    def first(self) -> Tuple[Any, ...]:
        """The first batch: inputs; targets and sample weights if there are any."""
        return self._first if isinstance(self._first, tuple) else (self._first,)

    def generator(self) -> Iterator[Any]:
        """Yield the batches for ``fit``.

        Keras starts a resumed epoch with its first batch. In place of the batches that were trained
        before, this repeats the first one; ``FitStep.skip`` does not train on them.
        """
        for _ in range(self._position % self._steps):
            yield self._first
        while True:
            yield self.batch
            self._position += 1
            ahead, self._ahead = self._ahead, None
            self.batch = next(self._batches) if ahead is None else ahead.result()

    def read_ahead(self) -> None:
        """Start reading the next batch, unless the epoch ends here: then callbacks come first."""
        if (self._position + 1) % self._steps:
            self._ahead = self._pool.submit(next, self._batches)

    def wait(self) -> None:
        """Wait until no batch is being read, so that random numbers are drawn in a fixed order."""
        if self._ahead is not None:
            self._ahead.exception()

    def close(self) -> None:
        self._pool.shutdown()


def arguments(source: Source, feed: Feed, given: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the arguments of ``fit``, changed so that it takes its batches from ``feed``."""
    changes: Dict[str, Any] = {"workers": 0, "use_multiprocessing": False, "shuffle": False}
    changes["steps_per_epoch"] = source.steps
    none = {"y": None, "sample_weight": None, "batch_size": None, "validation_split": 0.0}
    changes.update((name, value) for name, value in none.items() if name in given)
    if getattr(source, "validation", None) is not None:
        changes["validation_data"] = source.validation  # type: ignore[attr-defined]
    changes["generator" if "generator" in given else "x"] = feed.generator()
    return {**given, **changes}
