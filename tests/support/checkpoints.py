"""Small checkpoints for tests, written without TensorFlow."""

import dataclasses

import numpy as np

from amp_xla.training import checkpoint
from amp_xla.training.state import LoopState


def state(step):
    """Return the state of a checkpoint."""
    parts = ("data", "assets", "config", "settings", "versions", "defaults")
    return {
        "recipe": "r",
        "loop": dataclasses.asdict(LoopState(step=step)),
        "identity": {part: {} for part in parts},
        "ranks": {"size": 1, "first_size": 1, "micro_batches": 1},
    }


def tensors(step):
    """Return tensors that differ from step to step."""
    weight = np.arange(12, dtype=np.float32).reshape(3, 4) + step
    return {"weight": weight, "count": np.array(step, np.int64), "slot": np.ones(5)}


def write(folder, step):
    """Write a checkpoint and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"vocab.txt": b"[PAD]\n"}
    return checkpoint.write(folder, tensors(step), state(step), files)
