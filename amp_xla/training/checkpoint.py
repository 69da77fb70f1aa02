"""Checkpoints: folders that are whole or absent. Imports no TensorFlow.

The checkpoint of step 123 is the folder ``step-00000123``::

    tensors.safetensors   weights, optimizer slots, counters, loss scale
    state.json            position in the run, best step, configuration
    vocab.txt, ...        files needed for prediction
    manifest.json         size and SHA-256 of each file above

``write`` fills a temporary folder, syncs it and renames it: a kill at any moment leaves the older
checkpoints as they were. The newest checkpoint has the highest number, and its ``state.json`` has
the step of the best checkpoint. A second checkpoint of the same step is ``step-00000123.1``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Type, TypeVar

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from amp_xla import config as settings
from amp_xla.errors import DataError, SettingsError
from amp_xla.precision.arrays import is_finite
from amp_xla.process import durable, json_files, regular
from amp_xla.process.progress import note
from amp_xla.training.manifest import TENSORS, CheckpointError, problems, write_manifest
from amp_xla.training.state import STATE, LoopState, read_state

ARCHITECTURE = "bert_config.json"
MORE = "more/"  # prefix of tensors that are not variables, see ``more_tensors``
_NAME = re.compile(r"step-\d{8,18}(\.\d{1,4})?")

T = TypeVar("T")


class Checkpoint:
    """A checkpoint whose files the caller has verified.

    Attributes:
      state: content of ``state.json``.
      loop: position of the run.
      of_script: True if a script's ``fit`` wrote it, not a recipe.
      ranks: three numbers by name: ``size``, ranks at this checkpoint; ``first_size``, ranks at the
        start of the run; ``micro_batches``, micro-batches per update and rank.
      run: the run folder.

    Raises:
      CheckpointError: ``state.json`` is missing or has unexpected content.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.run = path, path.parent.parent
        try:
            self.state = read_state(path)
            self.loop = LoopState.from_json(self.state["loop"])
        except DataError as error:
            raise CheckpointError(str(error)) from error
        except ValueError as error:
            raise CheckpointError(f"cannot use {path / STATE}: {error}") from error
        self.step = self.loop.step
        self.recipe: str = self.state["recipe"]
        self.of_script = "fit" in self.state
        self.identity: Dict[str, Any] = self.state["identity"]
        self.ranks: Dict[str, int] = self.state["ranks"]

    def config(self, kind: Type[T]) -> T:
        """Return the run's configuration, a ``kind``; ``pinned`` replaces a set ``bert``.

        Raises:
          CheckpointError: a setting is unknown to ``kind`` or out of range, or the checkpoint has
            fewer bytes than a model with these settings.
        """
        try:
            config = settings.changed(kind(), **self.settings(kind))
        except (SettingsError, TypeError) as error:
            raise CheckpointError(f"{self.path / STATE}: the config: {error}") from error
        return self.pinned(config)

    def settings(self, kind: Type[Any]) -> Dict[str, Any]:
        """Return the run's settings by name.

        Settings in ``kind.REMOVED`` are left out. So are settings that ``kind`` does not have, if
        the run used their default.
        """
        values, known = self.identity["config"], settings.fields(kind)
        defaults = {k: v for k, v in self.identity["defaults"].items() if k not in known}
        for name in getattr(kind, "REMOVED", {}):
            defaults[name] = values.get(name)
        self._check_sizes(values)
        return {k: v for k, v in values.items() if k not in defaults or v != defaults[k]}

    def _check_sizes(self, values: Mapping[str, Any]) -> None:
        """Raise CheckpointError if a model of this size needs more bytes than the checkpoint."""
        names = ("rows", "width") if "tower" in values else ("layers", "hidden", "hidden")
        numbers: List[Any] = [values.get(name) for name in names]
        if values.get("bert") is not None or not all(isinstance(n, int) for n in numbers):
            return
        least, size = 4, sum(file.stat().st_size for file in self.path.iterdir())
        for number in numbers:
            least *= number
        if least > size:
            sizes = ", ".join(f"{name} {values[name]}" for name in dict.fromkeys(names))
            raise CheckpointError(
                f"{self.path / STATE}: a model with {sizes} has more than {least:,} bytes, but the "
                f"checkpoint has {size:,}"
            )

    def pinned(self, config: T) -> T:
        """Return ``config`` with ``bert``, if set, replaced by this checkpoint's folder.

        The folder of ``--bert`` may be gone. Without an ``architecture``, ``config`` is unchanged.
        """
        if self.architecture is None or settings.flat(config).get("bert") is None:
            return config
        return settings.changed(config, bert=str(self.path))

    @property
    def architecture(self) -> Optional[str]:
        """This checkpoint's folder if it has a ``bert_config.json``, else None."""
        return str(self.path) if (self.path / ARCHITECTURE).is_file() else None

    def file(self, name: str) -> str:
        """Return the path of one of this checkpoint's files, such as ``vocab.txt``."""
        if not (self.path / name).is_file():
            raise CheckpointError(f"{self.path} has no {name}")
        return str(self.path / name)

    def tensors(self) -> Dict[str, np.ndarray]:
        """Return all variables by name. A bfloat16 variable is stored as float32."""
        loaded = self._load().items()
        tensors = {name: array for name, array in loaded if not name.startswith(MORE)}
        for name, array in tensors.items():
            if not is_finite(array):
                raise CheckpointError(f"{self.path / TENSORS}: {name} has NaN or infinity")
        return tensors

    def more_tensors(self) -> Dict[str, np.ndarray]:
        """Return the tensors that are not variables: accumulated gradients, arrays of callbacks."""
        tensors = self._load().items()
        return {name[len(MORE) :]: array for name, array in tensors if name.startswith(MORE)}

    def _load(self) -> Dict[str, np.ndarray]:
        try:
            return dict(safetensors.numpy.load_file(str(self.path / TENSORS)))
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"cannot read {self.path / TENSORS}: {error}") from error


