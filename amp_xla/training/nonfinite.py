"""Non-finite numbers: skip the update, report the cause, roll back once, stop.

The optimizer skips each update with a NaN or an infinity, so weights stay finite. A few skipped
updates are normal when a dynamic loss scale grows. Many in a row, or one at the smallest loss
scale, mean that training diverges: the run goes back to the last checkpoint written before them
and continues with the next batches. If training diverges again, the run stops.
"""

from __future__ import annotations

import io
import math
from typing import Any, Optional

import numpy as np

from amp_xla.errors import AmpXlaError
from amp_xla.process import durable, json_files, regular
from amp_xla.process.progress import note
from amp_xla.training.checkpoint import Checkpoint, newest
from amp_xla.training.engine import StepResult


class TrainingDiverged(AmpXlaError):
    """Loss or gradients were not finite, and training cannot continue."""


def handle(loop: Any, result: StepResult) -> None:
    """Handle a step that is not finite: report it, roll back, or raise TrainingDiverged."""
    state, smallest, policy = loop.state, loop.engine.smallest_scale, loop.run_options.on_nonfinite
    what = f"step {state.step - 1}: loss {result.loss:g} at loss scale {result.loss_scale:g}"
    skips = loop.engine.skips
    bad = f"{what}; loss or gradients not finite"
    if not skips:
        bad += ", but applied: only LossScaleOptimizer skips it"
    if policy == "stop":
        raise TrainingDiverged(f"{bad}; {_report(loop, result)}")
    if (policy == "report" or not skips) and not loop.reported_nonfinite:
        loop.reported_nonfinite = True
        rest = f"; {_report(loop, result)}" if policy == "report" else ""
        note(f"{bad}{', skipped' if skips else ''}{rest}")
    at_smallest = smallest is not None and result.loss_scale <= smallest
    if state.not_finite_in_a_row < loop.options.nonfinite_limit and not at_smallest:
        return
    why = f"{state.not_finite_in_a_row} {'skipped' if skips else 'not finite'} in a row"
    if at_smallest:
        why = "the loss scale is at its smallest"
    again = f"and the run was already rolled back at step {state.rolled_back_at}"
    if state.rolled_back_at is None:
        if _roll_back(loop, f"{what}, {why}"):
            return
        again = "and there is no earlier checkpoint to roll back to"
    raise TrainingDiverged(
        f"{what}: {why}, {again}; a lower learning rate often helps; {_report(loop, result)}"
    )


def _roll_back(loop: Any, why: str) -> bool:
    def newest_good() -> Optional[str]:
        loop.finish_writing()
        good = newest(loop.run.checkpoints, good=True)
        return None if good is None else good.path.name

    name, state = loop.engine.ranks.from_first(newest_good), loop.state
    if name is None:
        return False
    good = Checkpoint(loop.run.checkpoints / name)
    loop.engine.restore(good)
    state.applied, state.not_finite_in_a_row = good.loop.applied, 0
    state.rolled_back_at = state.step
    note(f"{why}: rolled back to {name}, continuing with the batches after step {state.step}")
    loop.save()  # a run killed now must not roll back again
    return True


def _report(loop: Any, result: StepResult) -> str:
    ranks = loop.engine.ranks
    if ranks.several:  # a replay would need all ranks
        bad = ranks.gather(None if math.isfinite(result.rank_loss) else ranks.world.name)
        names = ", ".join(name for name in bad if name)
        what = f"the loss of {names} is not" if names else "every rank's loss is"
        stop = "--on-nonfinite stop" if loop.run.in_runs else "Run(..., on_nonfinite='stop')"
        return f"{what} finite; to find the operation, resume on one rank with {stop}"
    step, batch = loop.engine.last_batch
    folder = loop.run.path / f"nonfinite-{step:08d}"
    try:
        regular.not_linked(folder).mkdir(exist_ok=True)
        # The batch is saved first, because the replay may fail or run out of memory.
        arrays = io.BytesIO()
        np.savez_compressed(arrays, **batch)
        durable.write(folder / "batch.npz", arrays.getvalue())
        text, data = loop.engine.diagnose(result.loss_scale)
        durable.write(folder / "report.txt", f"{text}\n".encode())
        durable.write(folder / "report.json", json_files.encode({"step": step, **data}))
        note(text)  # printed here, because an error is one line
        return f"report and batch: {folder}"
    except Exception as error:
        # The report is optional; the reason to stop must reach the user.
        return f"no report on the cause ({type(error).__name__}: {error})"
