"""Ranks: processes that share every batch of one run, through Horovod.

A launcher (horovodrun, mpirun, ``make train NP=2``) starts the same command several times. Each
process takes its pieces of each batch, gradients are summed, and from there on all do the same:
one decision about overflow, one update, one learning rate. The first rank alone writes.

What goes through the graph (gradients, a step's sums) is in ``reduction``; here is what goes
between the hosts' Pythons, a few bytes now and then.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Callable, Iterator, List, Mapping, Optional, Sequence, Tuple, TypeVar

import numpy as np

from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.data.batches.pieces import Pieces
from amp_xla.errors import AmpXlaError
from amp_xla.process.world import World, world

T = TypeVar("T")

# Horovod ends all ranks after so long without an answer of one of them; its own default is never.
# The others wait that long, too, for one that computes or compiles while they do not.
_STALL_SECONDS = "35"
_DEFAULTS = {
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "20",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": _STALL_SECONDS,
    "HOROVOD_GLOO_TIMEOUT_SECONDS": _STALL_SECONDS,
    "HOROVOD_LOG_LEVEL": "fatal",
    "HOROVOD_DISABLE_GROUP_FUSION": "1",  # what is added up in one message is always the same
}


_BUSY, _DONE, _FAILED = "busy", "done", "failed"
# What matters in the pages that TensorFlow and Horovod write.
_CAUSE = re.compile(
    r"connection closed by peer|connection reset by peer|timed out waiting|stalled|"
    r"unhandled (system|cuda) error|has been shut down",
    re.IGNORECASE,
)


class RankLost(AmpXlaError):
    """Another rank has ended or does not answer, so this one cannot go on."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: the same command with --resume goes on


class RanksDiffer(AmpXlaError):
    """Variables that must be equal on all ranks are not."""


