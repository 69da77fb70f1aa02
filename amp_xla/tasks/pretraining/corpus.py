"""The text of a pretraining run."""

from __future__ import annotations

import sys
from typing import Optional

from amp_xla.tasks.pretraining.data import prepare
from amp_xla.tasks.pretraining.data.prepared import Manifest
from amp_xla.training import distributed

# Tokens per sequence of the built-in corpus. In short sequences a small model with random weights
# learns much sooner which words are neighbours.
LENGTH = 32


def prepared(folder: Optional[str]) -> Manifest:
    """Return the prepared text of a folder; without one, prepare the built-in corpus once."""
    if folder is not None:
        return Manifest.load(folder)
    python = sys.version.split()[0]
    out = f".cache/pretraining/docstrings-{prepare.FORMAT}-{LENGTH}-python{python}"
    text, ranks = prepare.Config(out=out, length=LENGTH), distributed.current()
    # A result must fit into JSON.
    ranks.all_do(lambda: ranks.first and bool(prepare.prepare(text)))
    return Manifest.load(out)