def write(
    folder: Path,
    tensors: Mapping[str, np.ndarray],
    state: Mapping[str, Any],
    files: Mapping[str, bytes],
    shards: Optional[Path] = None,
) -> Path:
    """Write a checkpoint and return its path once it is on disk.

    Args:
      folder: the folder ``checkpoints`` of a run.
      tensors: arrays by name; bfloat16 is stored as float32.
      state: content of ``state.json``; the step in its ``loop`` becomes part of the name.
      files: content of each file needed for prediction.
      shards: folder whose files, one per rank, are moved into the checkpoint.

    Raises:
      CheckpointError: a variable has a NaN or infinity; or the files cannot be written, e.g. on a
        full disk. The older checkpoints are unchanged.
    """
    first = f"step-{state['loop']['step']:08d}"
    names = itertools.chain([first], (f"{first}.{number}" for number in itertools.count(1)))
    path = next(path for path in map(folder.joinpath, names) if not path.exists())
    stored = {
        name: array.astype(np.float32) if array.dtype.name == "bfloat16" else array
        for name, array in tensors.items()
    }
    for name, array in sorted(stored.items()):
        if not name.startswith(MORE) and not is_finite(array):
            raise CheckpointError(f"{name} is not finite, so {path.name} was not written")
    temporary = folder / f"{durable.TEMPORARY}{path.name}"
    try:
        os.mkdir(str(temporary))
        if shards is not None:
            for part in sorted(shards.iterdir()):
                os.rename(str(part), str(temporary / part.name))
            durable.remove(shards)
        _write_tensors(temporary / TENSORS, stored)
        for name, data in sorted(files.items()):
            durable.write(temporary / name, data)
        durable.write(temporary / STATE, json_files.encode(state))
        write_manifest(temporary, path.name)
        durable.publish(temporary, path)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(str(temporary), ignore_errors=True)
        reason = getattr(error, "strerror", None) or str(error)
        size = sum(array.nbytes for array in stored.values())
        raise CheckpointError(
            f"cannot write the checkpoint {path}: {reason}; it needs {size:,} bytes"
        ) from error
    return path


def _write_tensors(path: Path, tensors: Dict[str, np.ndarray]) -> None:
    # safetensors writes an array's memory, which must be in C order.
    ordered = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    safetensors.numpy.save_file(ordered, str(path))
    durable.own(path)


def prune(folder: Path, keep: int) -> None:
    """Delete all checkpoints except the ``keep`` newest and the best."""
    paths = steps(folder)
    best_one = best(folder)
    for path in paths[:-keep]:
        if path != best_one:
            durable.remove(path)


def set_aside_damaged(checkpoint: Checkpoint) -> None:
    """Rename the damaged checkpoints newer than ``checkpoint`` to ``damaged-*``."""
    folder = checkpoint.path.parent
    paths = steps(folder)
    for newer in paths[paths.index(checkpoint.path) + 1 :]:
        aside = folder / f"damaged-{newer.name}"
        while aside.exists():
            aside = aside.with_name(aside.name + "+")
        os.rename(str(newer), str(aside))
        note(f"renamed {newer.name} to {aside.name}")


