"""The JSON files of a checkpoint: position of the run; size and SHA-256 of each file."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from amp_xla.process import durable, json_files, regular

TENSORS, STATE, MANIFEST = "tensors.safetensors", "state.json", "manifest.json"
_RANKS = dict.fromkeys(("size", "first_size", "micro_batches"), int)
_IDENTITY = dict.fromkeys(("data", "assets", "config", "settings", "versions", "defaults"), dict)
_OPTIONAL: Dict[str, Any] = {"best": (int, float, type(None)), "rolled_back_at": (int, type(None))}


@dataclasses.dataclass
class LoopState:
    """Position of a run. All counts start at 0. Saved as JSON with each checkpoint.

    Attributes:
      step: steps so far, skipped ones included. In a recipe a step is an update of all its
        micro-batches; in a script it is a batch of ``fit``.
      epoch, step_in_epoch: position of the next batch, from 0.
      samples: real samples seen.
      applied: updates made by the optimizer; the learning rate follows it.
      skipped: updates skipped because of non-finite numbers.
      not_finite_in_a_row: skipped updates since the last update.
      rolled_back_at: step at which the run was rolled back; None if it was not.
      best, best_step: best monitored value so far, and its step; None while all were NaN.
      stale: evaluations since the best one.
      evaluate_due: whether an evaluation is due after ``step`` and not done yet.
      log_sums, log_count: sums, and number of steps in them, for the next line of metrics.jsonl.
    """

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    samples: int = 0
    applied: int = 0
    skipped: int = 0
    not_finite_in_a_row: int = 0
    rolled_back_at: Optional[int] = None
    best: Optional[float] = None
    best_step: int = 0
    stale: int = 0
    evaluate_due: bool = False
    log_sums: List[float] = dataclasses.field(default_factory=list)
    log_count: int = 0

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> LoopState:
        """Return the state that a checkpoint holds; a field that it lacks has its default.

        Raises:
          ValueError: ``step`` is missing; a field is of another type, or a count is negative.
        """
        kinds = {name: _OPTIONAL.get(name, type(value)) for name, value in vars(cls()).items()}
        json_files.require(
            values, {n: k for n, k in kinds.items() if n in values or n == "step"}, "loop."
        )
        state = cls(**{name: values[name] for name in kinds if name in values})
        if any(isinstance(v, int) and v < 0 for n, v in vars(state).items() if n != "best"):
            raise ValueError("loop has a negative count")
        if not all(isinstance(value, (int, float)) for value in state.log_sums):
            raise ValueError("loop.log_sums: only numbers are allowed")
        return state

    def recount(self, steps_per_epoch: int) -> None:
        """Compute epoch and position in it from ``step``, because epochs may have become longer."""
        self.epoch, self.step_in_epoch = divmod(self.step, steps_per_epoch)

    def judge(self, value: float, higher_is_better: bool) -> bool:
        """Record an evaluation; return True if it is the best so far. NaN never is."""
        sign = 1.0 if higher_is_better else -1.0
        better = not math.isnan(value) and (self.best is None or sign * value > sign * self.best)
        if better:
            self.best, self.best_step, self.stale = value, self.step, 0
        else:
            self.stale += 1
        return better


def read_state(path: Path) -> Dict[str, Any]:
    """Return the content of ``state.json`` with the types of its fields checked.

    Raises:
      ValueError: it is unreadable or does not have the expected fields.
    """
    state = json_files.read(path / STATE)
    json_files.require(state, {"recipe": str, "loop": dict, "identity": dict, "ranks": dict})
    json_files.require(state["ranks"], _RANKS, "ranks.")
    state["identity"].setdefault("defaults", {})  # older checkpoints
    json_files.require(state["identity"], _IDENTITY, "identity.")
    return state


def entry(path: Path) -> Dict[str, Any]:
    """Return a file's entry in a manifest."""
    return {"bytes": path.stat().st_size, "sha256": durable.sha256(path)}


def manifest_of(name: str, files: Mapping[str, Any]) -> bytes:
    """Return a manifest for the checkpoint ``name``, with its own SHA-256."""
    listed = {"checkpoint": name, "files": files}
    digest = hashlib.sha256(json_files.encode(listed)).hexdigest()
    return json_files.encode({**listed, "sha256": digest})


def write_manifest(folder: Path, name: str) -> None:
    """Write the manifest of all files in ``folder``, which becomes the checkpoint ``name``."""
    listed = {file.name: entry(file) for file in sorted(folder.iterdir())}
    durable.write(folder / MANIFEST, manifest_of(name, listed))


def read_manifest(path: Path) -> Dict[str, Any]:
    """Return file name -> ``bytes`` and ``sha256`` of each file of a checkpoint.

    Raises:
      ValueError: the manifest is missing or damaged; the message names it.
    """
    try:
        data = regular.read(path / MANIFEST)
        manifest = json_files.decode(data)
        json_files.require(manifest, {"checkpoint": str, "files": dict})
        if data != manifest_of(manifest["checkpoint"], manifest["files"]):
            raise ValueError("content differs from its own SHA-256")
        if manifest["checkpoint"] != path.name:
            raise ValueError(f"belongs to {manifest['checkpoint']}, not to {path.name}")
    except OSError as error:
        raise ValueError(f"{MANIFEST}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{MANIFEST}: {error}") from error
    files: Dict[str, Any] = manifest["files"]
    return files


def problems(path: Path, only: Sequence[str] = ()) -> List[str]:
    """Return what is wrong with a checkpoint, one line per file; empty if it is whole.

    The whole content is read. Links and files that are not in the manifest count as damage.

    Args:
      path: the checkpoint.
      only: names of the files to check; empty = all.
    """
    try:
        listed = read_manifest(path)
        present = set(os.listdir(str(path))) - {MANIFEST}
    except (ValueError, OSError) as error:
        return [str(error)]
    wrong = []
    for name in sorted(only or {*listed, *present, STATE, TENSORS}):
        file = path / name
        try:
            if name not in present:  # also for a name outside this folder, e.g. ../x
                wrong.append(f"{name}: missing")
            elif name not in listed:
                wrong.append(f"{name}: not in the manifest")
            elif file.is_symlink() or not file.is_file():
                wrong.append(f"{name}: not a regular file")
            elif not _fits(file, listed[name]):
                wrong.append(f"{name}: content differs from its SHA-256")
        except OSError as error:
            wrong.append(f"{name}: {error.strerror}")
    if len(wrong) > 1:
        wrong.append(f"{MANIFEST}: may belong to another checkpoint")
    return wrong


def _fits(file: Path, listed: Any) -> bool:
    size = listed.get("bytes") if isinstance(listed, dict) else None
    return size == file.stat().st_size and entry(file) == listed
