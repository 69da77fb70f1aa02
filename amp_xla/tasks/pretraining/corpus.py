"""The text of a pretraining run."""

from __future__ import annotations

import sys
from typing import Optional

from amp_xla.tasks.pretraining.data import prepare
from amp_xla.tasks.pretraining.data.prepared import Manifest
from amp_xla.training import distributed


def prepared(folder: Optional[str]) -> Manifest:
    """Return the prepared text of a folder; without one, prepare the built-in corpus once."""
    if folder is not None:
        return Manifest.load(folder)
    out = f".cache/pretraining/docstrings-{prepare.FORMAT}-python{sys.version.split()[0]}"
    ranks = distributed.current()
    # A result must fit into JSON.
    ranks.all_do(lambda: ranks.first and bool(prepare.prepare(prepare.Config(out=out, length=96))))
    return Manifest.load(out)