def folder_of(run: Path) -> Path:
    """Return the folder of a run's checkpoints; raise OSError if it is a link."""
    return regular.not_linked(run / "checkpoints")


def runs_in(folder: Path) -> List[str]:
    """Return the names of the runs in ``folder`` that have a checkpoint, damaged or not."""
    names = []
    for each in sorted(folder.iterdir()) if folder.is_dir() else []:
        with contextlib.suppress(OSError):  # another user's run, or its checkpoints are a link
            if not each.is_symlink() and steps(folder_of(each)):
                names.append(each.name)
    return names


def steps(folder: Path) -> List[Path]:
    """Return the paths of the checkpoints in ``folder``, damaged ones included, oldest first."""
    names: List[str] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        names = os.listdir(str(folder))  # without permission glob would find nothing
    paths = [folder / name for name in names if _NAME.fullmatch(name)]
    folders = (path for path in paths if path.is_dir() and not path.is_symlink())
    return sorted(folders, key=lambda path: [int(n) for n in path.name[5:].split(".")])


def newest(folder: Path, good: bool = False) -> Optional[Checkpoint]:
    """Return the newest whole checkpoint, or None; print a line about each newer, damaged one.

    Args:
      folder: the folder ``checkpoints`` of a run.
      good: ignore checkpoints written right after a skipped update.

    Raises:
      CheckpointError: all are damaged and ``good`` is False; or reading fails, e.g. no permission.
    """
    paths = steps(folder)
    damaged = []
    for path in reversed(paths):
        wrong = problems(path)
        if wrong:
            damaged.append(f"{path.name}: {wrong[0]}")
            note(f"checkpoint {path.name} is damaged, using an older one: {'; '.join(wrong)}")
            continue
        checkpoint = Checkpoint(path)
        if not good or not checkpoint.loop.not_finite_in_a_row:
            return checkpoint
    if paths and not good:
        raise CheckpointError(
            f"{folder} has no whole checkpoint left ({'; '.join(damaged)}); start a new run, or "
            f"restore a checkpoint from a backup"
        )
    return None


def best(folder: Path) -> Optional[Path]:
    """Return the path of the checkpoint with the best monitored value; None if there is none.

    The step of the best checkpoint is read from the newest ``state.json`` that is not damaged.
    """
    last = readable(folder)
    if last is None or last.loop.best is None:
        return None
    name = f"step-{last.loop.best_step:08d}"
    return next((p for p in reversed(steps(folder)) if p.name.split(".")[0] == name), None)


def readable(folder: Path) -> Optional[Checkpoint]:
    """Return the newest checkpoint whose ``state.json`` is not damaged; None if there is none."""
    paths = (path for path in reversed(steps(folder)) if not problems(path, [STATE]))
    return next(map(Checkpoint, paths), None)


def find(run: Path, name: Optional[str] = None) -> Checkpoint:
    """Return the checkpoint to predict with.

    Args:
      run: run folder.
      name: name of a checkpoint, ``best`` or ``last``; None = the best, or the newest
        if none is marked as best.

    Raises:
      CheckpointError: the checkpoint is missing or damaged; the message lists undamaged ones.
    """
    if not run.is_dir():
        raise CheckpointError(f"{run} is not a folder; `amp-xla runs` lists the runs")
    folder = folder_of(run)
    if not folder.is_dir():
        raise CheckpointError(f"{run} is not a run folder: it has no checkpoints folder")
    paths = steps(folder)
    if not paths:
        raise CheckpointError(f"{run} has no checkpoint yet")
    named: Dict[str, Optional[Path]] = {path.name: path for path in paths}
    named["last"] = paths[-1]
    # A damaged state.json does not say which one is best.
    named["best"] = paths[-1] if problems(paths[-1], [STATE]) else best(folder)
    chosen = named.get(name or "best") or (paths[-1] if name is None else None)
    wrong = [] if chosen is None else problems(chosen)
    if chosen is not None and not wrong:
        return Checkpoint(chosen)
    whole = ", ".join(path.name for path in paths if not problems(path))
    if chosen is None:
        marked = "" if named["best"] is None else "best, "
        raise CheckpointError(f"{folder} has no checkpoint {name}; allowed: {marked}last, {whole}")
    raise CheckpointError(
        f"{chosen} is damaged: {'; '.join(wrong)}; whole checkpoints: {whole or 'none'}"
    )
