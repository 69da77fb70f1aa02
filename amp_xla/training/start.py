"""A run decided on, its folder made ready, and a loop put where it starts.

First everything that can be said against it, with not a byte written; then the folder.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Type

from amp_xla import backend
from amp_xla.errors import AmpXlaError
from amp_xla.graph.shape_watch import watched
from amp_xla.process.progress import note
from amp_xla.training import copies, distributed
from amp_xla.training import identity as identities
from amp_xla.training.checkpoint import CheckpointError, Saved, directory, find
from amp_xla.training.checkpoint.checkpoints import Checkpoints, restore_weights
from amp_xla.training.checkpoint.saved import ARCHITECTURE
from amp_xla.training.diagnosis import Diagnosis
from amp_xla.training.loop import Loop
from amp_xla.training.options import LoopOptions, RunOptions
from amp_xla.training.provenance import describe_process
from amp_xla.training.random_state import unrepeatable
from amp_xla.training.run import RunFolder
from amp_xla.training.step import initialize_variables


def prepare(
    run: RunFolder,
    recipe: str,
    config: Any,
    job: Any,
    options: LoopOptions,
    kept: Optional[Saved] = None,
    kind: Type[Loop] = Loop,
) -> Loop:
    """The loop, ready to train: variables set, from a checkpoint where the run continues.

    Args:
      run: the run folder, looked at.
      recipe: its name.
      config: its frozen dataclass.
      job: what its ``build`` returned.
      options: ``LoopOptions``.
      kept: the checkpoint to continue from; None = a start.
      kind: of loop; another than ours cannot replay a batch to find where it stopped being finite.

    Raises:
      AmpXlaError: its checkpoint does not fit this job, and the folder is as it was; or it cannot
        be written.
    """
    asked: RunOptions = config.run
    ranks = distributed.current()
    note(f"settings: {job.resolved.describe()}")
    if ranks.several:
        note(f"{ranks.world.size} ranks share each batch")
    initialize_variables()
    assets = _contents(job.assets)
    if ranks.first:
        run.check_writable(assets)
    if asked.warm_start and kept is None:  # queued again, the same command finds its checkpoint
        _warm_start(Path(asked.warm_start), job, assets)
    if kept is None:
        _begin(run, ranks)
    window = getattr(job.step.optimizer, "window", None)
    transient = window.state_variables if window else []  # zero between updates
    checkpoints = Checkpoints(
        run.checkpoints,
        [v for v in job.variables if not any(v is other for other in transient)],
        asked.keep,
        getattr(job.step.optimizer, "state_variables", ()),
        assets,
        run.has_checkpoint,
    )
    shapes = {**checkpoints.bundle.shapes(), **(job.sharded.shapes() if job.sharded else {})}
    identity = identities.describe(job, config, shapes, assets)
    identities.same_on_all(ranks, identity)
    for name in unrepeatable(job.step.train_op):
        note(f"{name} draws random numbers whose state TensorFlow hides: resuming is not exact")
    loop = kind(
        run,
        job,
        watched(job.step, job.batches, job.resolved.settings.xla, note),
        checkpoints,
        options,
        asked,
        identity,
        diagnose=Diagnosis(run.path, job) if kind is Loop else None,
    )
    if kept is not None:
        _resume(loop, kept, asked.force_resume)
        _begin(run, ranks)
        if ranks.first:
            directory.settle(kept.path, loop.state.best_is_of)
    else:
        ranks.broadcast(job.variables)
    note(f"run folder: {run.path}")
    if kept is None and asked.resume:
        note(f"{run.path} has no checkpoint yet: starting from the beginning")
    if ranks.first:
        copies.write(run, config, describe_process(recipe, job), assets, kept)
    return loop


def _begin(run: RunFolder, ranks: distributed.Ranks) -> None:
    """Let rank 0 create the folder, whose name may depend on the clock."""
    if ranks.first:
        run.begin()
    run.name = ranks.from_first(lambda: run.name)


def _resume(loop: Loop, kept: Saved, force: bool) -> None:
    """Puts the loop and the session where a checkpoint was, or says what speaks against it."""
    whole, identity = kept.path, loop.identity
    if kept.state.get("recipe", loop.run.recipe) != loop.run.recipe:
        raise CheckpointError(f"{whole} is of the recipe {kept.recipe}, not of {loop.run.recipe}")
    found = identities.differences(kept.state["identity"], identity)
    if found.fatal:
        raise CheckpointError(
            f"{whole} holds another model, and cannot be continued: {'; '.join(found.fatal)}"
        )
    if found.forcible and not force:
        raise CheckpointError(
            f"{whole} belongs to a run that differs: {'; '.join(found.forcible)}; start a new run, "
            f"or give --force-resume to go on all the same"
        )
    saved = loop.restore(whole)
    try:
        loop.resume(saved, longer=bool(found.longer))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{whole / 'state.json'} cannot be used: {error}") from error
    for line in found.forcible:
        note(f"resuming in spite of {line}")
    then, size = saved["ranks"]["size"], loop.ranks.world.size
    micro_batches = getattr(loop.step.optimizer, "accumulate", 1)
    if (then, saved["ranks"]["micro_batches"]) != (size, micro_batches):
        note(
            f"ranks: {then} then, {size} now; micro-batches per update and rank: "
            f"{saved['ranks']['micro_batches']} then, {micro_batches} now: the same samples in the "
            f"same updates, but other dropout masks"
        )
    note(
        f"resumed from {whole.name}, its vocabulary, architecture and weights: step "
        f"{loop.state.step}, epoch {loop.state.epoch}, {loop.state.samples} samples seen"
    )
    if found.longer:
        rate = float(backend.session().run(loop.step.learning_rate))
        steps = loop.job.total_steps(loop.options.epochs)
        note(
            f"extended, {'; '.join(found.longer)}: the learning rate goes on along the schedule of "
            f"the whole length, {rate:.3g} at step {loop.state.step} of {steps}"
        )


def _warm_start(run: Path, job: Any, assets: Mapping[str, bytes]) -> None:
    saved = Saved(find(run))
    then: Dict[str, str] = saved.state["identity"]["assets"]
    # A token's or a label's number means what these say. The architecture: tensors have shapes.
    for name, digest in sorted(identities.digests(assets).items()):
        if name != ARCHITECTURE and then.get(name, digest) != digest:
            raise CheckpointError(
                f"--warm-start {run}: its {name} is another than this run's, so its weights would "
                f"mean something else: {then[name][:8]}... there, {digest[:8]}... here"
            )
    restore_weights(saved.path, job.common(job.model.weights))
    if job.sharded:
        job.sharded.read(saved.path, weights_only=True)
    note(
        f"warm start: weights of {saved.path}; steps, optimizer, loss scale and order start anew "
        f"(--resume is what continues a run)"
    )


def _contents(assets: Mapping[str, Any]) -> Dict[str, bytes]:
    """File name -> content of what functions write into paths."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, save in sorted(assets.items()):
            try:
                save(str(Path(folder) / name))
                found[name] = (Path(folder) / name).read_bytes()
            except OSError as error:
                raise AmpXlaError(f"cannot write {name}: {error.strerror}") from error
    return found
