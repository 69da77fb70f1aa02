"""Keeps TensorFlow's start-up noise off the terminal without hiding real trouble.

TensorFlow's C++ side writes straight to file descriptor 2, and some lines of an import come at
error level, so a log-level variable alone either shows a wall or hides failures.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import warnings
from typing import Iterator, Optional

from amp_xla.process import stopping

# Start-up lines that say nothing about the user's job, at whatever level they come.
_NOISE = re.compile(
    r"Unable to register cu(FFT|DNN|BLAS) factory"
    r"|oneDNN custom operations are on"
    r"|computation_placer already registered|Could not find cuda drivers|cudart_stub"
    r"|TF-TRT Warning|Could not find TensorRT|could not find TensorRT"
    r"|cpu_feature_guard|To enable the following instructions|CPU frequency"
    r"|XLA service|StreamExecutor device|StreamExecutor cuda"
    r"|Could not load dynamic library|Cannot dlopen some GPU libraries|Skipping registering GPU"
    r"|failed call to cuInit|kernel driver does not appear to be running"
    r"|retrieving CUDA diagnostic|hostname:|libcuda reported version|kernel reported version"
    r"|All log messages before absl::InitializeLog|Successfully opened dynamic library"
    r"|tensorflow_core/python/framework/dtypes|_np_q|np_resource|FutureWarning"
)


def set_log_defaults() -> None:
    """Asks TensorFlow for errors only, unless the user chose a level."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Tokenizers warns at each fork after it has used threads; its work is done by then.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


class _Held:
    """A file that takes what is written to descriptor 2, and a process that outlives this one.

    C++ ends a process by ``abort``, which runs nothing of ours: a shell waits for the end of this
    process, and shows what was being held back then.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()  # a fork has the file, but is not who is waited for
        with tempfile.TemporaryFile() as file:
            self.file = os.dup(file.fileno())  # open to the end of the process
        read_end, self._alive = os.pipe()
        # Opened anew, the file is read from its start. No child of ours: a script that waits for
        # all of its children must not wait for this one. Ctrl-C reaches it as well.
        watch = f"trap '' INT TERM HUP USR1; read _ <&3; exec cat /proc/self/fd/{self.file} >&2"
        try:
            subprocess.run(
                ["/bin/sh", "-c", f"exec 3<&0; ({watch}) &"],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                pass_fds=[self.file],
                check=True,
            )
        finally:
            os.close(read_end)

    def take(self) -> str:
        """What was held back, which is forgotten."""
        data = os.pread(self.file, os.fstat(self.file).st_size, 0)
        os.ftruncate(self.file, 0)
        os.lseek(self.file, 0, os.SEEK_SET)
        return data.decode("utf-8", "replace")


_held: Optional[_Held] = None


def _hold() -> _Held:
    global _held
    if _held is None or _held.pid != os.getpid():
        _held = _Held()
    return _held


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Holds back what is written to stderr inside the block, then shows what is not noise.

    On an exception everything is shown, because then any line may be the reason; so it is if the
    process dies inside. Set ``AMP_XLA``-independent ``TF_CPP_MIN_LOG_LEVEL=0`` to see all of it.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") in ("0", "1"):
        yield
        return
    try:
        stderr = sys.stderr
        stderr.flush()
        held = _hold()
        saved = os.dup(2)
    except (OSError, AttributeError, ValueError, subprocess.SubprocessError):
        # No such descriptor: nothing to keep quiet.
        yield
        return
    failed = False

    def give_back() -> None:
        os.dup2(saved, 2)
        held.take()

    os.dup2(held.file, 2)
    stopping.native.append(give_back)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception:
        failed = True
        raise
    finally:
        stderr.flush()
        stopping.native.remove(give_back)
        os.dup2(saved, 2)
        os.close(saved)
        for line in held.take().splitlines():
            if failed or (line.strip() and not _NOISE.search(line)):
                stderr.write(line + "\n")
        stderr.flush()
