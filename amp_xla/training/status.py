"""``status.json`` and ``report.html``: the plan and the outcome of a run, and its page.

Written by the first rank, outside the training loop; failing to write them is a warning.
"""

from __future__ import annotations

import contextlib
import datetime
from typing import Any, Dict, Iterator

from amp_xla.config import flat
from amp_xla.errors import AmpXlaError
from amp_xla.process.progress import note
from amp_xla.process.stopping import Stopped
from amp_xla.report.record import STATUS


def plan(loop: Any, config: Any) -> Dict[str, Any]:
    """Return the plan of a run: steps, batch shapes and defaults.

    Args:
      loop: the training loop.
      config: the recipe's configuration.
    """
    batches, options = loop.engine.job.batches, loop.options
    return {
        "total_steps": loop.total_steps,
        "epochs": options.epochs,
        "monitor": options.monitor,
        "higher_is_better": options.higher_is_better,
        "shapes": [f"{rows} × {length}" for rows, length in batches.shapes],
        "padding_share": getattr(batches, "padding_share", None),
        "ranks": loop.engine.ranks.world.size,
        "defaults": flat(type(config)()),
    }


@contextlib.contextmanager
def recorded(loop: Any) -> Iterator[None]:
    """Write ``status.json`` before and after the block, and ``report.html`` after it."""
    if not loop.engine.ranks.first:
        yield
        return
    _write(loop, "running")
    try:
        yield
    except Stopped as stopped:
        _end(loop, "stopped", str(stopped))
        raise
    except BaseException as error:
        text = str(error) if isinstance(error, AmpXlaError) else f"{type(error).__name__}: {error}"
        _end(loop, "failed", text)
        raise
    _end(loop, "done")


def _end(loop: Any, state: str, message: str = "") -> None:
    try:
        _write(loop, state, message)
        from amp_xla.report import page

        page.write_run(loop.run.path)
    except Exception as error:  # a report must not change how a run ends
        note(
            f"warning: {loop.run.path}/report.html was not written ({error}); try: "
            f"amp-xla report {loop.run.path}"
        )


def _write(loop: Any, state: str, message: str = "") -> None:
    time = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    status = {"state": state, "message": message, "time": time, "plan": loop.plan}
    loop.run.write_json(STATUS, status)
