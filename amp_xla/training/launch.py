"""Start of a run: from a configuration to the training loop.

1. open the run folder, and find the checkpoint that a resumed run continues from;
2. ``build``: settings, framework, data, model;
3. initialize variables, or restore them; nothing has been written so far;
4. write configuration, versions, command and files into the folder; 5. train.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import shlex
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

from amp_xla import backend
from amp_xla.backend import configuring
from amp_xla.config import changed, flat
from amp_xla.errors import AmpXlaError
from amp_xla.process.exits import exit_code
from amp_xla.process.progress import note
from amp_xla.process.stopping import SignalWatch
from amp_xla.process.world import world
from amp_xla.training import checkpoint, distributed
from amp_xla.training.checkpoint import Checkpoint, CheckpointError
from amp_xla.training.context import build_job
from amp_xla.training.distributed import Ranks
from amp_xla.training.engine import Engine
from amp_xla.training.loop import Loop
from amp_xla.training.options import RunOptions
from amp_xla.training.recipe import Recipe
from amp_xla.training.run import RunFolder, write_about
from amp_xla.training.state import differences, digests, same_on_all


def train(recipe: Recipe, config: Any) -> int:
    """Train a recipe, from the start or from a checkpoint; return the exit code.

    If ``--xla auto`` turned XLA on and XLA fails, training goes on without XLA. For errors see
    ``Loop.train``.
    """
    job = loop = None
    note(f"{recipe.name}: loading libraries ...")
    with SignalWatch() as watch, contextlib.ExitStack() as opened:
        try:
            with watch.nothing_to_save("before the first step; nothing was lost"):
                if world().size > 1 and recipe.join is None:  # before Horovod imports TensorFlow
                    config.precision_options.resolve()
                ranks = (recipe.join or distributed.join)()
                run = _folder(recipe.name, config.run, ranks)
                opened.callback(run.close)
                resume_from = newest(run, ranks)
                if resume_from is not None:  # keeps micro-batches as small as they were
                    ranks.first_size = resume_from.ranks["first_size"]
                job = build_job(recipe.build, config, resume_from)
                options = recipe.loop_options(config)
                loop = prepare(Loop(run, job.engine(), options, config), resume_from)
            began = time.monotonic()
            loop.train(watch)
            report(loop, time.monotonic() - began)
            note(_next(recipe, loop))
            watch.check("after the last step; the run is complete")
            return 0
        except Exception as error:
            if not configuring.fall_back(error):
                raise
            if loop is not None:
                config = changed(config, name=loop.run.name, resume=True)
    job = loop = None
    backend.clear_session()
    return train(recipe, config)


def main(recipe: Recipe, argv: Optional[Sequence[str]] = None) -> int:
    """Train a recipe with flags, by default those of the command line; return the exit code."""
    return train(recipe, recipe.parse(argv))


def run_program(recipe: Recipe) -> None:
    """Train ``recipe``, whose file was started as a program, and exit."""
    sys.exit(exit_code(main, recipe))


def _folder(recipe: str, run_options: RunOptions, ranks: Ranks) -> RunFolder:
    """Open the run folder on the first rank, which chooses its name for all ranks."""
    if not ranks.first:
        return RunFolder(recipe, ranks.gather("")[0], writes=False)
    run = RunFolder(recipe, run_options.name, resume=run_options.resume)
    if run_options.resume and not run.path.exists():
        _refuse_misspelt(run)
    ranks.gather(run.name)
    return run


def _refuse_misspelt(run: RunFolder) -> None:
    """Raise AmpXlaError if the name is another run's, misspelt, e.g. ``frist`` for ``first``."""
    for other in checkpoint.runs_in(run.path.parent):
        one, two = (re.sub(r"[\W_]", "", name.lower()) for name in (run.name, other))
        slips = sum(((Counter(one) - Counter(two)) + (Counter(two) - Counter(one))).values())
        close = difflib.SequenceMatcher(None, one, two).ratio() > 0.7 and slips <= 1
        if close and re.sub(r"\D", "", one) == re.sub(r"\D", "", two):
            raise AmpXlaError(
                f"--resume --name {run.name}: there is no such run, but there is "
                f"{run.path.parent / other}; to start a new run of this name, leave out --resume"
            )


def newest(run: RunFolder, ranks: Ranks) -> Optional[Checkpoint]:
    """Return the checkpoint to continue from, the same one on each rank; None if there is none."""
    name = ranks.from_first(lambda: getattr(run.newest(), "path", Path()).name)
    if ranks.first or not name:
        return run.newest()
    path = run.checkpoints / name
    if not path.is_dir():
        raise AmpXlaError(
            f"{path} is not on this host: to resume on several hosts, put runs/ on a file "
            f"system that all of them share"
        )
    return Checkpoint(path)


