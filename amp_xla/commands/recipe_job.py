"""Builds a recipe's job for inspection, as a float16 GPU would train it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Iterator, List, Optional, Sequence

from amp_xla.config import changed, parse
from amp_xla.data.batches.rank_shard import micro_batches
from amp_xla.errors import AmpXlaError
from amp_xla.recipe import recipe_module, recipe_name
from amp_xla.settings import Precision, Settings
from amp_xla.training.options import precision_options


def open_job(recipe: str, words: Sequence[str], loss_scale: Optional[str] = None) -> Any:
    """Build a recipe's job with ``precision=amp`` and the loss scale for float16.

    Args:
      recipe: name of a recipe, or path of its file.
      words: flags of the recipe.
      loss_scale: overrides the recipe's.

    Raises:
      AmpXlaError: no such recipe, or ``words`` set another precision.
    """
    module = recipe_module(recipe)
    config = parse(module.Config, list(words), f"python -m {module.__name__}")
    options = precision_options(config, "this shows what the graph rewrite does in")
    if options.precision not in (None, "amp"):
        raise AmpXlaError(
            f"--precision {options.precision}: this command shows what mixed precision does; "
            f"allowed: amp"
        )
    # Without a GPU a recipe would build itself for bfloat16 or float32.
    settings = Settings.from_environment(
        os.environ, precision="amp", loss_scale=loss_scale or options.loss_scale
    )
    scale = Precision.of(settings, "float16").loss_scale
    return module.build(changed(config, precision="amp", loss_scale=str(scale)))


def feeds(job: Any) -> Iterator[List[Any]]:
    """Yield training batches without end, as arrays in the order of the step's placeholders."""
    number = epoch = 0
    while True:
        for batch in job.batches.epoch(epoch, start=0):
            for micro_batch in micro_batches(batch):
                yield job.step.arrays(micro_batch, number)
                number += 1
        epoch += 1


def write_report(recipe: str, command: str, out: Optional[str], name: str, report: Any) -> Path:
    """Write a report's JSON to ``out``, or to runs/<recipe>/<command>; return the path."""
    folder = Path(out or f"runs/{recipe_name(recipe)}/{command}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    return path
