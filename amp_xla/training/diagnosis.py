"""Where a real training step stopped being finite: replayed, named, written to the run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Mapping

import numpy as np

from amp_xla import backend
from amp_xla.diagnose import overflow
from amp_xla.graph import training_graph
from amp_xla.process.progress import note


class Diagnosis:
    """Answers where a batch stops being finite, and keeps the batch.

    Args:
      folder: the run folder.
      job: what trains.
    """

    def __init__(self, folder: Path, job: Any) -> None:
        self._folder, self._job = folder, job

    def __call__(self, feed: Mapping[str, Any], step: int, loss_scale: float) -> str:
        """Replays a batch on the weights as they are.

        Args:
          feed: name -> array, as the step got it.
          step: its number.
          loss_scale: that was in force.

        Returns:
          A text for the terminal; the folder ``nonfinite-<step>`` has it as well, as
          ``report.txt`` and ``report.json``, and the batch as ``batch.npz``.
        """
        folder = self._folder / f"nonfinite-{step:08d}"
        folder.mkdir(exist_ok=True)
        # The batch first: a replay may fail, or take all memory, and it can be tried elsewhere.
        np.savez_compressed(str(folder / "batch.npz"), **dict(feed))
        note(f"replaying the batch of step {step} to find where it began ...")
        found = self._find(feed, step, loss_scale)
        if found is None:
            text = (
                "the replay on CPU was finite: it was an earlier micro-batch of the same update, "
                "or it depends on the order of additions, or on what the GPU's kernels do"
            )
        else:
            text = str(found)
            document = {"step": step, **found.to_json()}
            data = json.dumps(document, indent=1) + "\n"
            (folder / "report.json").write_text(data, encoding="utf-8")
        (folder / "report.txt").write_text(text + "\n", encoding="utf-8")
        return f"{text}\nreport and batch: {folder}"

    def _find(self, feed: Mapping[str, Any], step: int, loss_scale: float) -> Any:
        arrays = self._job.step.arrays(feed, step)
        training = training_graph.view(self._job)
        values = training.values(backend.session())
        half = self._job.resolved.half == "float16"
        capability = "{}.{}".format(*(backend.compute_capability() or (8, 0)))
        lists = "fork" if backend.is_fork() else "stock"
        return overflow.find(
            training, values, arrays, step, capability, lists, half, scale=float(loss_scale)
        )
