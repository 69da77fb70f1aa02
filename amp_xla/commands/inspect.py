"""``amp-xla inspect RECIPE``: show what mixed precision converts, on any machine.

    amp-xla inspect classification --gpu 8.0 --lists fork -- --layers 12

Prints a table and writes ``amp.json``; what follows ``--`` are the recipe's own flags.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Optional, Sequence

from typing_extensions import Literal

from amp_xla.commands import recipe_job
from amp_xla.config import parse, split_words
from amp_xla.recipe import recipe_name


@dataclasses.dataclass(frozen=True)
class Config:
    """Show what mixed precision would convert, without a GPU. After `--`: the recipe's flags."""

    recipe: str = "classification"
    """name of a recipe, or the path of a recipe's file"""
    gpu: str = "8.0"
    """compute capability to pretend: 7.0 V100, 7.5 T4, 8.0 A100, 8.6 RTX 30, 9.0 H100"""
    lists: Optional[Literal["fork", "stock"]] = None
    """whose op lists: NVIDIA's TensorFlow 1.15, or the installed one; none = fork on 1.15"""
    out: Optional[str] = None
    """folder for amp.json; none = runs/<recipe>/inspect"""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Inspects a recipe, prints the table, writes amp.json."""
    own, words = split_words(argv)
    config = parse(Config, own, "amp-xla inspect RECIPE")
    from amp_xla.diagnose import inspect
    from amp_xla.process.progress import note

    note(f"building {config.recipe} ...")
    job = recipe_job.open_recipe(config.recipe, words).job
    note("running TensorFlow's mixed-precision pass against a virtual GPU ...")
    report = inspect(job, config.gpu, config.lists, next(recipe_job.feeds(job)))
    print(report)
    folder = Path(config.out or f"runs/{recipe_name(config.recipe)}/inspect")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "amp.json"
    path.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    print(f"\nwritten: {path}")
    return 0
