"""The run folder: runs/<recipe>/<name>/ with config, metrics, checkpoints; one process writes it.

``RunFolder(...)`` writes nothing. It chooses the folder, and refuses one that is in use or holds a
run that would be overwritten. ``begin`` writes, after all checks have passed.

``config.json`` and the files needed for prediction are copies for people and for reports. As soon
as there is a checkpoint, resuming and predicting read the checkpoint instead. ``run.json`` has the
command and the versions; ``status.json`` has the planned steps and says how the run ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import fcntl
import itertools
import os
import platform
import shlex
import socket
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional

from amp_xla import __version__
from amp_xla.config import changed, flat
from amp_xla.data.batches.protocol import whole
from amp_xla.errors import AmpXlaError, DataError, RankLost, SettingsError
from amp_xla.process import durable, json_files, regular
from amp_xla.process.checkout import revision
from amp_xla.process.progress import note
from amp_xla.process.redaction import without_secrets
from amp_xla.process.stopping import Stopped
from amp_xla.report.record import STATUS
from amp_xla.training.checkpoint import Checkpoint, folder_of, newest, readable, runs_in, steps
from amp_xla.training.engine import Engine
from amp_xla.training.options import RunOptions
from amp_xla.training.state import settings_of

RUNS = "runs"  # folder of all runs
LATEST = "latest"
_LOCK = ".lock"
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # e.g. Lustre mounted without flock
# A file in the folder until its first checkpoint: until then, nothing is lost by starting over.
_FRESH = ".no-checkpoint-yet"


def resumed_settings(config: Any, recipe: str) -> Dict[str, Any]:
    """Return the settings that become the defaults of the command line.

    With ``--resume`` they come from the run's newest checkpoint; before its first checkpoint, from
    ``--like`` or, if that is not set, from the run's ``config.json``. Without ``--resume`` they
    come from ``--like``; without both flags the result is empty.
    """
    options: RunOptions = config.run
    run = Path(RUNS) / recipe / (options.name or LATEST)
    saved = readable(folder_of(run)) if options.resume else None
    if saved is not None:
        return saved.settings(type(config))
    like, warm_start = options.like, {}
    if options.resume and (run / _FRESH).exists() and (run / "config.json").is_file():
        like = like or str(run)
        begun = json_files.read(run / "config.json", {"run": dict})["run"]
        warm_start = {"warm_start": begun.get("warm_start")}
    if like is None:
        return {}
    path = Path(like, "config.json" if os.path.isdir(like) else "")
    try:
        values = {name: value for name, value in json_files.read(path).items() if name != "run"}
        changed(type(config)(), **values)  # checks names and values
    except (DataError, SettingsError) as error:
        raise SettingsError(f"--like {path}: {error}") from None
    return {**values, **warm_start}


def check_name(name: str) -> str:
    """Return ``name``; raise AmpXlaError if it cannot be the name of a folder in runs/<recipe>."""
    if not name.isprintable() or name in ("", LATEST) or "/" in name or name[0] in ".-":
        raise AmpXlaError(
            f"--name {name!r} cannot be a run's name: use printable characters except /, no dot or "
            f"dash at the start, and not the name {LATEST}, which is the link to the newest run"
        )
    return name


class RunFolder:
    """The folder of one run, locked against other processes.

    Args:
      name: name of the folder; None = date and time, or with ``resume`` the newest run.
      resume: allow a folder that already holds a run.
      writes: whether to read, lock and write the folder; only the first rank does.

    Attributes:
      continues: True if the folder has checkpoints to continue from.
      in_runs: True for a recipe's run, whose parent folder has the link ``latest``.
      resume_by, force_by, choose: words for messages that say how to continue the run, to continue
        it although something differs, and to use another folder.

    Raises:
      AmpXlaError: the name is not valid; or the folder is in use, already holds a run, or holds a
        run whose checkpoints are gone.
      OSError: the folder cannot be written.
    """

    in_runs = True
    resume_by, force_by, choose = "--resume", "--force-resume", "choose another --name"

    def __init__(
        self, recipe: str, name: Optional[str] = None, resume: bool = False, writes: bool = True
    ) -> None:
        self.recipe, self._writes = recipe, writes
        self._parent = Path(RUNS) / recipe
        self._lock: Optional[int] = None
        self._checkpoint: Optional[Checkpoint] = None
        if name is not None and self.in_runs:
            check_name(name)
        elif name is None and resume:
            name = self._newest()
        self._chosen = name is not None
        self.name = name or time.strftime("%Y%m%d-%H%M%S")
        self.continues = False
        self._seen: List[str] = []
        if writes:
            regular.refuse_unwritable(self.path)
        # If the name is the date, ``begin`` finds a free one.
        if writes and self._chosen and os.path.lexists(str(self.path)):
            # An existing lock is taken before the look; a refused command must not create one.
            if os.path.lexists(str(self.path / _LOCK)):
                self._acquire()
            try:
                self._look(resume)
            except AmpXlaError:
                self.close()
                raise

    @property
    def path(self) -> Path:
        """The folder."""
        return self._parent / self.name

    @property
    def checkpoints(self) -> Path:
        """The subfolder for checkpoints."""
        return folder_of(self.path)

    def newest(self) -> Optional[Checkpoint]:
        """Return the newest whole checkpoint; None if there is none to continue from."""
        if self.continues and self._checkpoint is None:
            self._checkpoint = newest(self.checkpoints)
        return self._checkpoint

    @property
    def continuing(self) -> str:
        """End of a message: how to continue the run."""
        return f"the same command with --name {shlex.quote(self.name)} --resume continues"

    # -- looking -----------------------------------------------------------------------------

    def _newest(self) -> Optional[str]:
        """Return the name of the run that ``latest`` points to; None without runs."""
        latest = self._parent / LATEST
        target = os.readlink(str(latest)) if latest.is_symlink() else ""
        if target and "/" not in target and (self._parent / target).is_dir():
            return check_name(target)
        runs = runs_in(self._parent)
        if not runs:
            return None
        raise AmpXlaError(
            f"{latest} {f'points to {target!r}, which is no run' if target else 'is missing'}; "
            f"add --name with the run to resume, one of: {', '.join(runs)}"
        )

    def _look(self, resume: bool) -> None:
        contents = self._seen = _contents(self.path)
        if contents and not resume:
            raise AmpXlaError(
                f"{self.path} already holds a run; {self.choose}, continue it with "
                f"{self.resume_by}, or delete it"
            )
        self.continues = bool(steps(self.checkpoints))
        if contents and not self.continues and _FRESH not in contents:
            raise AmpXlaError(
                f"{self.path} has files ({', '.join(contents)}) but no checkpoint: restore its "
                f"checkpoints if it had any; otherwise {self.choose}, or delete the folder"
            )

    def _acquire(self) -> None:
        lock = regular.descriptor(str(self.path / _LOCK), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(lock, 1000).decode(errors="replace") or "another process"
            os.close(lock)
            raise AmpXlaError(
                f"{self.path} is in use by {holder}; two processes cannot write one run: "
                f"wait for it, or {self.choose}"
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            note(
                f"warning: {self.path} is on a file system without locks ({error.strerror}): "
                f"make sure that no second process writes this run"
            )
        self._lock = lock

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # -- writing -----------------------------------------------------------------------------

    def begin(self) -> None:
        """Create the folder if needed, lock it and delete unfinished checkpoints.

        Raises:
          AmpXlaError: another process holds the lock, or has changed the folder meanwhile.
        """
        if not self._writes:
            return
        if self._lock is None:
            self._make()
            self._acquire()
            if _contents(self.path) != self._seen:
                raise AmpXlaError(
                    f"{self.path} was written by another process meanwhile; {self.choose}, or "
                    f"start again with {self.resume_by}"
                )
        assert self._lock is not None
        os.ftruncate(self._lock, 0)
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        with contextlib.suppress(OSError):  # a full disk: the next write names its file
            os.pwrite(self._lock, holder.encode(), 0)
        if not self.continues:
            durable.replace(self.path / _FRESH, b"resuming starts this run over\n")
        self.checkpoints.mkdir(exist_ok=True)
        for unfinished in self.checkpoints.glob(f"{durable.TEMPORARY}*"):
            durable.remove(unfinished)
        if self.continues:
            self.mark_latest()

    def _make(self) -> None:
        """Create the folder; if a folder named by date exists already, append a number."""
        first = self.name
        for attempt in itertools.count(1):
            try:
                self.path.mkdir(parents=True)
                return
            except FileExistsError:
                if self._chosen:
                    return
            self.name = f"{first}-{attempt}"

    def mark_latest(self) -> None:
        """Point ``latest`` to this run, which has a checkpoint; delete ``.no-checkpoint-yet``."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(str(self.path / _FRESH))
        if not self.in_runs:
            return
        latest = self._parent / LATEST
        temporary = self._parent / f".latest-{os.getpid()}"
        try:
            if not (latest.is_symlink() and os.readlink(str(latest)) == self.name):
                temporary.symlink_to(self.name)
                os.replace(str(temporary), str(latest))
        except OSError:  # a file system without symbolic links
            if temporary.is_symlink():
                os.unlink(str(temporary))

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write ``value`` as the JSON file ``name``, completely or not at all."""
        self.write(name, json_files.encode(value))

    def write(self, name: str, data: bytes) -> None:
        """Write a file, completely or not at all."""
        if self._writes:
            durable.replace(self.path / name, data)


class ScriptFolder(RunFolder):
    """The run folder of a user's script, at any path and without ``latest``."""

    in_runs = False
    resume_by, force_by, choose = "resume=True", "force_resume=True", "choose another folder"

    def __init__(self, path: Path, resume: bool, writes: bool) -> None:
        if not path.name:
            raise AmpXlaError(f"Run({str(path)!r}): give the path of a folder")
        # The path is absolute, so ``RUNS`` is not above it.
        super().__init__(str(path.parent), path.name, resume, writes)
        self.recipe = "script"

    @property
    def continuing(self) -> str:
        """End of a message: how to continue the run."""
        return "the same script with resume=True continues"


