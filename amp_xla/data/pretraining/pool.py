"""Worker processes for the preparation of text."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import multiprocessing
import multiprocessing.context
import os
import signal
import threading
import time
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Callable, Deque, Iterable, Iterator, Optional

from amp_xla.errors import DataError

AHEAD = 2  # items per process that are submitted early


class _Worker(multiprocessing.context.SpawnProcess):
    """A worker process. SIGTERM is blocked in it, so the executor's ``terminate`` must kill."""

    def terminate(self) -> None:
        self.kill()


class _Context(multiprocessing.context.SpawnContext):
    Process = _Worker


class Pool:
    """Runs functions over items in several processes; the results do not depend on how many.

    Args:
      processes: number of worker processes; 0 = one per CPU core, 1 = none, work in this process.
    """

    def __init__(self, processes: int) -> None:
        self._count = processes or len(os.sched_getaffinity(0))
        self._executor: Optional[concurrent.futures.ProcessPoolExecutor] = None
        self._others = set(multiprocessing.active_children())

    def __enter__(self) -> Pool:
        if self._count > 1:
            self._executor = concurrent.futures.ProcessPoolExecutor(
                self._count, _Context(), _start_worker, (os.getpid(),)
            )
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if self._executor is None:
            return
        if kind is not None:  # after an error or a signal: files are complete or absent
            for process in set(multiprocessing.active_children()) - self._others:
                process.kill()
        self._executor.shutdown()

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """Yield ``function(item)`` for each item, in order, with few items in memory.

        Raises:
          DataError: a worker process died.
        """
        if self._executor is None:
            yield from map(function, items)
            return
        waiting: Deque[Any] = collections.deque()
        try:
            for item in items:
                with _signals_blocked():  # inherited by workers, which submit may start
                    waiting.append(self._executor.submit(function, item))
                if len(waiting) > AHEAD * self._count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise DataError(
                "a worker process was killed, perhaps for lack of memory; try fewer --workers. The "
                "same command continues with the finished part"
            ) from None


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _start_worker(parent: int) -> None:
    """Make a worker end when its parent is gone."""

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
