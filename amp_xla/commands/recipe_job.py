"""Build the model that ``inspect`` and ``rehearse`` examine, as for a GPU with float16."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Iterator, List, Optional, Sequence

from amp_xla.commands.script_model import Script, Subject, build
from amp_xla.config import changed, parse
from amp_xla.data.batches.rank_shard import micro_batches
from amp_xla.errors import AmpXlaError
from amp_xla.process.progress import note
from amp_xla.recipe import recipe_module, recipe_name
from amp_xla.settings import Precision, Settings
from amp_xla.training.options import precision_options


@dataclasses.dataclass(frozen=True)
class SubjectOptions:
    """The recipe or script that a command looks at, and the folder for its report."""

    recipe: str = "classification"
    """name of a recipe, path of its file, or my_script.py:build_model"""
    batch: Optional[str] = None
    """name of a batch in the script, or of a function that returns one; none = the batch that
    build_model returns; inspect needs no batch: it assumes 32 rows of 128 tokens"""
    out: Optional[str] = None
    """folder for the JSON report; none = runs/<recipe>/<command>"""

    def open(self, words: Sequence[str], loss_scale: Optional[str] = None) -> Subject:
        """Build the recipe's job or the script's model.

        Args:
          words: flags of the recipe, or words of the script.
          loss_scale: replaces the loss scale of the recipe.

        Raises:
          AmpXlaError: the recipe, script or batch does not exist; or ``--batch`` is given for a
            recipe, or ``loss_scale`` for a script.
        """
        note(f"building {self.recipe} ...")
        script = Script.of(self.recipe)
        if script is None:
            if self.batch is not None:
                raise AmpXlaError(
                    f"--batch {self.batch}: {self.recipe} is a recipe, which has its own batches; "
                    f"--batch is for my_script.py:build_model"
                )
            job = open_job(self.recipe, words, loss_scale)
            subject = Subject(job, feeds(job))
        else:
            if loss_scale is not None:
                raise AmpXlaError(
                    f"--loss-scale {loss_scale}: the optimizer of {script} sets it; change it there"
                )
            import amp_xla.setup  # noqa: F401  # for scripts that do not import it

            subject = build(script, words, self.batch)
        note("running TensorFlow's mixed-precision pass against a virtual GPU ...")
        return subject

    def write(self, command: str, name: str, report: Any) -> None:
        """Print a report, and write it as JSON to the file ``name`` of the command's folder."""
        script = Script.of(self.recipe)
        recipe = recipe_name(script.path if script else self.recipe)
        folder = Path(self.out or f"runs/{recipe}/{command}")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / name
        path.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
        print(f"\n{report}\n\nwritten: {path}")


def open_job(recipe: str, words: Sequence[str], loss_scale: Optional[str] = None) -> Any:
    """Build a recipe's job with ``precision=amp`` and the loss scale for float16.

    Args:
      recipe: name of a recipe, or path of its file.
      words: flags of the recipe.
      loss_scale: replaces the loss scale of the recipe.

    Raises:
      AmpXlaError: the recipe does not exist, or ``words`` set a precision other than amp.
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
    """Yield training batches, epoch after epoch, as arrays in the order of the placeholders."""
    number = epoch = 0
    while True:
        for batch in job.batches.epoch(epoch, start=0):
            for micro_batch in micro_batches(batch):
                yield job.step.arrays(micro_batch, number)
                number += 1
        epoch += 1
