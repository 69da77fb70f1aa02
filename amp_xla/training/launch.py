"""From a configuration to a finished run: the order in which everything starts.

1. look at the run folder, and find the checkpoint that a resumed run continues from;
2. ``build``: settings, framework, data, model;
3. initialize variables, or restore them; nothing has been written so far;
4. write configuration, versions, command and files into the folder; 5. train.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Callable, List, Optional

from amp_xla.config import part
from amp_xla.errors import AmpXlaError
from amp_xla.process.progress import note
from amp_xla.process.stopping import SignalWatch
from amp_xla.process.world import World, world
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.options import LoopOptions, PrecisionOptions, RunOptions
from amp_xla.training.run import ReadOnlyRunFolder, RunFolder

__all__ = ["LoopOptions", "RunOptions", "train"]


def train(
    recipe: str,
    config: Any,
    build: Callable[..., Any],
    options: LoopOptions,
    framework: Optional[Any] = None,
) -> int:
    """Train a recipe, from the start or from a checkpoint; return the exit code.

    Args:
      recipe: name of the module in ``recipes``.
      config: its configuration; the field ``run`` has ``RunOptions``.
      build: config -> ``Job``; (config, ``Checkpoint``) -> ``Job`` for a resumed run, which takes
        vocabulary and architecture from the checkpoint.
      options: see ``LoopOptions``.
      framework: the functions of ``TensorFlow`` for another framework.

    Raises:
      Stopped: a signal arrived; a checkpoint was written first.
      AmpXlaError: see ``Loop.train``; or a checkpoint does not fit this job.
    """
    run: Optional[RunFolder] = None
    framework = framework or TensorFlow
    with SignalWatch() as watch:
        try:
            with watch.immediately("before the first step; nothing was lost", True):
                ranks = framework.join(config)
                run = _folder(recipe, config.run, ranks)
                resume_from = _newest(run, ranks)
                if resume_from is not None:
                    framework.join(config, resume_from.ranks["first_size"])
                job = build(config) if resume_from is None else build(config, resume_from)
                framework.check_device()
                loop = framework.prepare(run, config, job, options, resume_from)
            began = time.monotonic()
            loop.train(watch)
            report(loop, time.monotonic() - began)
            note(_next(sys.modules[build.__module__], loop))
            watch.check("after the last step; the run is complete")
            return 0
        finally:
            if run is not None:
                run.close()


def _folder(recipe: str, run_options: RunOptions, ranks: Any) -> RunFolder:
    """Open the run folder on the first rank, whose choice of a name holds for all."""
    if not ranks.first:
        return ReadOnlyRunFolder(recipe, ranks.gather("")[0])
    run = RunFolder(recipe, run_options.name, resume=run_options.resume)
    ranks.gather(run.name)
    return run


def _newest(run: RunFolder, ranks: Any) -> Optional[Checkpoint]:
    """Return the checkpoint to continue from, the same one on each rank."""
    newest = run.newest() if ranks.first else None
    name = ranks.gather(None if newest is None else newest.path.name)[0]
    if ranks.first or name is None:
        return newest
    path = run.checkpoints / name
    if not path.is_dir():
        raise AmpXlaError(
            f"{path} is not on this host: to resume on several, runs/ must be on a file system "
            f"that all of them share"
        )
    return Checkpoint(path)


class _Alone:
    """One process, before TensorFlow is imported."""

    world, first, several = World(), True, False

    def gather(self, value: Any) -> List[Any]:
        """Return the value of the only rank."""
        return [value]


class TensorFlow:
    """The parts of a start that depend on the framework."""

    @staticmethod
    def join(config: Any, first_size: int = 0) -> Any:
        """Join the ranks; a micro-batch is no larger than with ``first_size`` ranks."""
        if world().size == 1 and first_size < 2:
            known = sys.modules.get("amp_xla.training.distributed")
            if known is not None:  # a process that trains more than once
                known.join(1)
            return _Alone()
        # The settings apply before anything imports TensorFlow.
        from amp_xla.backend import configuring

        options = part(config, PrecisionOptions)
        configuring.resolve() if options is None else options.resolve()
        from amp_xla.training import distributed

        return distributed.join(first_size)

    @staticmethod
    def check_device() -> None:
        """Raise AmpXlaError if there is a GPU that TensorFlow does not see."""
        from amp_xla.backend import configuring
        from amp_xla.backend.visible import refuse_unseen_gpu

        refuse_unseen_gpu(configuring.current().settings.device, os.environ)

    @staticmethod
    def prepare(
        run: RunFolder, config: Any, job: Any, options: LoopOptions, resume_from: Any
    ) -> Any:
        """Return the loop, ready to train."""
        from amp_xla.training.start import prepare
        from amp_xla.training.tensorflow_engine import TensorFlowEngine

        note(f"settings: {job.resolved.describe()}")
        return prepare(run, config, TensorFlowEngine(job), options, resume_from)


def report(loop: Any, seconds: float) -> None:
    """Print what a run of so many seconds reached, and what its checkpoints cost."""
    state = loop.state
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


def _next(recipe: Any, loop: Any) -> str:
    """Return the next command: predict if the recipe can, else a use of its weights."""
    run = str(loop.run.path)
    if hasattr(recipe, "predict"):
        return f"predict with: amp-xla predict {run} texts.txt"
    if loop.engine.job.export is not None:
        fill = f"amp-xla fill {run} --text 'the [MASK] of a list'"
        return (f"try it: {fill}\n" if hasattr(recipe, "fill") else "") + (
            f"fine-tune its weights with: amp-xla train classification -- --bert {run}"
        )
    return f"check its checkpoints with: amp-xla verify {run}"
