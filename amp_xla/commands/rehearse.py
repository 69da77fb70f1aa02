"""The command ``rehearse``: tries mixed-precision training out on a CPU.

    amp-xla rehearse classification --steps 20 -- --layers 12
    amp-xla rehearse my_script.py:build_model --batch make_batch

Flags after ``--`` belong to the recipe or script. It prints tables and writes ``rehearsal.json``.
The exit code is 1 if mixed precision met a NaN or an infinity.
"""

from __future__ import annotations

import dataclasses
from typing import Optional, Sequence

from typing_extensions import Annotated, Literal

from amp_xla.commands import recipe_job
from amp_xla.config import parse, split_words, within
from amp_xla.errors import AmpXlaError


@dataclasses.dataclass(frozen=True)
class Config:
    """Train in float32 and in emulated mixed precision, side by side. After `--`: recipe flags."""

    recipe: str = "classification"
    """name of a recipe, path of its file, or my_script.py:build_model"""
    batch: Optional[str] = None
    """batch of a script: its function or an .npz file; none = from build_model"""
    steps: Annotated[int, within(at_least=1)] = 20
    """training steps"""
    gpu: str = "8.0"
    """compute capability of the virtual GPU: 7.0 V100, 7.5 T4, 8.0 A100, 8.6 RTX 30, 9.0 H100"""
    lists: Optional[Literal["fork", "stock"]] = None
    """op lists of NVIDIA's TensorFlow 1.15 or of the installed one; none = fork on 1.15"""
    loss_scale: Optional[str] = None
    """a number (1 = off) or dynamic, only for recipes; none = the recipe's"""
    out: Optional[str] = None
    """folder for rehearsal.json; none = runs/<recipe>/rehearse"""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Rehearse a recipe, print the tables and write the record."""
    own_words, words = split_words(argv)
    config = parse(Config, own_words, "amp-xla rehearse RECIPE")
    from amp_xla.process.progress import note

    note(f"building {config.recipe} ...")
    model, batches = recipe_job.open_subject(config.recipe, words, config.batch, config.loss_scale)
    if batches is None:
        raise AmpXlaError(
            f"{config.recipe} returns no batch to train on; allowed: --batch with a function of "
            f"the script or an .npz file, or a function that returns (model, batch)"
        )
    from amp_xla.diagnose import rehearsal
    from amp_xla.training.step import initialize_variables

    initialize_variables()
    note("running TensorFlow's mixed-precision pass against a virtual GPU ...")
    report = rehearsal.rehearse(
        model,
        batches,
        config.steps,
        config.gpu,
        config.lists,
        say=lambda step: note(str(step)),
    )
    print(f"\n{report}")
    path = recipe_job.write_report(config.recipe, "rehearse", config.out, "rehearsal.json", report)
    print(f"\nwritten: {path}")
    return 0 if report.finding is None and report.steps[-1].finite else 1
