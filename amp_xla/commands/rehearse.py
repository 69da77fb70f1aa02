"""``amp-xla rehearse RECIPE``: try mixed-precision training on a CPU.

    amp-xla rehearse classification --steps 20 -- --layers 12

What follows ``--`` are the recipe's own flags. Writes ``rehearsal.json`` and ``rehearsal.svg``.
The exit code is 1 where mixed precision met a NaN or an infinity.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Optional, Sequence

from typing_extensions import Annotated, Literal

from amp_xla.commands import recipe_job
from amp_xla.config import parse, split_words, within
from amp_xla.recipe import recipe_name


@dataclasses.dataclass(frozen=True)
class Config:
    """Train in float32 and in modelled mixed precision, side by side. After `--`: recipe flags."""

    recipe: str = "classification"
    """name of a recipe, or the path of a recipe's file"""
    steps: Annotated[int, within(at_least=1)] = 20
    """training steps"""
    gpu: str = "8.0"
    """compute capability to pretend: 7.0 V100, 7.5 T4, 8.0 A100, 8.6 RTX 30, 9.0 H100"""
    lists: Optional[Literal["fork", "stock"]] = None
    """whose op lists: NVIDIA's TensorFlow 1.15, or the installed one; none = fork on 1.15"""
    loss_scale: Optional[str] = None
    """overrides the recipe's: 1, a number, or dynamic"""
    exact: bool = False
    """Eigen's half kernels instead of the tensor-core model; about 100 times slower"""
    out: Optional[str] = None
    """folder for rehearsal.json and rehearsal.svg; none = runs/<recipe>/rehearse"""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Rehearses a recipe; prints the tables, writes the record and the picture."""
    own, words = split_words(argv)
    config = parse(Config, own, "amp-xla rehearse RECIPE")
    from amp_xla.process.progress import note

    note(f"building {config.recipe} ...")
    job = recipe_job.open_recipe(config.recipe, words, config.loss_scale).job
    from amp_xla.diagnose import rehearsal, rehearsal_report
    from amp_xla.training.step import initialize_variables

    initialize_variables()
    note("running TensorFlow's mixed-precision pass against a virtual GPU ...")
    found = rehearsal.rehearse(
        job,
        recipe_job.feeds(job),
        config.steps,
        config.gpu,
        config.lists,
        config.exact,
        say=lambda step: note(rehearsal_report.step_line(step)),
    )
    print(f"\n{found}")
    folder = Path(config.out or f"runs/{recipe_name(config.recipe)}/rehearse")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "rehearsal.json"
    path.write_text(json.dumps(found.to_json(), indent=1) + "\n", encoding="utf-8")
    try:
        rehearsal_report.picture(found, folder / "rehearsal.svg")
        print(f"\nwritten: {path}, {folder / 'rehearsal.svg'}")
    except ImportError:
        print(f"\nwritten: {path}; no picture: pip install matplotlib")
    return 0 if found.finding is None and found.steps[-1].finite else 1
