"""The log of a run: metrics.jsonl and TensorBoard events."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence

import numpy as np

from amp_xla.process import durable, json_files, regular


class MetricsLog:
    """Log of a run: lines of metrics.jsonl, and TensorBoard scalars.

    Each line is a JSON object. NaN and infinities are written as text. Fields of each line:

      step: number of steps so far; kind: ``train`` or ``dev``; epoch, from 1; time: UTC, ISO 8601.

    A ``train`` line, every ``--log-every`` steps and after the last one, adds:

      loss and the recipe's metrics: means since the previous ``train`` line; learning_rate,
      loss_scale, gradient_norm: of the last step; samples, applied_steps, skipped_steps: numbers
      so far; samples_per_second; the rates of ``Job.rates``, such as model_flops_per_second.

    A ``dev`` line, after each evaluation, adds the recipe's metrics as ``dev_loss`` and so on.

    A repeated run has equal fields, except time and those that end in ``_per_second``.

    Args:
      folder: the run folder.
      after: last step before the run continues. Lines of later steps are removed, because they
        will be written again. A line that a kill has cut off is removed, too.
      pending: ``train``, ``dev`` or both: lines of these kinds at step ``after`` are removed, too.
      events: also write TensorBoard's events, which needs TensorFlow.
    """

    def __init__(
        self, folder: Path, after: int = 0, pending: Sequence[str] = (), events: bool = True
    ) -> None:
        path = folder / "metrics.jsonl"
        if os.path.lexists(str(path)):  # a link becomes a file
            readable = path.is_file() and not path.is_symlink()
            durable.replace(path, b"".join(_until(path, after, pending) if readable else ()))
        self._file = open(  # noqa: SIM115
            str(path), "a", encoding="utf-8", buffering=1, opener=regular.descriptor
        )
        self._events: Optional[Any] = None
        if events:
            from amp_xla.backend import tf

            self._summary, self._events = tf.Summary, tf.summary.FileWriter(str(folder))
            start = tf.SessionLog(status=tf.SessionLog.START)
            # TensorBoard then forgets what earlier processes wrote for this step and later.
            self._events.add_session_log(start, after + 1)

    def write(self, step: int, kind: str, epoch: int, values: Mapping[str, Any]) -> None:
        """Write a line with ``values``: numbers, or None if unknown."""
        timestamp = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        record: Dict[str, Any] = {"step": step, "kind": kind, "epoch": epoch, "time": timestamp}
        for name, value in values.items():
            value = value.item() if isinstance(value, np.number) else value
            # JSON has no NaN.
            finite = not isinstance(value, float) or math.isfinite(value)
            record[name] = value if finite else str(value)
        try:
            self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        except OSError as error:
            error.filename = self._file.name  # the system's error has none
            raise
        if self._events is not None:
            summary = self._summary()
            for name, value in values.items():
                if value is not None:
                    summary.value.add(tag=name, simple_value=float(value))
            with contextlib.suppress(RuntimeError):  # a full disk: the next line's write fails
                self._events.add_summary(summary, step)
                self._events.flush()  # kill -9 must lose no point before the last checkpoint

    def close(self) -> None:
        """Close metrics.jsonl and the file of events; ignore errors."""
        if self._events is not None:
            with contextlib.suppress(RuntimeError):
                self._events.close()
        with contextlib.suppress(OSError):  # write or the checkpoint reports it
            self._file.close()


def _until(path: Path, step: int, pending: Sequence[str]) -> Iterator[bytes]:
    for line in regular.lines(path):
        try:
            record = json_files.decode(line)
            written = record["step"] == step and record["kind"] not in pending
            if line.endswith(b"\n") and (record["step"] < step or written):
                yield line
        except (ValueError, KeyError, TypeError):  # cut off by a kill, or foreign
            continue
