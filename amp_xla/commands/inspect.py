"""The command ``inspect``: what mixed precision converts in a recipe or a script, on any machine.

    amp-xla inspect classification --gpu 8.0 --lists fork -- --layers 12
    amp-xla inspect my_script.py:build_model --batch make_batch

Flags after ``--`` belong to the recipe or script. It prints tables and writes ``amp.json``.
"""

from __future__ import annotations

import dataclasses
from typing import Optional, Sequence

from typing_extensions import Literal

from amp_xla.commands import recipe_job
from amp_xla.config import parse, split_words


@dataclasses.dataclass(frozen=True)
class Config:
    """Show what mixed precision would convert, without a GPU. After `--`: the recipe's flags."""

    recipe: str = "classification"
    """name of a recipe, path of its file, or my_script.py:build_model"""
    batch: Optional[str] = None
    """batch of a script: its function or an .npz file; none = from build_model, or 32 x 128"""
    gpu: str = "8.0"
    """compute capability of the virtual GPU: 7.0 V100, 7.5 T4, 8.0 A100, 8.6 RTX 30, 9.0 H100"""
    lists: Optional[Literal["fork", "stock"]] = None
    """op lists of NVIDIA's TensorFlow 1.15 or of the installed one; none = fork on 1.15"""
    out: Optional[str] = None
    """folder for amp.json; none = runs/<recipe>/inspect"""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Inspect a recipe, print the tables and write amp.json."""
    own_words, words = split_words(argv)
    config = parse(Config, own_words, "amp-xla inspect RECIPE")
    from amp_xla.process.progress import note

    note(f"building {config.recipe} ...")
    model, batches = recipe_job.open_subject(config.recipe, words, config.batch)
    from amp_xla.diagnose import inspect  # imports TensorFlow, which the recipe has set up

    note("running TensorFlow's mixed-precision pass against a virtual GPU ...")
    report = inspect(model, config.gpu, config.lists, next(batches) if batches else None)
    print(report)
    path = recipe_job.write_report(config.recipe, "inspect", config.out, "amp.json", report)
    print(f"\nwritten: {path}")
    return 0
