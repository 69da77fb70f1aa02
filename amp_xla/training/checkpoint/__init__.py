"""Checkpoints of a run: what lies in one (``saved``), and the writing of them (``checkpoints``).

No TensorFlow here: ``verify`` answers at once, and ``predict`` knows its recipe before TensorFlow
is set up.
"""

from __future__ import annotations

from amp_xla.training.checkpoint.saved import (
    STATE,
    CheckpointError,
    Saved,
    find,
    newest_whole,
    read_state,
)

__all__ = ["STATE", "CheckpointError", "Saved", "find", "newest_whole", "read_state"]
