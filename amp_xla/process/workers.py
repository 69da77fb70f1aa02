"""A pool of processes for work in pieces: a worker that dies is replaced, its piece done again.

``concurrent.futures`` has a pool too, which breaks as a whole when one process dies, and whose
processes outlive a parent that was killed.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import threading
import traceback
from typing import Any, BinaryIO, Callable, List, Optional, Tuple

from amp_xla.errors import AmpXlaError
from amp_xla.process import children

ATTEMPTS = 3
_SIZE = struct.Struct("<Q")


class WorkerError(AmpXlaError):
    """A piece of work has killed each worker that took it."""


class Workers(concurrent.futures.Executor):
    """Up to ``count`` processes, started as they are needed.

    Args:
      count: processes.
      say: gets a line when a worker died.
    """

    def __init__(self, count: int, say: Callable[[str], None]) -> None:
        self._count, self._say = count, say
        self._tasks: queue.Queue = queue.Queue()
        self._workers: List[_Worker] = []
        self._pieces = itertools.count(1)

    def submit(self, function: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Calls a module's ``function`` in a worker; its first argument's ``name`` is the piece's.

        The future raises what the function raises, or ``WorkerError``.
        """
        future: concurrent.futures.Future = concurrent.futures.Future()
        piece = getattr(args[0] if args else None, "name", f"number {next(self._pieces)}")
        self._tasks.put((future, str(piece), pickle.dumps((function, args, kwargs), protocol=4)))
        if len(self._workers) < self._count:
            self._workers.append(_Worker(len(self._workers) + 1, self._tasks, self._say))
        return future

    def shutdown(self, wait: bool = True, **_: Any) -> None:
        """Ends the processes: those that wait at once, with ``wait`` others after their piece."""
        for worker in self._workers:
            self._tasks.put(None)
            if not wait:
                worker.kill()
        for worker in self._workers:
            worker.thread.join()

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        # After an error or a signal nobody waits for the rest: files are whole or not there.
        self.shutdown(wait=kind is None)


class _Worker:
    """One process at a time, and the thread that feeds it."""

    def __init__(self, number: int, tasks: Any, say: Callable[[str], None]) -> None:
        self.number, self._tasks, self._say = number, tasks, say
        self._process: Optional[subprocess.Popen] = None
        self._ended = False
        self.thread = threading.Thread(target=self._feed, daemon=True, name=f"worker {number}")
        self.thread.start()

    def kill(self) -> None:
        self._ended = True
        if self._process is not None:
            self._process.kill()

    def _feed(self) -> None:
        try:
            for future, piece, task in iter(self._tasks.get, None):
                if not self._ended and future.set_running_or_notify_cancel():
                    try:
                        future.set_result(self._done(piece, task))
                    except BaseException as error:
                        future.set_exception(error)
        finally:
            if self._process is not None:
                self._close()

    def _done(self, piece: str, task: bytes) -> Any:
        ends = []
        for attempt in range(ATTEMPTS):
            if self._process is None:
                self._start()
            process = self._process
            assert process is not None and process.stdin is not None
            assert process.stdout is not None
            try:
                _send(process.stdin, task)
                good, value = pickle.loads(_receive(process.stdout))
            except (EOFError, OSError):
                ends.append(self._close())
                if self._ended:
                    break
                again = "; doing it again" if attempt + 1 < ATTEMPTS else ""
                self._say(
                    f"worker {self.number} (process {process.pid}) ended with {ends[-1]} over "
                    f"piece {piece}{again}"
                )
                continue
            if good:
                return value
            raise value
        raise WorkerError(
            f"piece {piece} was given to {len(ends)} workers, which ended with {', '.join(ends)}; "
            f"is there memory for so many? fewer --workers need less. What is done stays, and the "
            f"same command continues"
        )

    def _start(self) -> None:
        # In a session of its own, out of reach of Ctrl-C: the parent decides when to stop.
        self._process = subprocess.Popen(
            children.command("amp_xla.process.workers"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**children.environment(os.environ), "TOKENIZERS_PARALLELISM": "false"},
            start_new_session=True,
        )
        if self._ended:
            self._process.kill()

    def _close(self) -> str:
        """Waits for the process' end; returns what it ended with."""
        process, self._process = self._process, None
        assert process is not None
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # what was to be sent has no receiver
                    stream.close()
        code = process.wait()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _send(stream: Any, data: bytes) -> None:
    stream.write(_SIZE.pack(len(data)) + data)
    stream.flush()


def _receive(stream: Any) -> bytes:
    """One message; EOFError if the other side ended before or within it."""
    head = stream.read(_SIZE.size)
    size = _SIZE.unpack(head)[0] if len(head) == _SIZE.size else 0
    data = stream.read(size)
    if not head or len(head) < _SIZE.size or len(data) < size:
        raise EOFError
    return bytes(data)


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """The worker's side: calls what it is sent until there is nothing more."""
    while True:
        try:
            task = _receive(questions)
        except EOFError:
            return
        _send(answers, _answer(task))


def _answer(task: bytes) -> bytes:
    answer: Tuple[bool, Any]
    try:
        function, args, kwargs = pickle.loads(task)
        answer = True, function(*args, **kwargs)
        return pickle.dumps(answer, protocol=4)
    except Exception as error:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        try:
            # Both ways: exceptions with several arguments may be dumped and yet not loaded.
            pickle.loads(pickle.dumps(error, protocol=4))
        except Exception:
            error = RuntimeError(text)
        return pickle.dumps((False, error), protocol=4)


def main() -> None:
    """The process: what it prints goes to standard error, since answers go out by the pipe."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
