"""From a config to a finished run: the order in which everything starts, in one place.

1. the run folder, with the config and what the process is (versions, revision, command);
2. ``build``: settings, TensorFlow, data, graph;
3. assets (vocabulary, labels) beside the checkpoints;
4. variables initialised, then restored if a run is resumed; 5. the loop.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Optional

from amp_xla.errors import AmpXlaError
from amp_xla.training.options import LoopOptions, RunOptions
from amp_xla.training.run import RunFolder
from amp_xla.training.stopping import SignalWatch

__all__ = ["LoopOptions", "RunOptions", "train"]


def train(recipe: str, config: Any, build: Callable[[Any], Any], options: LoopOptions) -> int:
    """Trains ``recipe``, from the start or from a checkpoint; returns the process' exit code.

    Args:
      recipe: name of the module in ``recipes``.
      config: its frozen dataclass; its field ``run`` holds ``RunOptions``.
      build: config -> ``Job``.
      options: ``LoopOptions``.

    Raises:
      Stopped: a signal ended the run in good order.
      AmpXlaError: see ``Loop.train``; or a checkpoint does not fit this job.
    """
    asked: RunOptions = config.run
    if asked.resume and asked.warm_start:
        raise AmpXlaError(
            "--resume continues a run with everything, --warm-start begins a new one with old "
            "weights only: give one of them"
        )
    run: Optional[RunFolder] = None
    with SignalWatch() as watch:
        try:
            with watch.immediately("before the first step; nothing was lost"):
                if asked.resume:  # a folder in use is refused before the slow part
                    run = RunFolder(recipe, asked.name, resume=True)
                job = build(config)
                if run is None:  # data errors come before a folder is made
                    run = RunFolder(recipe, asked.name)
                from amp_xla.training.start import prepare

                loop = prepare(run, recipe, config, job, options)
            return _run(loop, watch)
        finally:
            if run is not None:
                run.close()


def _run(loop: Any, watch: SignalWatch) -> int:
    from amp_xla.training.progress import note

    began = time.monotonic()
    state = loop.train(watch)
    seconds = time.monotonic() - began
    best = "none" if state.best is None else f"{state.best:.4f} at step {state.best_step}"
    note(
        f"done: best dev {loop.options.monitor} {best}; {state.step} steps ({state.skipped} "
        f"skipped), {state.samples} samples in {seconds:.0f} s of training and evaluation"
    )
    cost = loop.checkpoints.cost
    if cost.written:
        note(
            f"{cost.written} checkpoints of {cost.bytes_each / 1e6:.1f} MB held training up for "
            f"{cost.held_seconds:.2f} s ({cost.held_seconds / max(seconds, 1e-9):.1%}); writing "
            f"them took {cost.seconds:.2f} s beside it"
        )
    note(f'predict with: make predict RUN={loop.run.path} ARGS="--file texts.txt"')
    return 0
