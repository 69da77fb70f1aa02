"""``amp-xla inspect``: show what mixed precision converts in a recipe or a script.

    amp-xla inspect classification -- --layers 12
    amp-xla inspect my_script.py:build_model --batch make_batch
    amp-xla inspect classification --compiled h100

docs/amp.md explains the tables.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Optional, Sequence

from amp_xla.commands.recipe_job import SubjectOptions, longest
from amp_xla.config import parse, split_words
from amp_xla.graph import compiler
from amp_xla.speed.plan.gpus import named


@dataclasses.dataclass(frozen=True)
class Config:
    """Show what mixed precision would convert, without a GPU. After `--`: the recipe's flags."""

    subject: SubjectOptions = SubjectOptions()
    compiled: Optional[str] = None
    """show the kernels that XLA would compile for this GPU, e.g. h100; none = what AMP converts"""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Inspect a recipe or script; print the tables; write amp.json or compiled.json."""
    own_words, words = split_words(argv)
    config = parse(Config, own_words, "amp-xla inspect RECIPE")
    gpu = None if config.compiled is None else named(config.compiled, "--compiled")
    if gpu is not None:
        compiler.program()  # its errors come before the model is built
        os.environ.setdefault("AMP_XLA_XLA", "on")  # models have other operations then
    model, batches, *_ = config.subject.open("inspect", words)
    from amp_xla.diagnose import compiled, inspect  # import TensorFlow: `open` has set precision

    if gpu is not None:
        kernels = compiled(model, gpu, longest(batches)[0])
        config.subject.write("inspect", "compiled.json", kernels)
    else:
        report = inspect(model, next(batches) if batches else None)
        config.subject.write("inspect", "amp.json", report)
    return 0
