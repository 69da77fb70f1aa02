"""Files in a run folder for people and for reports. Imports no TensorFlow.

``config.json`` and the files needed for prediction are copies: resuming and predicting read those
in the checkpoint. ``run.json`` has command and versions, ``status.json`` plan and outcome.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import platform
import shlex
import sys
from typing import Any, Dict, Iterator

from amp_xla import __version__
from amp_xla.config import flat
from amp_xla.data.batches.rank_shard import whole
from amp_xla.errors import AmpXlaError, RankLost
from amp_xla.process import json_files
from amp_xla.process.progress import note
from amp_xla.process.stopping import Stopped
from amp_xla.process.typed import revision
from amp_xla.report.record import STATUS
from amp_xla.training.engine import Engine
from amp_xla.training.identity import settings_of
from amp_xla.training.run import RunFolder


def write(run: RunFolder, config: Any, engine: Engine) -> None:
    """Write these files; a run that continues does not overwrite its ``run.json``."""
    written: Dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        written = json_files.read(run.path / "run.json") if run.continues else {}
    if not written:
        process = {
            "recipe": run.recipe,
            "command": " ".join(map(shlex.quote, sys.argv)),
            "amp_xla": __version__,
            "revision": revision(),
            "python": platform.python_version(),
            "ranks": engine.ranks.world.size,
            **engine.versions,
            **engine.process,
            "host": platform.platform(),
            "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        }
        run.write_json("run.json", process)
    run.write_json("config.json", {**settings_of(config), "run": dataclasses.asdict(config.run)})
    for name, data in sorted(engine.job.assets.items()):
        run.write(name, data)


def _plan(loop: Any) -> Dict[str, Any]:
    """Return the plan of a run: steps, monitor, batch shapes and defaults."""
    batches, options = loop.engine.job.batches, loop.options
    return {
        "total_steps": loop.total_steps,
        "monitor": options.monitor,
        "higher_is_better": options.higher_is_better,
        "shapes": [f"{rows} × {length}" for rows, length in batches.shapes],
        "padding_share": getattr(whole(batches), "padding_share", None),
        "defaults": flat(type(loop.config)()),
    }


@contextlib.contextmanager
def recorded(loop: Any) -> Iterator[None]:
    """Write ``status.json`` before and after the block, and ``report.html`` after it.

    All ranks call it, the first one writes. If the page cannot be written, a warning is printed.
    """
    write_status(loop, "running")
    try:
        yield
    except Stopped as stopped:
        message = str(stopped)
        with contextlib.suppress(RankLost):
            # Launchers kill the other ranks soon after one has ended.
            loop.engine.ranks.all_do(lambda: _end(loop, "stopped", message))
        raise
    except BaseException as error:
        text = str(error) if isinstance(error, AmpXlaError) else f"{type(error).__name__}: {error}"
        _end(loop, "failed", text)
        raise
    _end(loop, "done")


def _end(loop: Any, state: str, message: str = "") -> None:
    if not loop.engine.ranks.first:
        return
    try:
        write_status(loop, state, message)
        from amp_xla.report import page

        page.write_run(loop.run.path)
    except Exception as error:  # a report must not change how a run ends
        note(
            f"warning: {loop.run.path}/report.html was not written ({error}); try: "
            f"amp-xla report {loop.run.path}"
        )


def write_status(loop: Any, state: str, message: str = "") -> None:
    """Write ``status.json`` on the first rank: state, message, plan, how to continue the run."""
    time = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    status = {
        "state": state, "message": message, "time": time, "continuing": loop.run.continuing,
        "plan": _plan(loop),
    }  # fmt: skip
    loop.run.write_json(STATUS, status)
