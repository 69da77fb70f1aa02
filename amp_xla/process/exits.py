"""Exit codes of programs, and one line for an error that the user can fix.

docs/files.md lists the codes.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from typing import Any, Optional

from amp_xla.errors import AmpXlaError
from amp_xla.process import output
from amp_xla.process.checkout import as_typed
from amp_xla.process.stopping import SignalWatch, Stopped
from amp_xla.process.world import world

_CLOSED_PIPE = 141
# Errors of the machine that the user can fix, wherever they occur. Others are bugs.
_USER_ERRORS = frozenset(
    [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO]
    + [errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EMFILE, errno.ENFILE]
    + [errno.ESTALE, errno.ENXIO]
)


def guard() -> None:
    """Let SIGINT and SIGUSR1 end the process during the imports, when there is nothing to clean up.

    Without this call, SIGINT raises KeyboardInterrupt, which the import of an extension module may
    swallow, and the exit code after SIGUSR1 is not 0. The launcher starts ranks with SIGINT
    blocked; this call unblocks it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))


def exit_code(function: Any, *args: Any) -> int:
    """Call ``function`` and return the exit code; exceptions that are bugs pass through."""
    output.reconfigure(errors="backslashreplace")  # for characters that the encoding lacks
    try:
        with SignalWatch() as watch, watch.nothing_to_save(""):
            try:
                return int(function(*args) or 0)
            finally:
                output.flush()
    except Stopped as stopped:
        return _end("" if world().rank else str(stopped), stopped.exit_code)
    except KeyboardInterrupt:
        return _end("interrupted", 130)
    except AmpXlaError as error:
        code = int(getattr(error, "exit_code", 2))
        if code == 2:
            return _end(f"error: {world().name + ': ' if world().rank else ''}{error}", code)
        # The main rank may be the one that was lost, so rank 1 names the checkpoint as well.
        return _end(f"stopping: {error}" if world().rank < 2 else "", code)
    except MemoryError:
        return _end("error: not enough memory; see `ulimit -v` and the limits of the container", 2)
    except BrokenPipeError:
        output.discard()
        return _end("standard output was closed before everything was printed", _CLOSED_PIPE)
    except OSError as error:
        text = user_error(error)
        if text is None:
            raise
        return _end(f"error: {text}", 2)


def user_error(error: OSError) -> Optional[str]:
    """Return one line about an operating-system error; None if the user cannot fix it."""
    if error.errno not in _USER_ERRORS:
        return None
    where = "" if error.filename is None else f"{os.fspath(error.filename)}: "
    return f"{where}{error.strerror}"


def _end(text: str, code: int) -> int:
    with output.messages():
        if text:
            print(output.message(as_typed(text)), file=sys.stderr, flush=True)
    return code
