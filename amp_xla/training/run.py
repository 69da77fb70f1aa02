"""The run folder: runs/<recipe>/<name>/ with config, metrics, checkpoints; one process each."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import time
from pathlib import Path
from typing import Any, Dict, Optional

import filelock

from amp_xla.errors import AmpXlaError
from amp_xla.training import durable

_LOCK, _HOLDER = ".lock", ".lock.holder"


class RunFolder:
    """Creates and names the files of one run, and keeps other processes out of it.

    Args:
      recipe: e.g. ``classification``.
      name: the run's own name; None makes one from the clock, or with ``resume`` takes the
        newest run.
      root: where runs live.
      resume: a folder that holds a run already is opened instead of refused.

    Attributes:
      continues: True where the folder holds a run already.

    Raises:
      AmpXlaError: the folder holds another run already, is in use, or cannot be written.
    """

    def __init__(
        self, recipe: str, name: Optional[str] = None, root: str = "runs", resume: bool = False
    ) -> None:
        parent = Path(root) / recipe
        self.recipe = recipe
        self._lock: Optional[filelock.BaseFileLock] = None
        if resume and name is None and (parent / "latest").exists():
            name = (parent / "latest").resolve().name
        try:
            self.path = self._open(parent, name, resume)
            self.name = self.path.name
            self._acquire()
            self.checkpoints = self.path / "checkpoints"
            self.checkpoints.mkdir(exist_ok=True)
        except OSError as error:
            raise AmpXlaError(
                f"cannot write the run folder {error.filename or parent}: {error.strerror}"
            ) from error
        self._link_latest(parent)

    def _open(self, parent: Path, name: Optional[str], resume: bool) -> Path:
        first = name or time.strftime("%Y%m%d-%H%M%S")
        self.continues = False
        for attempt in range(100):
            path = parent / (first if not attempt else f"{first}-{attempt}")
            try:
                path.mkdir(parents=True)
                return path
            except FileExistsError:
                if name is None:
                    continue
                self.continues = (path / "config.json").exists()
                if self.continues and not resume:
                    raise AmpXlaError(
                        f"{path} holds a run already; choose another --name, continue it with "
                        f"--resume, or delete it"
                    ) from None
                return path
        raise AmpXlaError(f"{parent} has a hundred runs named {first}; choose a --name")

    def _acquire(self) -> None:
        self._lock = filelock.FileLock(str(self.path / _LOCK))
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise AmpXlaError(
                f"{self.path} is in use by {self._holder()}; two processes cannot write one run: "
                f"wait for it, or choose another --name"
            ) from None
        except NotImplementedError as error:
            raise AmpXlaError(
                f"{self.path} is on a file system without locks, so a second process would not "
                f"be noticed; put runs/ on another one ({error})"
            ) from error
        holder = {"host": socket.gethostname(), "pid": os.getpid()}
        durable.replace(self.path / _HOLDER, json.dumps(holder).encode())

    def _holder(self) -> str:
        try:
            found = json.loads((self.path / _HOLDER).read_text())
            return f"process {found['pid']} on {found['host']}"
        except (OSError, ValueError, KeyError):
            return "another process"

    def close(self) -> None:
        """Lets the next process in."""
        if self._lock is not None:
            self._lock.release()

    def _link_latest(self, parent: Path) -> None:
        latest = parent / "latest"
        temporary = parent / f".latest-{os.getpid()}"
        try:
            if latest.is_symlink() and os.readlink(str(latest)) == self.path.name:
                return
            temporary.symlink_to(self.path.name)
            os.replace(str(temporary), str(latest))
        except OSError:  # a file system without links: the name is printed anyway
            pass

    def write_config(self, config: Any) -> None:
        """Saves a dataclass as ``config.json``."""
        self.write_json("config.json", dataclasses.asdict(config))

    def write_json(self, name: str, value: Dict[str, Any]) -> None:
        """Writes ``value`` under ``name``, whole or not at all.

        Raises:
          AmpXlaError: the disk refused.
        """
        data = json.dumps(value, ensure_ascii=False, indent=1).encode() + b"\n"
        try:
            durable.replace(self.path / name, data)
        except OSError as error:
            raise AmpXlaError(f"cannot write {self.path / name}: {error.strerror}") from error
