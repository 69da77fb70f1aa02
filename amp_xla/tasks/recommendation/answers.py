"""Predictions of a click model, and its export."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Sequence, Tuple

import numpy as np

from amp_xla.backend import session, tf
from amp_xla.process import json_files
from amp_xla.sok.saver import TableShards
from amp_xla.tasks.recommendation.data import Columns, batch_of, parse_line
from amp_xla.tasks.recommendation.model import network
from amp_xla.training.answers import Answers, label_answers
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.step import Inference, restore_weights

_COLUMNS = "columns.json"


def assets(columns: Columns, values: int) -> Dict[str, bytes]:
    """Return, by name, the files that prediction needs."""
    return {_COLUMNS: json_files.encode({**columns._asdict(), "values": values})}


def predict(config: Any, checkpoint: Checkpoint, lines: Sequence[str]) -> Answers:
    """Return the probabilities of the labels 0 and 1 for each line; ignore the label in a line."""
    columns, values = _columns(checkpoint)
    parsed = []
    for index, line in enumerate(lines):
        features = b"\t" + line.encode().partition(b"\t")[2]
        features = features if "\t" in line else line.encode()
        parsed.append(parse_line(features, columns, values, index))
    infer, probabilities = Inference(*_inference(config, checkpoint, columns, values)), []
    for first in range(0, len(parsed), config.batch_size):
        some = parsed[first : first + config.batch_size]
        batch = batch_of(some, columns, config.model.rows, values, np.arange(len(some)), len(some))
        probabilities += infer(batch)["probability"].tolist()
    clicked = np.array(probabilities, np.float64)
    return label_answers(lines, ("0", "1"), np.stack([1.0 - clicked, clicked], 1))


def export(config: Any, checkpoint: Checkpoint, folder: Path) -> str:
    """Write a SavedModel with the whole table; return a text about its inputs and outputs."""
    columns, values = _columns(checkpoint)
    inputs, outputs = _inference(config, checkpoint, columns, values)
    tf.saved_model.simple_save(session(), str(folder), inputs, outputs)
    return (
        f"numbers float32 [B, {columns.numbers}] and ids int64 [B, {columns.slots}, {values}] -> "
        f"probability float32 [B]; parse_line and batch_of in amp_xla.tasks.recommendation.data "
        f"make such arrays from lines"
    )


def _columns(checkpoint: Checkpoint) -> Tuple[Columns, int]:
    fields = dict.fromkeys(("numbers", "slots", "values"), json_files.Whole(0, 2**31))
    known = json_files.read(Path(checkpoint.file(_COLUMNS)), fields)
    return Columns(known["numbers"], known["slots"]), known["values"]


def _inference(
    config: Any, checkpoint: Checkpoint, columns: Columns, values: int
) -> Tuple[Any, Any]:  # fmt: skip
    """Build a model with a checkpoint's weights; return its inputs and its outputs, by name."""
    inputs, model, logits = network(config, columns, values, "zeros")
    tables = TableShards([model.table.embedding_variable])
    tables.read(checkpoint.path, weights_only=True)
    restore_weights(checkpoint, [v for v in model.weights if not tables.holds(v)])
    return inputs, {"probability": tf.sigmoid(logits)}
