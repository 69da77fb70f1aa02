"""How a process ends: one line on standard error and an exit code, whatever happened.

| exit code | |
|---|---|
| 0 | done, or stopped by SIGUSR1 |
| 2 | something asked for cannot be: ``error: ...`` says what and what to do |
| 70 | a fault of our own; the traceback is in ``crash.txt`` |
| 75 | another rank was lost; the same command with --resume goes on |
| 128 + n | ended by signal n: 143 SIGTERM, 130 SIGINT, 129 SIGHUP, 141 a closed pipe |
"""

from __future__ import annotations

import dataclasses
import os
import platform
import select
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, List, Optional

from amp_xla import __version__
from amp_xla.errors import AmpXlaError
from amp_xla.process.world import speaks, world

FAULT = 70  # EX_SOFTWARE of sysexits.h
_VERSIONS = ("tensorflow", "tf_keras", "bert4keras", "numpy", "h5py", "google.protobuf")


@dataclasses.dataclass
class Life:
    """Where this process is in its life, for the line that tells of a fault.

    Attributes:
      where: a clause such as ``while the graph was being built``.
      folder: the run folder, once there is one.
      safe: what is on disk and how to go on from it.
    """

    where: str = ""
    folder: Optional[Path] = None
    safe: str = ""


life = Life()


def guard() -> None:
    """The first line of a program: a signal during the imports ends it, and so does a fault.

    Python would turn SIGINT into an exception, which an import of an extension module may swallow
    or call an ImportError. There is nothing to clean up yet.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.excepthook = _last


def _last(kind: Any, error: BaseException, trace: Any) -> None:
    code = _judge(error)
    os._exit(code)


def exit_code(function: Any, *args: Any) -> int:
    """Calls ``function``; turns whatever ends it into at most one line and an exit code."""
    from amp_xla.process import output
    from amp_xla.process.stopping import SignalWatch

    global life
    life = Life()
    output.tolerate()
    try:
        with SignalWatch() as watch, watch.immediately("", nothing_to_save=True):
            try:
                return int(function(*args) or 0)
            finally:
                output.finished()  # while its failure can still be told
    except (Exception, KeyboardInterrupt) as error:
        return _judge(error)
    except BaseException as error:
        if not hasattr(error, "exit_code"):
            raise  # SystemExit, whose code is known
        return _judge(error)


def _judge(error: BaseException) -> int:
    """Says in a line what ``error`` is, and returns the exit code for it."""
    from amp_xla.process import output
    from amp_xla.process.stopping import Stopped

    if isinstance(error, AmpXlaError):
        code = getattr(error, "exit_code", 2)
        if code != 2:  # the cause is another rank's, and what started the ranks will say it
            return _say(f"stopping: {error}", code) if speaks() else int(code)
        who = f"{world().name}: " if world().rank else ""
        return _say(f"error: {who}{error}", code)
    if isinstance(error, Stopped):
        return _say(str(error), error.exit_code) if speaks() else error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return _say("interrupted", 130)
    if isinstance(error, BrokenPipeError) and _no_reader(1, 2):
        if _no_reader(2):  # Python's own flush at the end must not complain
            _discard(2)
        return output.closed()
    refused = output.refusal(error) if isinstance(error, OSError) else None
    if refused is not None:
        return _say("; ".join(filter(None, (f"error: {refused}", life.safe))), 2)
    return _say(_fault(error), FAULT)


def _no_reader(*descriptors: int) -> bool:
    """True where nobody reads one of ``descriptors`` any more, as after ``| head -1``."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _say(text: str, code: int) -> int:
    try:
        print(text, file=sys.stderr)
        sys.stderr.flush()
    except (OSError, ValueError):
        _discard(2)
    return code


def _discard(descriptor: int) -> None:
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        os.close(null)
    except OSError:
        pass


def _fault(error: BaseException) -> str:
    """One line about an exception that nobody expected; the rest goes to ``crash.txt``."""
    words = " ".join(str(error).split())
    text = f"{type(error).__name__}: {words[:300]}" if words else type(error).__name__
    clauses = [
        f"error: a fault of this program{life.where and ' '}{life.where}: {text}{_place(error)}"
    ]
    if life.safe:
        clauses.append(life.safe)
    path = _write(error)
    clauses.append(f"the traceback is in {path}" if path else "no traceback could be written")
    return "; ".join(clauses)


def _place(error: BaseException) -> str:
    """File and line of the innermost frame of this project, else of any."""
    frames = traceback.extract_tb(error.__traceback__, limit=-50)
    root = str(Path(__file__).resolve().parents[2])
    ours = [f for f in frames if f.filename.startswith(root) and ".venvs" not in f.filename]
    ours = [f for f in ours if f.filename != __file__]
    if not frames:
        return ""
    frame = (ours or frames)[-1]
    return f" ({os.path.relpath(frame.filename, root) if ours else frame.filename}:{frame.lineno})"


def _write(error: BaseException) -> Optional[Path]:
    """Puts the traceback and the versions into ``crash.txt``; no environment variable's value."""
    lines = [
        f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {' '.join(sys.argv)}  {life.where}".rstrip(),
        f"amp_xla {__version__}, Python {platform.python_version()}, {platform.platform()}",
        *_versions(),
        "",
        *traceback.format_exception(type(error), error, error.__traceback__),
    ]
    text = "\n".join(lines)
    own = f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    rank = f"-rank{world().rank}" if world().rank else ""
    places = [] if life.folder is None else [life.folder / f"crash{rank}.txt"]
    places += [Path("runs") / own, Path(tempfile.gettempdir()) / f"amp_xla-{own}"]
    for path in places:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".tmp-{path.name}")
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
            os.replace(str(temporary), str(path))
            return path
        except OSError:
            continue
    return None


def _versions() -> List[str]:
    """Of what was imported by now; nothing is imported to find out."""
    found = []
    for name in _VERSIONS:
        module = sys.modules.get(name)
        if module is not None:
            found.append(f"{name} {getattr(module, '__version__', 'of unknown version')}")
    return found
