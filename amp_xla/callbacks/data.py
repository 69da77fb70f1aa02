"""The batches of ``fit`` from any position on, in an order that a resumed run repeats.

A position is the number of a batch, counted from 0 over the whole run. While a batch is read,
``numpy.random`` and ``random`` have separate states, seeded from the run's seed and the position,
so that shuffled data repeat. The script's own states do not change. A checkpoint has a hash of the
data that were read, which a resumed run compares.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Dict, Iterator, Mapping, Optional

import numpy as np

from amp_xla import backend
from amp_xla.backend import keras
from amp_xla.callbacks import script_walk
from amp_xla.callbacks.random_states import apart, restored, seeded
from amp_xla.callbacks.script_values import holds_generator
from amp_xla.errors import DataError, UnsupportedError
from amp_xla.process.progress import note
from amp_xla.process.world import world

ONE_EPOCH = sys.maxsize  # steps of a generator of validation data: it is seeded once, and may end


def source(model: Any, given: Mapping[str, Any], initial_epoch: int) -> Any:
    """Return the source of the batches that were passed to ``fit``.

    Args:
      given: the arguments of ``fit`` or ``fit_generator`` by name.
      initial_epoch: epoch in which the run began.

    Raises:
      UnsupportedError, DataError: the order of such data cannot be repeated; or there are no data.
    """
    data = given["generator"] if "generator" in given else given["x"]
    steps = given["steps_per_epoch"]
    if isinstance(data, keras.utils.Sequence):
        # With workers=0 Keras does not shuffle.
        shuffle = bool(given["shuffle"]) and given["workers"] > 0
        return Sequences(data, steps, shuffle)
    if inspect.isgenerator(data):
        if not steps:
            raise UnsupportedError("fit with a generator needs steps_per_epoch")
        return Generator(data, steps, first=initial_epoch * steps)
    tf = backend.tensorflow()
    leaves = [] if data is None else tf.nest.flatten(data)
    arrays = all(isinstance(x, (int, float)) or hasattr(x, "__array__") for x in leaves)
    if leaves and arrays and not steps and not any(map(tf.is_tensor, leaves)):
        return Arrays(model, given)
    raise UnsupportedError(
        f"data of type {type(data).__name__}{' with steps_per_epoch' if steps else ''}; Run allows "
        f"a keras.utils.Sequence, a generator with steps_per_epoch, or arrays without "
        f"steps_per_epoch"
    )


def digest(arrays: Any) -> str:
    """Return the SHA-256 of nested arrays."""
    total = hashlib.sha256()
    for leaf in backend.tensorflow().nest.flatten(arrays):
        array = np.ascontiguousarray([] if leaf is None else leaf)
        total.update(f"{array.dtype}{array.shape}".encode())
        total.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.data)
    return total.hexdigest()


class Sequences:
    """Batches of a ``keras.utils.Sequence``; a resume rereads only batch 0 and the last batch read.

    Args:
      sequence: the data. Its ``on_epoch_end`` is called after each pass, and again on resume.
      steps: batches per epoch of ``fit``; None = the length of ``sequence``.
      shuffle: whether each pass takes the batches in a new order.
    """

    def __init__(self, sequence: Any, steps: Optional[int], shuffle: bool) -> None:
        self.sequence, self._shuffle = sequence, shuffle
        self._count = len(sequence)  # Keras, too, asks once
        if not self._count:
            raise DataError(f"{type(sequence).__name__} has no batches: its length is 0")
        self.steps = steps or self._count
        self._ended = 0  # passes whose ``on_epoch_end`` was called
        self.example: Any = None  # a batch that is not for training
        self._place: Any = None

    def identity(self, seed: int) -> Dict[str, Any]:
        """Return what must be the same on resume: length, order, hash of the first batch."""
        with restored():
            seeded(seed, 0, 0)
            self.example = self.sequence[0]
        first = digest(self.example)
        return {"batches": self._count, "shuffle": self._shuffle, "first batch": first}

    def batches(self, seed: int, position: int) -> Iterator[Any]:
        """Return the batches from ``position`` on, as the sequence returns them."""
        with restored():
            self._end_passes(seed, position)
        return (self._batch(seed, each) for each in itertools.count(position))

    def _batch(self, seed: int, position: int) -> Any:
        self._end_passes(seed, position)
        passes, index = divmod(position, self._count)
        order = np.arange(self._count)
        if self._shuffle:
            np.random.RandomState([seed, passes]).shuffle(order)
        self._last = self._read(int(order[index]), seed, passes, index)
        return self._last

    def hashed(self, again: bool) -> Optional[str]:
        """Return the hash of the last batch, after reading it a second time if ``again``."""
        if self._place is None:
            return None
        with restored():
            return digest(self._read(*self._place) if again else self._last)

    def _read(self, index: int, *numbers: int) -> Any:
        self._place = index, *numbers
        seeded(*numbers)  # for sequences that draw random numbers in a batch
        return self.sequence[index]

    def _end_passes(self, seed: int, position: int) -> None:
        for end in range(self._ended, position // self._count):
            seeded(seed, end)
            self.sequence.on_epoch_end()
            self._ended = end + 1


class Generator:
    """Batches of a generator; random numbers are seeded at the start of each epoch.

    A resumed run starts bert4keras' ``DataGenerator.forfit()`` at the epoch to continue, if each
    epoch is one pass over its data. Any other generator is read again from its first batch on.

    Attributes:
      first: position of the generator's first batch.
      read: position after the last batch yielded; before the first one, the argument ``read``.
    """

    def __init__(self, generator: Any, steps: int, read: int = 0, first: int = 0) -> None:
        self._generator, self.steps, self.read, self.first = generator, steps, read, first
        self._hash = ""

    def identity(self, seed: int) -> Dict[str, Any]:
        """Return an empty dictionary, because a generator's first batch cannot be read twice."""
        return {}

    def batches(self, seed: int, position: int) -> Iterator[Any]:
        """Yield the batches from ``position`` on; raise DataError if they end too early."""
        starts_over = self.starts_over()
        number = position // self.steps * self.steps if starts_over else self.first
        if position > number:
            note(f"skipping {position - number} batches of the generator that were read before")
        while True:
            if number % self.steps == 0:
                seeded(seed, number // self.steps)
                self._hash = "" if starts_over else self._hash
            try:
                batch = next(self._generator)
            except StopIteration:
                if self.steps == ONE_EPOCH:  # Keras warns of it
                    return
                raise DataError(
                    f"the generator ended after {number - self.first} batches; it must yield "
                    f"batches for all epochs, e.g. in `while True:` or by bert4keras' forfit()"
                ) from None
            number += 1
            self._hash = hashlib.sha256(f"{self._hash}{digest(batch)}".encode()).hexdigest()
            if number > position:
                self.read = number
                yield batch

    def hashed(self, again: bool) -> str:
        """Return the hash of the batches read: of this epoch if ``starts_over()``, else of all."""
        return self._hash

    def starts_over(self) -> bool:
        """Return whether this is bert4keras' ``forfit()`` at its start, with one pass per epoch."""
        known = backend.bert4keras("snippets").DataGenerator
        frame, code = self._generator.gi_frame, self._generator.gi_code
        if frame is None or code is not known.forfit.__code__:
            return False
        fresh = inspect.getgeneratorstate(self._generator) == inspect.GEN_CREATED
        return fresh and frame.f_locals["self"].steps == self.steps


class Arrays:
    """Arrays, from which Keras itself cuts batches; with ``shuffle``, each epoch reorders the rows.

    Args:
      given: the arguments of ``fit`` by name.
    """

    def __init__(self, model: Any, given: Mapping[str, Any]) -> None:
        size = model._validate_or_infer_batch_size(given["batch_size"], None, given["x"])
        self._size, self._shuffle, self._model = size, bool(given["shuffle"]), model
        split = given["validation_split"] or 0.0
        # As in Keras' fit, which uses this result.
        self._data = model._standardize_user_data(
            given["x"], given["y"], sample_weight=given["sample_weight"],
            class_weight=given["class_weight"], batch_size=size, check_steps=True,
            steps_name="steps_per_epoch", validation_split=split, shuffle=given["shuffle"],
        )  # fmt: skip
        nest = backend.tensorflow().nest
        self._arrays = [array for array in nest.flatten(self._data) if array is not None]
        unknown = [type(array).__name__ for array in self._arrays if type(array) is not np.ndarray]
        if unknown:
            raise UnsupportedError(f"data of type {unknown[0]}; Run allows dense arrays")
        held_out = split if 0.0 < split < 1.0 and not given["validation_data"] else 0.0
        rows = len(self._arrays[0])
        self._samples = int(rows * (1.0 - held_out))
        if not self._samples:
            part = f", all for validation (validation_split={split})" if rows else ""
            raise DataError(f"fit got {rows} samples{part}; at least 1 is needed to train on")
        self.steps = -(-self._samples // size)
        self._fed = self._arrays
        if self._shuffle:
            self._data = nest.map_structure(lambda a: a if a is None else a.copy(), self._data)
            self._fed = [array for array in nest.flatten(self._data) if array is not None]

    def identity(self, seed: int) -> Dict[str, Any]:
        """Return what must be the same on resume: hash of the arrays, batch size, order."""
        return {
            "arrays": digest(self._arrays), "samples": self._samples, "batch_size": self._size,
            "shuffle": self._shuffle,
        }  # fmt: skip

    def sample_weights(self, model: Any, class_weight: Any) -> Any:
        """Return the sample weights as Keras has standardized them."""
        return self._data[2]

    def begin_epoch(self, seed: int, epoch: int) -> None:
        """Put the rows in the order of ``epoch``."""
        if not self._shuffle:
            return
        order = np.arange(self._samples)
        np.random.RandomState([seed, epoch]).shuffle(order)
        for array, fed in zip(self._arrays, self._fed):
            np.take(array, order, axis=0, out=fed[: self._samples])

    def arguments(self, given: Mapping[str, Any]) -> Dict[str, Any]:
        """Return the arguments of ``fit``, changed so that its data are this object's arrays."""

        def standardized(*args: Any, **kwargs: Any) -> Any:
            self.close()  # Keras standardizes the validation data next
            return self._data

        vars(self._model)["_standardize_user_data"] = standardized
        return {**given, "shuffle": False}

    def state(self, ended: bool) -> Dict[str, Any]:
        """Return an empty dictionary, because ``identity`` compares all rows."""
        return {}

    def read_ahead(self) -> None:
        """Do nothing, because all rows are in memory."""

    wait = compare = read_ahead

    def close(self) -> None:
        """Restore the model's ``_standardize_user_data``."""
        vars(self._model).pop("_standardize_user_data", None)


class Feed:
    """A generator of batches for Keras; the next batch is read while a step runs.

    Args:
      source: ``Sequences`` or ``Generator``.
      position: position of the first batch to train on.
      skip: number of batches of the resumed epoch that were trained before.
      end: position after the last batch to train on.
      before: result of ``state`` in the checkpoint from which the run continues, or empty.
    """

    def __init__(
        self, source: Any, seed: int, position: int, skip: int, end: int, before: Mapping[str, Any]
    ) -> None:
        self._source, self._steps, self._position = source, source.steps, position
        self._skip, self._before = skip, before.get("batch")
        self._example = getattr(source, "example", None)
        slots, _ = script_walk.walk({"": getattr(source, "sequence", None)})
        # A checkpoint has the states of random generators after the last batch that was trained.
        self._draws = any(holds_generator(value) for value, _ in slots.values())
        # A generator that can start at an epoch need not read the epoch before.
        starts = isinstance(source, Generator) and source.starts_over()
        if position >= end or (starts and not skip):
            self._before = None
        self._trained = self._before is not None and not before["ahead"]
        # A complete run reads its last batch again: another fit finds the data as it left them.
        begin = max(position - (self._trained or position >= end), 0)
        self._batches = apart(source.batches(seed, begin))
        self._pool = ThreadPoolExecutor(1)
        self._ahead: Optional[Future] = None
        if position >= end or self._example is None:  # ``FitStep`` needs a batch
            self._example = self._keep(next(self._batches))

    def state(self, ended: bool) -> Dict[str, Any]:
        """Return the last batch's hash, and whether the next batch has been read ahead.

        If the epoch has ``ended``, the last batch of a ``Sequence`` is read again for the hash.
        """
        return {"batch": self._source.hashed(ended), "ahead": self._ahead is not None}

    def sample_weights(self, model: Any, class_weight: Any) -> Any:
        """Return the sample weights of a batch as Keras standardizes them."""
        first = self._example if isinstance(self._example, tuple) else (self._example,)
        return model._standardize_user_data(*first, class_weight=class_weight)[2]

    def begin_epoch(self, seed: int, epoch: int) -> None:
        """Do nothing, because the source already yields its batches in the right order."""

    def arguments(self, given: Mapping[str, Any]) -> Dict[str, Any]:
        """Return the arguments of ``fit``, with this feed as its data."""
        self._alone = self._draws or not given["workers"]  # without workers data may use the model
        changes = {"workers": 0, "use_multiprocessing": False, "shuffle": False}
        data = "generator" if "generator" in given else "x"
        return {**given, **changes, data: self._generator(), "steps_per_epoch": self._steps}

    def _generator(self) -> Iterator[Any]:
        """Yield the batches for ``fit``.

        Keras starts a resumed epoch with its first batch. Instead of each batch that was trained
        before, Keras gets an example batch, which ``FitStep`` skips.
        """
        for _ in range(self._skip):
            yield self._example
        while True:
            yield self._next()
            self._position += 1

    def compare(self) -> None:
        """Read the last batch before the checkpoint again; warn if its hash differs."""
        if self._before is None:
            return
        batch = self._next()
        restarted = self._draws and world().rank == 0  # other ranks' data are not in the checkpoint
        if self._source.hashed(False) != self._before and not restarted:
            note(
                f"warning: batch {self._position + (not self._trained)} of the data is not the "
                f"same as before the checkpoint: a resume is exact only if data depend on nothing "
                f"but their files, numpy.random and random",
                ranks=world().size,
            )
        if not self._trained:
            self._keep(batch)

    def _next(self) -> Any:
        ahead, self._ahead = self._ahead, None
        return next(self._batches) if ahead is None else ahead.result()

    def _keep(self, batch: Any) -> Any:
        self._ahead = Future()
        self._ahead.set_result(batch)
        return batch

    def read_ahead(self) -> None:
        """Start reading the next batch; do nothing at an epoch's end, where callbacks come first.

        A second call in the same step, which ``train_on_batch`` in a callback causes, does nothing.
        """
        if self._ahead is None and not self._alone and (self._position + 1) % self._steps:
            self._ahead = self._pool.submit(next, self._batches)

    def wait(self) -> None:
        """Wait until no batch is being read, so that random numbers are drawn in a fixed order."""
        if self._ahead is not None:
            self._ahead.exception()

    def close(self) -> None:
        self._pool.shutdown()
