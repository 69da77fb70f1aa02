"""``amp-xla rehearse``: try out mixed-precision training on a CPU.

    amp-xla rehearse classification --steps 20 -- --layers 12
    amp-xla rehearse my_script.py:build_model --batch make_batch

The exit code is 1 if a NaN or an infinity occurred in mixed precision.
"""

from __future__ import annotations

import dataclasses
from typing import Optional, Sequence

from typing_extensions import Annotated

from amp_xla.commands.recipe_job import SubjectOptions
from amp_xla.config import parse, split_words, within
from amp_xla.errors import AmpXlaError
from amp_xla.process.progress import note


@dataclasses.dataclass(frozen=True)
class Config:
    """Train in float32 and in emulated mixed precision, side by side. After `--`: recipe flags."""

    subject: SubjectOptions = SubjectOptions()
    steps: Annotated[int, within(at_least=1)] = 20
    """number of training steps"""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Rehearse; print the tables; write rehearsal.json; return 1 if a number was not finite."""
    own_words, words = split_words(argv)
    config = parse(Config, own_words, "amp-xla rehearse RECIPE")
    model, batches, *_ = config.subject.open("rehearse", words)
    if batches is None:
        raise AmpXlaError(
            f"{config.subject.recipe} returns no batch to train on; give --batch the name of a "
            f"batch in the script, or return (model, batch)"
        )
    from amp_xla.diagnose import rehearsal
    from amp_xla.models import fused
    from amp_xla.training.step import initialize_variables

    if fused.batch():
        raise fused.unfit("a GPU", "a rehearsal, which runs on the CPU")
    initialize_variables()
    report = rehearsal.rehearse(model, batches, config.steps, on_step=lambda step: note(str(step)))
    config.subject.write("rehearse", "rehearsal.json", report)
    return 0 if report.finding is None and report.steps[-1].finite else 1