def _contents(folder: Path) -> List[str]:
    """Return the names in a folder, except the lock and temporary files."""
    names = (path.name for path in folder.iterdir())
    return sorted(n for n in names if n != _LOCK and not n.startswith(durable.TEMPORARY))


def write_about(run: RunFolder, config: Any, engine: Engine) -> None:
    """Write config.json, the files needed for prediction and, for a new run, run.json."""
    written: Dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        written = json_files.read(run.path / "run.json") if run.continues else {}
    if not written:
        process = {
            "recipe": run.recipe,
            "command": " ".join(map(shlex.quote, without_secrets(sys.argv))),
            "amp_xla": __version__,
            "revision": revision(),
            "python": platform.python_version(),
            "ranks": engine.ranks.world.size,
            **engine.versions,
            **engine.process,
            "host": f"{platform.system()} {platform.machine()}",
            "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        }
        run.write_json("run.json", process)
    run.write_json("config.json", {**settings_of(config), "run": dataclasses.asdict(config.run)})
    for name, data in sorted(engine.job.assets.items()):
        run.write(name, data)


@contextlib.contextmanager
def recorded(loop: Any) -> Iterator[None]:
    """Write ``status.json`` before and after the block, and ``report.html`` after it.

    All ranks call it, the first one writes. If ``report.html`` cannot be written, it prints a
    warning.
    """
    write_status(loop, "running")
    try:
        yield
    except Stopped as stopped:
        message = str(stopped)
        with contextlib.suppress(RankLost):
            # Launchers kill the other ranks soon after one has ended.
            loop.engine.ranks.all_do(lambda: _end(loop, "stopped", message))
        raise
    except BaseException as error:
        text = str(error) if isinstance(error, AmpXlaError) else f"{type(error).__name__}: {error}"
        _end(loop, "failed", text)
        raise
    _end(loop, "done")


def _end(loop: Any, state: str, message: str = "") -> None:
    if not loop.engine.ranks.first:
        return
    try:
        write_status(loop, state, message)
        from amp_xla.report import page

        page.write_run(loop.run.path)
    except Exception as error:  # a report must not change how a run ends
        note(
            f"warning: {loop.run.path}/report.html was not written ({error}); try: "
            f"amp-xla report {loop.run.path}"
        )


def write_status(loop: Any, state: str, message: str = "") -> None:
    """Write ``status.json`` on the first rank: state, message, plan, how to continue the run."""
    batches, options = loop.engine.job.batches, loop.options
    plan = {
        "total_steps": loop.total_steps,
        "monitor": options.monitor,
        "higher_is_better": options.higher_is_better,
        "shapes": [f"{rows} × {length}" for rows, length in batches.shapes],
        "padding_share": getattr(whole(batches), "padding_share", None),
        "defaults": flat(type(loop.config)()),
    }
    time = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    status = {
        "state": state, "message": message, "time": time, "continuing": loop.run.continuing,
        "plan": plan,
    }  # fmt: skip
    loop.run.write_json(STATUS, status)
