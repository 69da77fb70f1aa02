"""From a built engine to a loop that is ready: checks first, then the run folder.

Nothing is written before all checks have passed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Dict, Mapping, Optional

from amp_xla.errors import AmpXlaError
from amp_xla.process.progress import note
from amp_xla.training import identity as identities
from amp_xla.training import run_metadata
from amp_xla.training.checkpoint import ARCHITECTURE, Checkpoint, CheckpointError, find, tidy
from amp_xla.training.checkpoint_writer import CheckpointWriter
from amp_xla.training.engine import Engine
from amp_xla.training.loop import Loop
from amp_xla.training.options import LoopOptions, RunOptions
from amp_xla.training.run import RunFolder


def prepare(
    run: RunFolder,
    config: Any,
    engine: Engine,
    options: LoopOptions,
    resume_from: Optional[Checkpoint] = None,
) -> Loop:
    """Return the loop, ready to train.

    Args:
      run: the run folder.
      config: the recipe's configuration; its field ``run`` has ``RunOptions``.
      engine: what trains.
      options: see ``LoopOptions``.
      resume_from: checkpoint to continue from; None = a new run.

    Raises:
      AmpXlaError: the checkpoint does not fit, and nothing was written; or the disk refused.
    """
    run_options: RunOptions = config.run
    ranks, files = engine.ranks, _contents(engine.job.assets)
    if ranks.several:
        note(f"{ranks.world.size} ranks share each batch")
    if ranks.first:
        run.check_writable(files)
    # The same command, queued again, finds its checkpoint.
    if run_options.warm_start and resume_from is None:
        _warm_start(Path(run_options.warm_start), engine, files)
    identity = identities.describe(engine, config, files)
    identities.same_on_all(ranks, identity)
    for line in engine.warnings():
        note(line)
    writer = CheckpointWriter(run.checkpoints, run_options.keep, files, run.has_checkpoint)
    loop = Loop(run, engine, writer, options, run_options, identity)
    if resume_from is not None:
        _resume(loop, resume_from, run_options.force_resume)
    else:
        engine.start()
    _begin(run, ranks)
    writer.folder = run.checkpoints  # a name from the clock is final now
    if ranks.first and resume_from is not None:
        tidy(resume_from)
    note(f"run folder: {run.path}")
    if resume_from is None and run_options.resume:
        note(f"{run.path} has no checkpoint yet: starting from the beginning")
    if ranks.first:
        process = run_metadata.describe_process(run.recipe, engine.process)
        run_metadata.write(run, config, process, files, resume_from)
    return loop


def _begin(run: RunFolder, ranks: Any) -> None:
    """Let rank 0 create the folder, whose name may depend on the clock."""
    if ranks.first:
        run.begin()
    run.name = ranks.from_first(lambda: run.name)


def _resume(loop: Loop, resume_from: Checkpoint, force: bool) -> None:
    """Restore a checkpoint, or raise CheckpointError with the differences."""
    whole, identity = resume_from.path, loop.identity
    if resume_from.recipe != loop.run.recipe:
        raise CheckpointError(
            f"{whole} is of the recipe {resume_from.recipe}, not of {loop.run.recipe}"
        )
    changes = identities.differences(resume_from.identity, identity)
    if changes.fatal:
        changed = [line for line in changes.forcible if line.startswith("setting ")]
        raise CheckpointError(
            f"{whole} is of another model and cannot be continued: "
            f"{'; '.join(changed + changes.fatal)}"
        )
    if changes.forcible and not force:
        raise CheckpointError(
            f"{whole} belongs to a run that differs: {'; '.join(changes.forcible)}; start a new "
            f"run, or give --force-resume to continue anyway"
        )
    loop.engine.restore(resume_from)
    loop.resume(resume_from.loop, longer=bool(changes.longer))
    for line in changes.forcible:
        note(f"resuming despite {line}")
    saved, size = resume_from.ranks, loop.engine.ranks.world.size
    micro_batches = loop.engine.micro_batches
    if (saved["size"], saved["micro_batches"]) != (size, micro_batches):
        note(
            f"ranks: {saved['size']} then, {size} now; micro-batches per update and rank: "
            f"{saved['micro_batches']} then, {micro_batches} now: the same samples in the "
            f"same updates, but other dropout masks"
        )
    note(
        f"resumed from {whole.name}, its vocabulary, architecture and weights: step "
        f"{loop.state.step}, epoch {loop.state.epoch}, {loop.state.samples} samples seen"
    )
    if changes.longer:
        rate, steps = loop.engine.learning_rate(), loop.total_steps
        note(
            f"extended, {'; '.join(changes.longer)}: the learning rate follows the schedule of the "
            f"new length, {rate:.3g} at step {loop.state.step} of {steps}"
        )


def _warm_start(run: Path, engine: Engine, files: Mapping[str, bytes]) -> None:
    saved = find(run)
    saved_digests: Dict[str, str] = saved.identity["assets"]
    # A token's or a label's number means what these say. The architecture: tensors have shapes.
    for name, digest in sorted(identities.digests(files).items()):
        if name != ARCHITECTURE and saved_digests.get(name, digest) != digest:
            raise CheckpointError(
                f"--warm-start {run}: its {name} differs from this run's, so its weights do not "
                f"fit: {saved_digests[name][:8]}... there, {digest[:8]}... here"
            )
    engine.restore(saved, weights_only=True)
    note(
        f"warm start: weights of {saved.path}; steps, optimizer, loss scale and order start from 0 "
        f"(--resume continues a run)"
    )


def _contents(assets: Mapping[str, Any]) -> Dict[str, bytes]:
    """Return file name -> content of what functions write into paths."""
    contents = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, save in sorted(assets.items()):
            try:
                save(str(Path(folder) / name))
                contents[name] = (Path(folder) / name).read_bytes()
            except OSError as error:
                raise AmpXlaError(f"cannot write {name}: {error.strerror}") from error
    return contents
