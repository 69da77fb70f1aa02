"""The content of ``state.json``: position of a run, and its identity.

The identity is data, settings and versions, which must not change on resume.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np

from amp_xla.config import fields, flat
from amp_xla.data.batches.protocol import BatchSource, whole
from amp_xla.data.text.layout import LAYOUT
from amp_xla.errors import AmpXlaError
from amp_xla.process import json_files
from amp_xla.settings import Settings
from amp_xla.training.options import RunOptions

STATE = "state.json"
_RANKS = dict.fromkeys(("size", "first_size", "micro_batches"), json_files.Whole(1, 2**16))
_IDENTITY = dict.fromkeys(("data", "assets", "config", "settings", "versions", "defaults"), dict)
_COUNT = json_files.Whole()
_LOOP: Dict[str, Any] = {  # kinds of fields of the loop's state; others have the default's type
    "best": (int, float, type(None)), "rolled_back_at": (_COUNT, type(None)), "log_sums": [float],
}  # fmt: skip
# Settings for the length of a run. A larger value extends the run.
_LENGTHS = ("epochs", "steps")
_PARTS = {  # part of an identity -> word for its entries in messages
    "script": "script's", "config": "setting", "settings": "setting", "data": "data",
    "assets": "file", "versions": "version",
}  # fmt: skip
_STEPS = "steps per epoch"
# Part of "settings" if ``auto`` turned XLA on: maximum number of the batches' lengths.
XLA_LENGTHS = "lengths with xla"
# Part of "settings" of a run with ``--stride``: rows of a batch, and of a group of whole texts.
WINDOW_ROWS = "rows of windows"


@dataclasses.dataclass
class LoopState:
    """Position of a run. All counts start at 0. Saved as JSON with each checkpoint.

    Attributes:
      step: steps so far, skipped ones included. In a recipe a step is an update of all its
        micro-batches; in a script it is a batch of ``fit``.
      epoch, step_in_epoch: position of the next batch, from 0.
      samples: real samples seen.
      applied: updates made by the optimizer; this number decides the learning rate.
      skipped: updates skipped because of non-finite numbers.
      not_finite_in_a_row: steps since the last one that was finite.
      rolled_back_at: step at which the run was rolled back; None if it was not.
      best, best_step: best monitored value so far (None if there is none yet), and its step.
      stale: evaluations since the best one.
      evaluate_due: whether an evaluation is due after ``step`` and not done yet.
      log_sums, log_count: sums of loss and metrics, and number of steps in these sums, for the next
        line of metrics.jsonl.
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
        """Return the state with these ``values``; a field that they lack has its default.

        Raises:
          ValueError: ``step`` is missing; a field is of another type, or a count is negative.
        """
        kinds = {name: bool if value is False else _COUNT for name, value in vars(cls()).items()}
        kinds = {n: k for n, k in {**kinds, **_LOOP}.items() if n in values or n == "step"}
        json_files.require(values, kinds, "loop.")
        return cls(**{name: values[name] for name in kinds})

    def total(self, epochs: int, steps_per_epoch: int) -> int:
        """Return the whole run's steps; past epochs may have had more than ``steps_per_epoch``."""
        left = (epochs - self.epoch) * steps_per_epoch - self.step_in_epoch
        return max(epochs * steps_per_epoch, self.step + left)

    def record(self, value: float, higher_is_better: bool) -> bool:
        """Record an evaluation; return True if it is the best so far. NaN is never the best."""
        sign = 1.0 if higher_is_better else -1.0
        better = not math.isnan(value) and (self.best is None or sign * value > sign * self.best)
        if better:
            self.best, self.best_step, self.stale = value, self.step, 0
        else:
            self.stale += 1
        return better


def read_state(path: Path) -> Dict[str, Any]:
    """Return the content of ``state.json``; raise ValueError if a field is not as expected."""
    fields = {"recipe": str, "loop": dict, "identity": dict, "ranks": dict}
    state: Dict[str, Any] = json_files.read(path / STATE, fields)
    json_files.require(state["ranks"], _RANKS, "ranks.")
    json_files.require(state["identity"], _IDENTITY, "identity.")
    return state


