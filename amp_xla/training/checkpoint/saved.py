"""A checkpoint as what it is by itself: everything it takes to answer, or to go on.

The vocabulary, the labels, the architecture, the tokenizer's settings and the config lie in the
checkpoint's folder, under its manifest. Copies in the run folder are for people: they may be
missing, damaged or another run's, and no answer changes. No TensorFlow here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional, Type, TypeVar

from amp_xla.config import changed, flat, make
from amp_xla.errors import AmpXlaError, SettingsError
from amp_xla.process.progress import note
from amp_xla.training import documents
from amp_xla.training.checkpoint import manifest

STATE = "state.json"
ARCHITECTURE = "bert_config.json"

T = TypeVar("T")


class CheckpointError(AmpXlaError):
    """A checkpoint is missing, damaged, cannot be written or does not fit the model."""


class Saved:
    """A whole checkpoint.

    Args:
      path: its folder, ``runs/<recipe>/<name>/checkpoints/step-...``, verified by the caller.

    Attributes:
      state: what ``state.json`` holds, checked against its schema.
      run: the run folder.

    Raises:
      CheckpointError: ``state.json`` cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = path.parent.parent
        self.state = read_state(path)
        self._identity: Dict[str, Any] = self.state["identity"]

    @property
    def recipe(self) -> str:
        """Name of the recipe that trained it; where the checkpoint is too old to say, the run's.

        Raises:
          CheckpointError: neither says.
        """
        if "recipe" in self.state:
            return str(self.state["recipe"])
        try:
            return str(documents.read(self.run / "run.json")["recipe"])
        except ValueError as error:
            raise CheckpointError(
                f"{self.run / 'run.json'}: {error}; so the recipe is not known: give --recipe"
            ) from error

    def config(self, kind: Type[T]) -> T:
        """The config that it was trained with, ``pinned``.

        Raises:
          CheckpointError: it is another recipe's, or has a number out of its range.
        """
        try:
            found = make(kind, **self._identity["config"])
        except (SettingsError, TypeError) as error:
            raise CheckpointError(f"{self.path / STATE}: the config: {error}") from error
        return self.pinned(found)

    def has(self, name: str) -> bool:
        """Whether it holds this file itself; checkpoints of before had only their tensors."""
        return name in manifest.read(self.path)["files"]

    def asset(self, name: str) -> str:
        """Path of an asset, e.g. ``vocab.txt``, whose content is what the checkpoint was made with.

        Raises:
          CheckpointError: an old checkpoint, whose asset in the run folder is gone or another.
        """
        if self.has(name):
            return str(self.path / name)
        path, expected = self.run / name, self._identity["assets"].get(name)
        try:
            found = manifest.sha256(path)
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
        if found != expected:
            raise CheckpointError(
                f"{path} is not the one that {self.path} was trained with: SHA-256 {found[:8]}..., "
                f"wanted {str(expected)[:8]}...; bring it back from a backup"
            )
        return str(path)

    def pinned(self, config: T) -> T:
        """A recipe's config whose ``bert``, if it has one, is this checkpoint's folder.

        Vocabulary and architecture are there, whatever has become of the folder that the run began
        with. An old checkpoint has no architecture of its own: ``bert`` stays what it is.
        """
        if not self.has(ARCHITECTURE) or flat(config).get("bert") is None:
            return config
        pinned: T = changed(config, bert=str(self.path))
        return pinned

    @property
    def architecture(self) -> Optional[str]:
        """The folder with its ``bert_config.json``; None in an old checkpoint, which has none."""
        return str(self.path) if self.has(ARCHITECTURE) else None


def read_state(path: Path) -> Dict[str, Any]:
    """What ``state.json`` of a checkpoint holds.

    Raises:
      CheckpointError: it is unreadable, or not of this layout.
    """
    try:
        return documents.read(path / STATE)
    except ValueError as error:
        raise CheckpointError(f"cannot use {path / STATE}: {error}") from error


def newest_whole(folder: Path, good: bool = False) -> Optional[Path]:
    """The newest checkpoint whose every byte is as written; damaged ones are named.

    Args:
      folder: a run's ``checkpoints``.
      good: leave out those written while steps were being skipped.

    Raises:
      CheckpointError: there are checkpoints, and all of them are damaged.
    """
    found = manifest.steps(folder)
    damaged = []
    for path in reversed(found):
        wrong = manifest.problems(path)
        if wrong:
            damaged.append(f"{path.name}: {wrong[0]}")
            note(f"checkpoint {path.name} is damaged, using an older one: {'; '.join(wrong)}")
        elif not good or not read_state(path)["loop"]["not_finite_in_a_row"]:
            return path
    if found and not good:
        raise CheckpointError(
            f"{folder} has no whole checkpoint left ({'; '.join(damaged)}); start a new run, or "
            f"bring one back from a backup"
        )
    return None


def find(run: Path, name: Optional[str] = None) -> Path:
    """The checkpoint of a run to predict with: the best, else the newest.

    Args:
      run: run folder.
      name: a checkpoint's name, or ``best`` or ``last``.

    Raises:
      CheckpointError: there is none, or it is damaged; the message says what is there.
    """
    folder = run / "checkpoints"
    names = [path.name for path in manifest.steps(folder)]
    if not names:
        raise CheckpointError(
            f"{folder} has no checkpoint yet"
            if run.is_dir()
            else f"{run} is not a run folder; make train makes one and names it at its end"
        )
    chosen = name
    if name in (None, "best"):
        chosen = best(folder, names)
    elif name == "last":
        chosen = names[-1]
    if chosen is None and name != "best":
        chosen = names[-1]
    if chosen not in names:
        raise CheckpointError(
            f"{folder} has no checkpoint {name or chosen!r}; "
            f"allowed: best, last, {', '.join(names)}"
        )
    wrong = manifest.problems(folder / chosen)
    if wrong:
        raise CheckpointError(
            f"{folder / chosen} is damaged: {'; '.join(wrong)}; others: {', '.join(names)}"
        )
    return folder / chosen


def best(folder: Path, names: List[str]) -> Optional[str]:
    """Name of the best checkpoint; None = none is.

    The pointer ``BEST`` may be another run's, which nothing in it would show. It decides only
    where the newest checkpoint does not know.

    Args:
      folder: a run's ``checkpoints``.
      names: of the checkpoints in it, oldest first.
    """
    known = known_best(folder, names)
    if known is not None:
        return known
    try:
        return manifest.pointed(folder, manifest.BEST)
    except ValueError as error:
        raise CheckpointError(
            f"{folder} has a damaged pointer, {error}; name a checkpoint: {', '.join(names)}"
        ) from error


def known_best(folder: Path, names: List[str]) -> Optional[str]:
    """Name of the best checkpoint as the newest one knows it; None = it does not, or is damaged."""
    newest = folder / names[-1]
    if manifest.problems(newest, STATE):
        return None
    loop = read_state(newest)["loop"]
    if loop.get("best") is None:
        return None
    same = [n for n in names if (manifest.order(n) or (-1, 0))[0] == loop.get("best_step")]
    return same[-1] if same else None