def prepare(loop: Loop, resume_from: Optional[Checkpoint] = None) -> Loop:
    """Prepare ``loop`` to train a new run or to continue from a checkpoint; return the loop.

    Raises:
      AmpXlaError: the checkpoint does not fit (then nothing was written), or the folder is in use.
    """
    run, engine, run_options = loop.run, loop.engine, loop.run_options
    ranks = engine.ranks
    if ranks.several:
        note(f"{ranks.world.size} ranks share each batch")
    # The same command, started again by a queue, continues from its own checkpoint.
    if run_options.warm_start and resume_from is None:
        _warm_start(Path(run_options.warm_start), engine)
    same_on_all(ranks, loop.identity)
    if resume_from is not None:
        _resume(loop, resume_from, run_options.force_resume)
    else:
        engine.start()
    run.begin()
    run.name = ranks.from_first(lambda: run.name)  # it may depend on the clock
    if ranks.first and resume_from is not None:
        checkpoint.set_aside_damaged(resume_from)
    note(f"run folder: {run.path}; after an interruption, {run.continuing}")
    if resume_from is None and run_options.resume:
        names = checkpoint.runs_in(run.path.parent) if run.in_runs else []
        runs = ", ".join(names[-9:])  # the newest, if named by date
        there = f"; runs there: {runs}" if runs else ""
        note(f"{run.path} has no checkpoint yet: starting from the beginning{there}")
    if ranks.first:
        write_about(run, loop.config, engine)
    return loop


def _resume(loop: Loop, resume_from: Checkpoint, force: bool) -> None:
    """Restore a checkpoint, or raise CheckpointError with the differences."""
    path, identity = resume_from.path, loop.identity
    if resume_from.recipe != loop.run.recipe:
        raise CheckpointError(
            f"{path} belongs to the recipe {resume_from.recipe}, not to {loop.run.recipe}"
        )
    forcible, longer = differences(resume_from.identity, identity)
    try:
        loop.engine.restore(resume_from)
    except CheckpointError as error:
        raise CheckpointError("; ".join([str(error), *forcible])) from error
    if forcible and not force:
        raise CheckpointError(
            f"{path} differs from this command: {'; '.join(forcible)}; start a new run, or "
            f"use {loop.run.force_by} to continue anyway"
        )
    loop.resume(resume_from.loop, longer=bool(longer))
    for line in forcible:
        note(f"resuming although this differs: {line}")
    saved, size = resume_from.ranks, loop.engine.ranks.world.size
    micro_batches = loop.engine.micro_batches
    if (saved["size"], saved["micro_batches"]) != (size, micro_batches):
        note(
            f"{size} ranks instead of {saved['size']}, {micro_batches} micro-batches per update "
            f"and rank instead of {saved['micro_batches']}: the same samples in the same updates, "
            f"but other dropout masks"
        )
    files = " with its vocabulary, architecture and weights" if identity["assets"] else ""
    note(
        f"resumed from {path.name}{files}: step {loop.state.step}, epoch {loop.epoch_number}, "
        f"{loop.state.samples} samples seen"
        + "; the run is complete: more epochs or steps would continue it"
        * (loop.state.step >= loop.total_steps)
    )
    if longer:
        note(
            f"extended: {'; '.join(longer)}; the learning rate follows the schedule of the "
            f"new length from here on, at step {loop.state.step} of {loop.total_steps}"
        )


def _warm_start(run: Path, engine: Engine) -> None:
    saved = checkpoint.find(run)
    saved_digests: Dict[str, str] = saved.identity["assets"]
    # These files give numbers to tokens and labels. The architecture is checked by tensor shapes.
    for name, digest in sorted(digests(engine.job.assets).items()):
        if name != checkpoint.ARCHITECTURE and saved_digests.get(name, digest) != digest:
            raise CheckpointError(
                f"--warm-start {run}: its {name} differs from this run's (SHA-256 "
                f"{saved_digests[name][:8]}... and {digest[:8]}...), so its weights do not fit"
            )
    engine.restore(saved, weights_only=True)
    note(
        f"warm start: weights of {saved.path}; step, optimizer, loss scale and order of the "
        f"data are new (--resume continues a run)"
    )


def report(loop: Any, seconds: float) -> None:
    """Print the result of a run, which took ``seconds``."""
    state = loop.state
    best = ""
    if state.best is not None:
        best = f"best dev {loop.options.monitor} {state.best:.4f} at step {state.best_step}; "
    page = loop.run.path / "report.html"
    note(
        f"done: {best}{state.step} steps ({state.skipped} skipped), {state.samples} samples; "
        f"{seconds:.0f} s of training and evaluation" + f"\nreport: {page}" * page.is_file()
    )


def _next(recipe: Recipe, loop: Any) -> str:
    run, settings = shlex.quote(str(loop.run.path)), flat(loop.config)
    flag = f" --recipe {recipe.file}" if recipe.file else ""
    scored = recipe.scored is not None and settings.get("multilabel") is None
    fill = recipe.fill is not None and settings.get("objective") == "mlm"
    uses = {
        f"predict with: amp-xla predict {run} FILE": recipe.predict is not None,
        f"score labelled samples with: amp-xla evaluate {run} --file FILE": scored,
        f"try it: amp-xla fill {run} --text 'the [MASK] of a list'": fill,
        f"export it with: amp-xla export {run}": bool(recipe.exportable or recipe.export),
    }
    lines = [f"{line}{flag}" for line, offered in uses.items() if offered]
    if loop.engine.job.export is not None:
        lines.append(f"fine-tune its weights with: amp-xla train classification --bert {run}")
    return "\n".join(lines or [f"check its checkpoints with: amp-xla verify {run}"])