def identity_of(engine: Any, config: Any) -> Dict[str, Any]:
    """Return the JSON-able identity of a run, saved with each checkpoint."""
    return {
        "data": {**engine.job.identity, **_batches(whole(engine.job.batches))},
        "script": getattr(engine.job, "script", {}),
        "assets": digests(engine.job.assets),
        # ``REMOVED`` has the settings of older versions, with the values that hold now.
        "config": {**getattr(config, "REMOVED", {}), **settings_of(config)},
        "may change": [n for n, field in fields(type(config)).items() if field.may_change],
        "defaults": {
            "dropout masks": "random",
            **dataclasses.asdict(Settings()),
            **settings_of(type(config)()),
        },
        "settings": dict(engine.settings),
        "versions": dict(engine.versions),
    }


def same_on_all(ranks: Any, identity: Mapping[str, Any]) -> None:
    """Raise AmpXlaError if a rank has other data, settings or versions than rank 0."""
    identities = ranks.gather([ranks.world.name, json.loads(json.dumps(identity))])
    first, expected = identities[0]
    for rank, (name, other) in enumerate(identities[1:], 1):
        sides = "on rank 0", f"on rank {rank}"
        lines = [*itertools.chain(*differences(expected, other, sides))]
        if lines:
            raise AmpXlaError(f"{name} differs from {first}: {'; '.join(lines[:3])}")


def settings_of(config: Any) -> Dict[str, Any]:
    """Return a recipe's settings by name, without ``RunOptions``."""
    return {name: value for name, value in flat(config).items() if name not in fields(RunOptions)}


def digests(assets: Mapping[str, bytes]) -> Dict[str, str]:
    """Return file name -> SHA-256 (hex) of its content, for all files except ``layout.json``."""
    files = {name: data for name, data in assets.items() if name != LAYOUT}
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def _batches(batches: BatchSource) -> Dict[str, Any]:
    """Return steps per epoch, and a hash of all arrays of the first batch."""
    digest = hashlib.sha256()
    for name, value in sorted(next(batches.epoch(0), {}).items()):
        digest.update(f"{name}{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return {_STEPS: batches.steps_per_epoch(), "first batch": digest.hexdigest()}


def differences(
    saved: Mapping[str, Any],
    current: Mapping[str, Any],
    sides: Tuple[str, str] = ("in the checkpoint", "now"),
) -> Tuple[List[str], List[str]]:
    """Return the differences between two identities, a checkpoint's and the current job's.

    Differences in the first list need ``--force-resume``; those in the second only make the run
    longer. Settings that may change are in neither list, unless the data differ, too. A setting
    that one identity lacks counts as its default. ``sides`` are the words for the two identities.
    """
    old, new = ({(p, key): v for p in _PARTS for key, v in side.get(p, {}).items()}
                for side in (saved, current))  # fmt: skip
    for side, other, defaults in ((old, new, current["defaults"]), (new, old, saved["defaults"])):
        for part, key in {*other} - {*side}:
            if part in ("config", "settings") and key in defaults:
                side[part, key] = defaults[key]
    lines: Dict[Tuple[str, str], str] = {}
    for part, word in _PARTS.items():
        for pair in sorted(pair for pair in {*old, *new} if pair[0] == part):
            was, now = old.get(pair, "absent"), new.get(pair, "absent")
            # A checkpoint is JSON, which turns tuples into lists.
            if was != now and was != (list(now) if isinstance(now, tuple) else now):
                lines[pair] = (
                    f"{word} {pair[1]}: {_short(was)} {sides[0]}, {_short(now)} {sides[1]}"
                )
    longer = []
    for key in _LENGTHS:
        was, now = old.get(("config", key)), new.get(("config", key))
        if isinstance(was, int) and isinstance(now, int) and was < now:
            longer.append(f"{key} {was} {sides[0]}, {now} {sides[1]}")
            del lines["config", key]
            # If an epoch is the whole run (pretraining), its number of steps differs, too.
            lines.pop(("data", _STEPS), None)
    free = [lines.pop(("config", key), "") for key in sorted(current["may change"])]
    if any(part == "data" for part, _ in lines):  # a setting that may change can be the cause
        return [*filter(None, free), *lines.values()], longer
    return [*lines.values()], longer


def _short(value: Any) -> str:
    text = str(value)
    return f"{text[:8]}..." if len(text) == 64 else text