class Ranks:
    """This process among those that train together; alone where no launcher started several.

    Attributes:
      world: rank, size, host.
      begun_with: pieces that each batch had when the run began; 1 = it began alone.
      split: pieces of a batch that this rank works through one after the other.
    """

    def __init__(self, place: World, hvd: Optional[Any] = None, begun_with: int = 0) -> None:
        self.world, self.hvd = place, hvd
        self.begun_with = begun_with or place.size
        # A piece is never larger than it was when the run began: then it fitted into memory.
        self.split = max(1, -(-self.begun_with // place.size))
        self._gather: Optional[Callable[[bytes], List[bytes]]] = None
        self._agree: Callable[[], None] = lambda: None

    @property
    def alone(self) -> bool:
        """True where one process does all, whole batches at a time."""
        return self.world.size == 1 and self.split == 1

    @property
    def several(self) -> bool:
        """True where there are other processes."""
        return self.world.size > 1

    @property
    def first(self) -> bool:
        """True for the rank that writes."""
        return self.world.rank == 0

    @property
    def pieces(self) -> int:
        """Into how many pieces each batch is cut."""
        return self.world.size * self.split

    def describe(self) -> str:
        """One line."""
        words = f"{self.world.size} ranks share each batch"
        if self.split > 1:
            words += f", {self.split} pieces each, one after the other"
        if self.world.size == 1:
            words = f"each batch in {self.split} pieces, as when the run began"
        return words

    def share(self, batches: Any) -> Any:
        """The pieces of ``batches`` that are this rank's; alone, the batches as they are.

        Args:
          batches: a ``BatchSource``; the same on every rank.
        """
        if self.alone:
            return batches
        first = self.world.rank * self.split
        return Pieces(batches, range(first, first + self.split), self.pieces)

    # -- between Pythons ---------------------------------------------------------------------

    def gather(self, value: T) -> List[T]:
        """What every rank calls this with, JSON-able, in order of ranks; all must call it.

        Raises:
          RankLost: one does not.
        """
        if not self.several:
            return [value]
        texts = self._bytes(json.dumps(value).encode())
        return [json.loads(text.decode()) for text in texts]

    def told(self, find: Callable[[], T]) -> T:
        """What ``find`` returns on the first rank, JSON-able; it is called there only."""
        return self.gather(find() if self.first else None)[0]  # type: ignore[return-value]

    def first_does(self, work: Callable[[], Any]) -> None:
        """Has the first rank do something that takes long, while the others wait."""
        if not self.several:
            work()
            return
        if not self.first:
            while True:
                state = self.gather("")[0]
                if state == _FAILED:
                    raise RankLost("the first rank could not go on")
                if state == _DONE:
                    return
        with ThreadPoolExecutor(1) as pool:
            doing = pool.submit(work)
            # They hear from it all the time, or they would take it for dead.
            while not wait([doing], timeout=1.0).done:
                self.gather(_BUSY)
            self.gather(_FAILED if doing.exception() else _DONE)
            doing.result()

    @contextlib.contextmanager
    def asking(self, agree: Callable[[], None]) -> Iterator[None]:
        """Inside, ``ask`` calls ``agree``; all ranks must go the same way through the block."""
        self._agree, before = agree, self._agree
        try:
            yield
        finally:
            self._agree = before

    def ask(self) -> None:
        """At a point that all ranks come by: raises what ``asking`` says, on all of them."""
        self._agree()

    def total(self, values: Any) -> Any:
        """Sum over ranks of a float64 or int64 array of one shape; exact, in order of ranks."""
        if not self.several:
            return values
        values = np.ascontiguousarray(values)
        found = [np.frombuffer(b, values.dtype) for b in self._bytes(values.tobytes())]
        return functools.reduce(np.add, found).reshape(values.shape)

    def _bytes(self, mine: bytes) -> List[bytes]:
        if self._gather is None:
            self._gather = _gatherer(self.hvd)
        try:
            return self._gather(mine)
        except tf.errors.OpError as error:
            raise self.lost(error) from error

    def lost(self, error: BaseException) -> RankLost:
        """The error to raise for one of Horovod's."""
        found = _CAUSE.search(getattr(error, "message", "") or str(error))
        why = f" ({found.group()})" if found else ""
        return RankLost(f"another rank has ended or does not answer{why}")

    # -- between sessions --------------------------------------------------------------------

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Gives all ranks the first one's values."""
        if not self.several:
            return
        session = backend.session()
        with session.graph.as_default():
            copy = self._copies(tuple(variables))
        try:
            session.run(copy)
        except tf.errors.OpError as error:
            raise self.lost(error) from error

    @functools.lru_cache(maxsize=None)  # noqa: B019  # one object a process
    def _copies(self, variables: Tuple[Any, ...]) -> Any:
        assert self.hvd is not None
        return self.hvd.broadcast_variables(list(variables), root_rank=0)

    def compare(self, names: Sequence[str], arrays: Sequence[Any]) -> None:
        """Compares hashes of variables that must be the same on every rank.

        Raises:
          RanksDiffer: names the first that is not, and the ranks that differ from the first.
        """
        if not self.several:
            return
        digests = [hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest() for a in arrays]
        mine = hashlib.sha256("".join(digests).encode()).hexdigest()
        if len(set(self.gather(mine))) == 1:
            return
        for name, found in zip(names, zip(*self.gather(digests))):
            if len(set(found)) > 1:
                others = [str(r) for r, digest in enumerate(found) if digest != found[0]]
                raise RanksDiffer(
                    f"{name} is not the same on all ranks: rank {', '.join(others)} differs from "
                    f"rank 0; the last checkpoint may be of rank 0's. Do all hosts have the same "
                    f"data, TensorFlow and kind of processor?"
                )


_current = Ranks(World())


def current() -> Ranks:
    """Those that this process has joined; alone before ``join``."""
    return _current


def join(begun_with: int = 0) -> Ranks:
    """Joins the processes that the launcher started, once; sets ``current``.

    TensorFlow's settings are applied by then.

    Args:
      begun_with: pieces that each batch had when the run began; 0 = it begins now.

    Raises:
      AmpXlaError: Horovod is missing, or counts other ranks than the launcher.
    """
    global _current
    place, hvd = world(), _current.hvd
    if place.size > 1 and hvd is None:
        hvd = _horovod(place)
    if begun_with != _current.begun_with or hvd is not _current.hvd:
        gather = _current._gather
        _current = Ranks(place, hvd, begun_with)
        _current._gather = gather
    return _current


def _horovod(place: World) -> Any:
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    _check_name(place, os.environ)
    try:
        hvd = importlib.import_module("horovod.tensorflow")
    except ImportError as error:
        raise AmpXlaError(
            f"{place.size} ranks were started, and Horovod cannot be imported ({error}); "
            f"`make train NP={place.size}` builds it"
        ) from error
    hvd.init()
    if (hvd.rank(), hvd.size()) != (place.rank, place.size):
        raise AmpXlaError(
            f"the launcher started rank {place.rank} of {place.size}, and Horovod counts rank "
            f"{hvd.rank()} of {hvd.size()}: it was built for another launcher; `horovodrun "
            f"--check-build` says for which"
        )
    if backend.gpus():
        backend.use_gpu(hvd.local_rank())
    return hvd


def _check_name(place: World, environ: Mapping[str, str]) -> None:
    """Gloo listens where this host's own name leads; Debian's installer makes that the loopback.

    Raises:
      AmpXlaError: it is the loopback, and there are other hosts.
    """
    several = int(environ.get("HOROVOD_CROSS_SIZE") or 1) > 1
    if not several or environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.").startswith("127."):
        return
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        raise AmpXlaError(
            f"{place.name} cannot find its own name {name} ({error}); /etc/hosts or DNS must have "
            f"it, with an address that the other hosts reach"
        ) from error
    if address.startswith("127."):
        raise AmpXlaError(
            f"{place.name} finds {address} behind its own name {name}, which no other host "
            f"reaches; in its /etc/hosts, give {name} the address of its network card instead"
        )


def _gatherer(hvd: Any) -> Callable[[bytes], List[bytes]]:
    """Bytes of this rank -> those of every rank, through a graph and a session of its own."""
    graph = tf.Graph()
    with graph.as_default(), tf.device("/cpu:0"):
        mine = tf.placeholder(tf.uint8, [None])
        size = tf.placeholder(tf.int64, [1])
        fetches = [
            hvd.allgather(mine, name="amp_xla_bytes"),
            hvd.allgather(size, name="amp_xla_sizes"),
        ]
    config = tf.ConfigProto(device_count={"GPU": 0})
    session = tf.Session(graph=graph, config=config)

    def gather(data: bytes) -> List[bytes]:
        array = np.frombuffer(data, np.uint8)
        everything, sizes = session.run(fetches, {mine: array, size: [len(array)]})
        return [part.tobytes() for part in np.split(everything, np.cumsum(sizes)[:-1])]

    return gather
