"""Ranks: processes that train one model together, through Horovod.

A launcher (horovodrun, mpirun, ``make train NP=2``) starts the same command several times. Each
process computes its rows of each batch, gradients are summed over ranks, and all ranks apply the
same update. Only rank 0 writes files, except sharded tables. ``amp_xla.precision.agreement`` sums
tensors, and this module exchanges Python values. Imports TensorFlow only with several ranks.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Callable, List, Optional, Sequence, TypeVar, cast

import numpy as np

from amp_xla import backend
from amp_xla.backend import configuring
from amp_xla.data.batches.protocol import RankShard
from amp_xla.errors import AmpXlaError, RankLost
from amp_xla.process.world import World, stop_with_launcher, world

T = TypeVar("T")

# Horovod's own limit for a rank that does not answer is infinite. With XLA on a GPU a rank may
# compile while others have loaded their programs.
_STALL_SECONDS, _COMPILING_SECONDS = "35", "600"
_DEFAULTS = {
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "20",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": _STALL_SECONDS,
    "HOROVOD_GLOO_TIMEOUT_SECONDS": _STALL_SECONDS,
    "HOROVOD_LOG_LEVEL": "fatal",
    "HOROVOD_DISABLE_GROUP_FUSION": "1",  # fixes the order of additions
}
# Finds the cause in the long error messages of TensorFlow and Horovod.
_CAUSE = re.compile(
    r"connection closed by peer|connection reset by peer|timed out waiting|stalled|"
    r"unhandled (system|cuda) error|has been shut down",
    re.IGNORECASE,
)


class RanksDiffer(AmpXlaError):
    """Variables that must be equal on all ranks differ."""


class Ranks:
    """The processes that train together; one process without a launcher.

    Attributes:
      world: rank, size and host of this process.
      hvd: ``horovod.tensorflow``; None with one process.
      first_size: number of ranks at the start of the run.
      ask: called before each batch of an evaluation, by all ranks; raises ``Stopped`` if one of
        them got a signal.
    """

    def __init__(self, place: World, hvd: Optional[Any] = None) -> None:
        self.world, self.hvd, self.first_size = place, hvd, place.size
        self.ask: Callable[[], None] = lambda: None

    @property
    def several(self) -> bool:
        """Return True with more than one process."""
        return self.world.size > 1

    @property
    def first(self) -> bool:
        """Return True on the rank that writes files."""
        return self.world.rank == 0

    def micro_batches(self, accumulate: int) -> int:
        """Return the number of micro-batches per update and rank.

        ``accumulate`` is the number at the start of the run. A run resumed on fewer ranks has more
        micro-batches per rank, so that no micro-batch is larger than at the start.
        """
        return -(-accumulate * self.first_size // self.world.size)

    def share(self, batches: Any, micro_batches: int = 1) -> Any:
        """Return a ``BatchSource`` of this rank's rows, each batch cut into ``micro_batches``."""
        if self.world.size * micro_batches == 1:
            return batches
        return RankShard(batches, self.world.rank, self.world.size, micro_batches)

    # -- Python values ------------------------------------------------------------------------

    def gather(self, value: T) -> List[T]:
        """Return the JSON-able ``value`` of each rank, in rank order; all ranks must call it.

        Raises:
          RankLost: a rank does not answer.
        """
        if not self.several:
            return [value]
        texts = self.exchange(json.dumps(value).encode())
        return [json.loads(text.decode()) for text in texts]

    def from_first(self, compute: Callable[[], T]) -> T:
        """Return, on all ranks, the JSON-able result of ``compute``, which runs on rank 0 only."""
        return cast(T, self.all_do(lambda: compute() if self.first else None)[0])

    def all_do(self, work: Callable[[], T]) -> List[T]:
        """Run ``work`` on each rank, however long it takes; return the results in rank order.

        Each rank returns after ``work`` has ended on all ranks. ``work`` must not exchange values.
        """
        if not self.several:
            return [work()]
        mine: Future[T] = Future()

        def exchanged() -> List[T]:
            while True:  # Horovod ends ranks that exchange nothing for a while
                done = wait([mine], timeout=1.0).done
                results = self.gather([mine.result()] if done else None)
                if None not in results:
                    return [cast(List[T], result)[0] for result in results]

        with ThreadPoolExecutor(1) as pool:
            exchange = pool.submit(exchanged)
            try:
                mine.set_result(work())
            except BaseException as error:
                mine.set_exception(error)  # also ends the exchange
            return exchange.result()

    def total(self, values: Any) -> Any:
        """Return the sum over ranks of a float64 or int64 array, added in order of ranks."""
        if not self.several:
            return values
        values = np.ascontiguousarray(values)
        arrays = [np.frombuffer(b, values.dtype) for b in self.exchange(values.tobytes())]
        return functools.reduce(np.add, arrays).reshape(values.shape)

    def exchange(self, mine: bytes) -> List[bytes]:
        """Return the bytes of each rank, in rank order; raise RankLost if one does not answer."""
        try:
            return _gatherer(self.hvd)(mine)
        except backend.tf.errors.OpError as error:
            raise self.lost(error) from error

    def lost(self, error: BaseException) -> RankLost:
        """Return a ``RankLost`` to raise instead of Horovod's error."""
        match = _CAUSE.search(getattr(error, "message", "") or str(error))
        cause = f" ({match.group()})" if match else ""
        return RankLost(f"another rank has ended or does not answer{cause}")

    # -- variables ----------------------------------------------------------------------------

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Set variables on all ranks to the values of rank 0."""
        if not self.several:
            return
        session, hvd = backend.session(), cast(Any, self.hvd)
        with session.graph.as_default():
            copy = hvd.broadcast_variables(list(variables), root_rank=0)
        try:
            session.run(copy)
        except backend.tf.errors.OpError as error:
            raise self.lost(error) from error

    def compare(self, names: Sequence[str], arrays: Sequence[Any]) -> None:
        """Compare hashes of arrays that must be the same on each rank.

        Raises:
          RanksDiffer: an array differs; the message has its name and the ranks.
        """
        if not self.several:
            return
        digests = [hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest() for a in arrays]
        for name, values in zip(names, zip(*self.gather(digests))):
            if len(set(values)) > 1:
                differing = [str(r) for r, digest in enumerate(values) if digest != values[0]]
                raise RanksDiffer(
                    f"{name} is not the same on all ranks: rank {', '.join(differing)} "
                    f"differs from rank 0; do all hosts have the same data, TensorFlow and "
                    f"kind of processor?"
                )


_current = Ranks(World())


def current() -> Ranks:
    """Return the ranks that this process joined; before ``join``, only this process."""
    return _current


def join() -> Ranks:
    """Join the processes that the launcher started, and return their ``Ranks``.

    From then on ``current`` returns them, too. Call ``join`` after precision and XLA were set.

    Raises:
      AmpXlaError: the launcher's rank is out of range; Horovod is missing, or has other ranks than
        the launcher; or a rank does not start, or cannot be reached.
    """
    global _current
    place, hvd = world(), _current.hvd
    if place.rank >= place.size:
        raise AmpXlaError(
            f"rank {place.rank} of {place.size} ranks: allowed is 0 to {place.size - 1}; look at "
            f"the environment variables of the launcher, e.g. HOROVOD_RANK and HOROVOD_SIZE"
        )
    if place.size > 1 and hvd is None:
        from amp_xla.precision.agreement import start_horovod  # needs TensorFlow

        compiles = configuring.compiles() and backend.gpus()
        for name, value in _DEFAULTS.items():
            longer = compiles and value == _STALL_SECONDS
            os.environ.setdefault(name, _COMPILING_SECONDS if longer else value)
        hvd = start_horovod(place)
        stop_with_launcher()
    _current = Ranks(place, hvd)
    return _current


@functools.lru_cache(maxsize=None)
def _gatherer(hvd: Any) -> Callable[[bytes], List[bytes]]:
    """Return a function that gathers bytes from all ranks; its graph is built once."""
    tf: Any = backend.tf
    graph = tf.Graph()
    with graph.as_default(), tf.device("/cpu:0"):
        mine = tf.placeholder(tf.uint8, [None])
        size = tf.placeholder(tf.int64, [1])
        fetches = [
            hvd.allgather(mine, name="amp_xla_bytes"),
            hvd.allgather(size, name="amp_xla_sizes"),
        ]
    session = tf.Session(graph=graph, config=tf.ConfigProto(device_count={"GPU": 0}))

    def gather(data: bytes) -> List[bytes]:
        array = np.frombuffer(data, np.uint8)
        everything, sizes = session.run(fetches, {mine: array, size: [len(array)]})
        return [part.tobytes() for part in np.split(everything, np.cumsum(sizes)[:-1])]

    return gather
