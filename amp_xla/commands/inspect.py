"""``amp-xla inspect``: show what mixed precision converts in a recipe or a script.

    amp-xla inspect classification -- --layers 12
    amp-xla inspect my_script.py:build_model --batch make_batch

Flags after ``--`` belong to the recipe or script. The command prints tables and writes
``amp.json``.
"""

from __future__ import annotations

import dataclasses
from typing import Optional, Sequence

from amp_xla.commands.recipe_job import SubjectOptions
from amp_xla.config import parse, split_words


@dataclasses.dataclass(frozen=True)
class Config:
    """Show what mixed precision would convert, without a GPU. After `--`: the recipe's flags."""

    subject: SubjectOptions = SubjectOptions()


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Inspect a recipe, print the tables and write amp.json."""
    own_words, words = split_words(argv)
    config = parse(Config, own_words, "amp-xla inspect RECIPE")
    model, batches, _ = config.subject.open(words)
    from amp_xla.diagnose import inspect  # imports TensorFlow, after `open` has set the precision

    report = inspect(model, next(batches) if batches else None)
    config.subject.write("inspect", "amp.json", report)
    return 0
