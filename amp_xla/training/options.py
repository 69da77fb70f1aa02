"""What every recipe lets its user say about a run: its name, its checkpoints, how it goes on."""

from __future__ import annotations

import dataclasses
from typing import Optional

from typing_extensions import Literal


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """A recipe's config holds one as ``run``; on the command line its fields have no prefix."""

    name: Optional[str] = None
    """name of the run's folder in runs/<recipe>; none = date and time, with --resume the newest"""
    resume: bool = False
    """continue the run from its newest whole checkpoint, exactly; start it if there is none"""
    force_resume: bool = False
    """with --resume: go on though data, settings or versions differ from the checkpoint's"""
    warm_start: Optional[str] = None
    """run folder whose best weights to begin with; steps, optimizer and order start anew"""
    checkpoint_every: int = 0
    """steps between checkpoints, besides those at each evaluation; 0 = by time only"""
    checkpoint_minutes: float = 10.0
    """minutes between checkpoints; 0 = at evaluations only"""
    keep: int = 2
    """how many of the newest checkpoints stay on disk, besides the best"""
    on_nonfinite: Literal["skip", "report", "stop"] = "skip"
    """when loss or gradients are not finite: skip the step; report names the cause once; or stop"""


@dataclasses.dataclass(frozen=True)
class LoopOptions:
    """How often the loop does what.

    Attributes:
      epochs: passes over the training data.
      log_every: steps between two lines of metrics.jsonl.
      evaluate_every: steps between evaluations; 0 = at the end of each epoch. The last step of a
        run is always evaluated.
      monitor: name of the evaluated value that decides what is best.
      higher_is_better: direction of ``monitor``.
      patience: evaluations without improvement until the run stops; 0 = never.
      nonfinite_limit: skipped steps in a row that mean trouble. A dynamic loss scale that starts
        at 2**15 reaches 1 after 15, and the search for the right scale must not count as trouble.
    """

    epochs: int = 1
    log_every: int = 20
    evaluate_every: int = 0
    monitor: str = "accuracy"
    higher_is_better: bool = True
    patience: int = 0
    nonfinite_limit: int = 20
