"""Export of text generators."""

from __future__ import annotations

from typing import Any

from amp_xla.export.model import Exportable
from amp_xla.export.text_models import language_model
from amp_xla.training.checkpoint import Checkpoint


def writer(config: Any, checkpoint: Checkpoint) -> Exportable:
    """Return the language model of a run."""
    return language_model(config.encoder, "unilm", checkpoint)
