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
from amp_xla.training import distributed, run_metadata
from amp_xla.training import identity as identities
from amp_xla.training.checkpoint import ARCHITECTURE, Checkpoint, CheckpointError, find, tidy
from amp_xla.training.checkpoint_writer import CheckpointWriter
from amp_xla.training.diagnosis import Diagnosis
from amp_xla.training.job import unrepeatable
from amp_xla.training.loop import Loop
from amp_xla.training.options import LoopOptions, RunOptions
from amp_xla.training.run import RunFolder
from amp_xla.training.step import initialize_variables
from amp_xla.training.variables import Variables, restore_weights


def prepare(
    run: RunFolder,
    recipe: str,
    config: Any,
    job: Any,
    options: LoopOptions,
    resume_from: Optional[Checkpoint] = None,
    kind: Type[Loop] = Loop,
) -> Loop:
    """The loop, ready to train: variables set, from a checkpoint where the run continues.

    Args:
      run: the run folder, looked at.
      recipe: its name.
      config: its frozen dataclass.
      job: what its ``build`` returned.
      options: ``LoopOptions``.
      resume_from: the checkpoint to continue from; None = a start.
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
    # The same command, queued again, finds its checkpoint.
    if asked.warm_start and resume_from is None:
        _warm_start(Path(asked.warm_start), job, assets)
    if resume_from is None:
        _begin(run, ranks)
    window = getattr(job.step.optimizer, "window", None)
    transient = window.state_variables if window else []  # zero between updates
    variables = Variables([v for v in job.variables if not any(v is other for other in transient)])
    writer = CheckpointWriter(run.checkpoints, asked.keep, assets, run.has_checkpoint)
    shapes = {**variables.shapes(), **(job.sharded.shapes() if job.sharded else {})}
    identity = identities.describe(job, config, shapes, assets)
    identities.same_on_all(ranks, identity)
    for name in unrepeatable(job.step.train_op):
        note(f"{name} draws random numbers whose state TensorFlow hides: resuming is not exact")
    loop = kind(
        run,
        job,
        watched(job.step, job.batches, job.resolved.settings.xla, note),
        writer,
        variables,
        options,
        asked,
        identity,
        diagnose=Diagnosis(run.path, job) if kind is Loop else None,
    )
    if resume_from is not None:
        _resume(loop, resume_from, asked.force_resume)
        _begin(run, ranks)
        if ranks.first:
            tidy(resume_from)
    else:
        ranks.broadcast(job.variables)
    note(f"run folder: {run.path}")
    if resume_from is None and asked.resume:
        note(f"{run.path} has no checkpoint yet: starting from the beginning")
    if ranks.first:
        process = run_metadata.describe_process(recipe, _engine(job))
        run_metadata.write(run, config, process, assets, resume_from)
    return loop


def _begin(run: RunFolder, ranks: distributed.Ranks) -> None:
    """Let rank 0 create the folder, whose name may depend on the clock."""
    if ranks.first:
        run.begin()
    run.name = ranks.from_first(lambda: run.name)


def _resume(loop: Loop, resume_from: Checkpoint, force: bool) -> None:
    """Puts the loop and the session where a checkpoint was, or says what speaks against it."""
    whole, identity = resume_from.path, loop.identity
    if resume_from.recipe != loop.run.recipe:
        raise CheckpointError(
            f"{whole} is of the recipe {resume_from.recipe}, not of {loop.run.recipe}"
        )
    found = identities.differences(resume_from.identity, identity)
    if found.fatal:
        raise CheckpointError(
            f"{whole} holds another model, and cannot be continued: {'; '.join(found.fatal)}"
        )
    if found.forcible and not force:
        raise CheckpointError(
            f"{whole} belongs to a run that differs: {'; '.join(found.forcible)}; start a new run, "
            f"or give --force-resume to go on all the same"
        )
    loop.restore(resume_from)
    loop.resume(resume_from.loop, longer=bool(found.longer))
    for line in found.forcible:
        note(f"resuming in spite of {line}")
    saved, size = resume_from.ranks, loop.ranks.world.size
    micro_batches = getattr(loop.step.optimizer, "accumulate", 1)
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
    if found.longer:
        rate = float(backend.session().run(loop.step.learning_rate))
        steps = loop.job.total_steps(loop.options.epochs)
        note(
            f"extended, {'; '.join(found.longer)}: the learning rate goes on along the schedule of "
            f"the whole length, {rate:.3g} at step {loop.state.step} of {steps}"
        )


def _warm_start(run: Path, job: Any, assets: Mapping[str, bytes]) -> None:
    saved = find(run)
    then: Dict[str, str] = saved.identity["assets"]
    # A token's or a label's number means what these say. The architecture: tensors have shapes.
    for name, digest in sorted(identities.digests(assets).items()):
        if name != ARCHITECTURE and then.get(name, digest) != digest:
            raise CheckpointError(
                f"--warm-start {run}: its {name} is another than this run's, so its weights would "
                f"mean something else: {then[name][:8]}... there, {digest[:8]}... here"
            )
    restore_weights(saved, job.common(job.model.weights))
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


def _engine(job: Any) -> Dict[str, Any]:
    return {
        "runtime": backend.kind(),
        "tensorflow": backend.tensorflow().__version__,
        "nvidia_fork": backend.is_fork(),
        "bert4keras": ".".join(map(str, backend.bert4keras_version())),
        "gpus": backend.gpus(),
        "parameters": int(sum(v.shape.num_elements() for v in job.step.variables)),
    }
