"""Worker processes for the preparation of text."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import ctypes
import multiprocessing
import os
import signal
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Callable, Deque, Iterable, Iterator

from amp_xla.errors import DataError

AHEAD = 2  # items per process that wait in a queue
_PR_SET_PDEATHSIG = 1
Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]


@contextlib.contextmanager
def workers(count: int) -> Iterator[Map]:
    """Yield a ``map`` that uses ``count`` processes; 0 = one per core, 1 = only the current one.

    Results are in the order of the items. Only a few items are in memory at a time.
    """
    count = count or len(os.sched_getaffinity(0))
    if count == 1:
        yield map
        return
    others = set(multiprocessing.active_children())
    executor = concurrent.futures.ProcessPoolExecutor(
        count, multiprocessing.get_context("spawn"), _start_worker, (os.getpid(),)
    )

    def submit(*work: Any) -> Any:
        # A worker may start here, which inherits this mask: only this process handles Ctrl-C.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return executor.submit(*work)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def in_order(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        try:
            yield from ahead(submit, function, items, AHEAD * count)
        except BrokenProcessPool:
            raise DataError(
                "a worker process was killed, perhaps for lack of memory; try fewer --workers. The "
                "same command continues after the finished parts"
            ) from None

    try:
        yield in_order
    except BaseException:  # an error or a signal; workers leave only complete files
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
        raise
    finally:
        executor.shutdown()


def ahead(
    submit: Callable[..., Any], function: Callable[[Any], Any], items: Iterable[Any], count: int
) -> Iterator[Any]:
    """Yield ``function(item)`` for each item, in order; ``count`` results are computed ahead."""
    waiting: Deque[Any] = collections.deque()
    for item in items:
        waiting.append(submit(function, item))
        if len(waiting) > count:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _start_worker(parent: int) -> None:
    """Make this worker end when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
