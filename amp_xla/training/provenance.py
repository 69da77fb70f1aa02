"""What a run was made with: recipe, command, versions, hardware, git revision, time."""

from __future__ import annotations

import datetime
import platform
import sys
from typing import Any, Dict

from amp_xla import __version__, backend
from amp_xla.process.revision import revision


def describe_process(recipe: str, job: Any) -> Dict[str, Any]:
    """The content of ``run.json``."""
    return {
        "recipe": recipe,
        "command": " ".join(sys.argv),
        "amp_xla": __version__,
        "revision": revision(),
        "python": platform.python_version(),
        "tensorflow": backend.tensorflow().__version__,
        "nvidia_fork": backend.is_fork(),
        "bert4keras": ".".join(map(str, backend.bert4keras_version())),
        "host": platform.platform(),
        "gpus": backend.gpus(),
        "parameters": int(sum(v.shape.num_elements() for v in job.step.variables)),
        "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
    }
