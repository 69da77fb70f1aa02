"""From a config to a finished run: the order in which everything starts, in one place.

1. the run folder is looked at, and the newest whole checkpoint where a run goes on;
2. ``build``: settings, TensorFlow, data, graph;
3. variables initialised, then restored if a run is resumed: up to here nothing is written;
4. the folder with config, versions, revision, command, assets; 5. the loop.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Callable, Optional

from amp_xla.config import part
from amp_xla.errors import AmpXlaError
from amp_xla.process.stopping import SignalWatch
from amp_xla.process.world import world
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.options import LoopOptions, PrecisionOptions, RunOptions
from amp_xla.training.run import ReadOnlyRunFolder, RunFolder

__all__ = ["LoopOptions", "RunOptions", "train"]


def train(
    recipe: str,
    config: Any,
    build: Callable[..., Any],
    options: LoopOptions,
    engine: Optional[Any] = None,
) -> int:
    """Trains ``recipe``, from the start or from a checkpoint; returns the process' exit code.

    Args:
      recipe: name of the module in ``recipes``.
      config: its frozen dataclass; its field ``run`` holds ``RunOptions``.
      build: config -> ``Job``; (config, ``Checkpoint``) -> ``Job`` where a run goes on from that
        checkpoint, whose vocabulary and architecture then hold.
      options: ``LoopOptions``.
      engine: what trains, where it is not TensorFlow: the functions of ``TensorFlowEngine``.

    Raises:
      Stopped: a signal ended the run in good order.
      AmpXlaError: see ``Loop.train``; or a checkpoint does not fit this job.
    """
    run: Optional[RunFolder] = None
    engine = engine or TensorFlowEngine
    with SignalWatch() as watch:
        try:
            with watch.immediately("before the first step; nothing was lost", True):
                run = engine.folder(recipe, config)
                resume_from = engine.newest(run)
                engine.share(resume_from, config)
                job = build(config) if resume_from is None else build(config, resume_from)
                engine.check_device()
                loop = engine.prepare(run, recipe, config, job, options, resume_from)
            return _run(loop, watch, sys.modules[build.__module__])
        finally:
            if run is not None:
                run.close()


def _folder(recipe: str, config: Any) -> RunFolder:
    """The run folder; of several ranks the first one looks, and tells the others its name."""
    asked: RunOptions = config.run
    if world().size == 1:
        return RunFolder(recipe, asked.name, resume=asked.resume)
    _settle(config)
    from amp_xla.training import distributed

    ranks = distributed.join()
    if not ranks.first:
        return ReadOnlyRunFolder(recipe, ranks.gather("")[0])
    run = RunFolder(recipe, asked.name, resume=asked.resume)
    ranks.gather(run.name)
    return run


def _newest(run: RunFolder) -> Optional[Checkpoint]:
    """The checkpoint to go on from, the same one on every rank."""
    if world().size == 1:
        return run.newest()
    from amp_xla.training import distributed

    resume_from = None if isinstance(run, ReadOnlyRunFolder) else run.newest()
    name = distributed.current().gather(None if resume_from is None else resume_from.path.name)[0]
    if not isinstance(run, ReadOnlyRunFolder) or name is None:
        return resume_from
    path = run.checkpoints / name
    if not path.is_dir():
        raise AmpXlaError(
            f"{path} is not on this host: to resume on several, runs/ must be on a file system "
            f"that all of them share"
        )
    return Checkpoint(path)


def _share(resume_from: Optional[Checkpoint], config: Any) -> None:
    """Join the ranks; a micro-batch is no larger than when the run began."""
    first_size = 0 if resume_from is None else resume_from.ranks["first_size"]
    if world().size == 1 and first_size < 2:
        known = sys.modules.get("amp_xla.training.distributed")
        if known is not None:  # a process that trains more than once
            known.join(1)
        return
    if world().size == 1:
        _settle(config)
    from amp_xla.training import distributed

    distributed.join(first_size)


def _settle(config: Any) -> None:
    """Applies the settings, before anything here imports TensorFlow."""
    from amp_xla.backend import configuring

    options = part(config, PrecisionOptions)
    if options is None:
        configuring.resolve()
    else:
        options.resolve()


def _check_device() -> None:
    from amp_xla.backend import configuring
    from amp_xla.backend.visible import refuse_unseen_gpu

    refuse_unseen_gpu(configuring.current().device, os.environ)


def _prepare(*args: Any) -> Any:
    from amp_xla.training.start import prepare

    return prepare(*args)


def _prepare_fit(*args: Any) -> Any:
    from amp_xla.training.fit import prepare

    return prepare(*args)


class TensorFlowEngine:
    """The parts of a start that differ between TensorFlow and others, in order."""

    folder = staticmethod(_folder)
    newest = staticmethod(_newest)
    share = staticmethod(_share)
    check_device = staticmethod(_check_device)
    prepare = staticmethod(_prepare)


class KerasEngine(TensorFlowEngine):
    """For a recipe whose ``build`` gives a ``FitJob``: trained by Keras' ``model.fit``."""

    prepare = staticmethod(_prepare_fit)


def _run(loop: Any, watch: SignalWatch, recipe: Any) -> int:
    from amp_xla.process.progress import note

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
    note(_next(recipe, loop))
    watch.check("after the last step; the run is complete")
    return 0


def _next(recipe: Any, loop: Any) -> str:
    """What to type now: predict where the recipe can, else what its weights are good for."""
    run = str(loop.run.path)
    if hasattr(recipe, "predict"):
        return f"predict with: amp-xla predict {run} texts.txt"
    if loop.job.export is not None:
        fill = f"amp-xla fill {run} --text 'the [MASK] of a list'"
        return (f"try it: {fill}\n" if hasattr(recipe, "fill") else "") + (
            f"fine-tune its weights with: amp-xla train classification -- --bert {run}"
        )
    return f"check its checkpoints with: amp-xla verify {run}"
