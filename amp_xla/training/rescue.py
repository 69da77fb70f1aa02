"""After a fault: what has been learnt since the last checkpoint is written, if it can be."""

from __future__ import annotations

from typing import Any, Tuple

from amp_xla.training.checkpoint import manifest


def rescue(loop: Any) -> Tuple[str, str]:
    """Writes a checkpoint if a step was done since the last one and the state is of one step.

    Args:
      loop: the ``Loop`` that an exception ended.

    Returns:
      Where in its life the run was, and what is safe; clauses for the user. Nothing is raised:
      another exception is on its way.
    """
    step, trying, failed = loop.state.step, loop.trying, ""
    where = f"in step {step + 1}" if trying is not None else f"after step {step}"
    whole = trying is None or (trying >= 0 and loop.step.dirty != trying)
    try:
        if step and loop.saved_at != step:
            if not loop.ranks.first:
                pass
            elif whole:
                loop.save(alone=True)
            else:
                failed = f"{where} weights may be half changed, so nothing new was saved; "
        loop.checkpoints.wait()
    except Exception as error:
        failed = f"no checkpoint of step {step} could be written ({_first_line(error)}); "
    return f"{where} of training", failed + _what_is_left(loop.run)


def _what_is_left(run: Any) -> str:
    try:
        left = [path for path in manifest.steps(run.checkpoints) if not manifest.problems(path)]
    except OSError as error:
        return f"{run.checkpoints} cannot be read ({error.strerror})"
    if not left:
        return "no checkpoint was written yet"
    return f"{left[-1].name} is whole: the same command with --name {run.name} --resume goes on"


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}".rstrip(": ")
