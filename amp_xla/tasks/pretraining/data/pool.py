"""Worker processes for the preparation of text."""

from __future__ import annotations

import collections
import concurrent.futures
import ctypes
import multiprocessing
import os
import signal
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Callable, Deque, Iterable, Iterator, Optional

from amp_xla.errors import DataError

AHEAD = 2  # items per process that wait in a queue
_PR_SET_PDEATHSIG = 1


class Pool:
    """Worker ``processes`` that apply functions to items; 0 = one per core, 1 = this process."""

    def __init__(self, processes: int) -> None:
        count = processes or len(os.sched_getaffinity(0))
        self._ahead = AHEAD * count
        self._others = set(multiprocessing.active_children())
        self._executor: Optional[concurrent.futures.ProcessPoolExecutor] = None
        if count > 1:
            self._executor = concurrent.futures.ProcessPoolExecutor(
                count, multiprocessing.get_context("spawn"), _start_worker, (os.getpid(),)
            )

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if self._executor is None:
            return
        if kind is not None:  # An error or a signal. Workers leave only complete files.
            for process in set(multiprocessing.active_children()) - self._others:
                process.kill()
        self._executor.shutdown()

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """Yield ``function(item)`` for each item, in order; only a few items are in memory."""
        if self._executor is None:
            yield from map(function, items)
            return
        try:
            yield from ahead(self._submit, function, items, self._ahead)
        except BrokenProcessPool:
            raise DataError(
                "a worker process was killed, perhaps for lack of memory; try fewer --workers. The "
                "same command continues after the finished parts"
            ) from None

    def _submit(self, *work: Any) -> Any:
        assert self._executor is not None
        # A worker may start here, which inherits this mask: only this process handles Ctrl-C.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self._executor.submit(*work)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


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
    """End this worker when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
