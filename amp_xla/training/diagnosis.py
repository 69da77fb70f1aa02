"""Replays a batch that was not finite and writes the report to the run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Mapping

import numpy as np

from amp_xla import backend
from amp_xla.diagnose import overflow
from amp_xla.graph import training_graph, virtual_gpu
from amp_xla.process.progress import note


class Diagnosis:
    """Finds the node at which a batch stops being finite.

    Args:
      folder: the run folder.
      job: the training job.
    """

    def __init__(self, folder: Path, job: Any) -> None:
        self._folder, self._job = folder, job

    def __call__(
        self, feed: Mapping[str, Any], step: int, micro_batch: int, loss_scale: float
    ) -> str:
        """Replay a batch with the current weights.

        Args:
          feed: name -> array of the step.
          step: its number, which names the folder.
          micro_batch: number of the micro-batch, counted from 0 over the whole run.
          loss_scale: in force in that step.

        Returns:
          One line that names the folder ``nonfinite-<step>``. It has the report, which is printed
          here, as ``report.txt`` and ``report.json``, and the batch as ``batch.npz``.
        """
        folder = self._folder / f"nonfinite-{step:08d}"
        folder.mkdir(exist_ok=True)
        # The batch first, because the replay may fail or run out of memory.
        np.savez_compressed(str(folder / "batch.npz"), **dict(feed))
        note(f"replaying the batch of step {step} to find the first non-finite node ...")
        finding = self._find(feed, micro_batch, loss_scale)
        if finding is None:
            text = (
                "the replay on a CPU was finite: an earlier micro-batch of the same update was "
                "not, or it depends on the order of additions or on the GPU's kernels"
            )
        else:
            text = str(finding)
            data = json.dumps({"step": step, **finding.to_json()}, indent=1) + "\n"
            (folder / "report.json").write_text(data, encoding="utf-8")
        (folder / "report.txt").write_text(text + "\n", encoding="utf-8")
        note(text)  # an error is one line, so the report comes before it
        return f"report and batch: {folder}"

    def _find(self, feed: Mapping[str, Any], micro_batch: int, loss_scale: float) -> Any:
        arrays = self._job.step.arrays(feed, micro_batch)
        training = training_graph.view(self._job)
        values = training.values(backend.session())
        rewritten = None
        if self._job.resolved.half == "float16":
            capability = "{}.{}".format(*(backend.compute_capability() or (8, 0)))
            lists = "fork" if backend.is_fork() else "stock"
            fetches = overflow.fetches(training)
            graph_def = training.export(fetches)
            rewritten = virtual_gpu.rewrite(graph_def, fetches, capability, lists)
        scale = float(loss_scale)
        return overflow.replay(training, rewritten, values, arrays, micro_batch, scale)
