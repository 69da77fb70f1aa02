"""``amp-xla plan``: forecast step time, memory, hours and cost of a job on GPUs, without one.

    amp-xla plan classification --gpu a100-40g,rtx3090 --price 2.5 -- --layers 12 --hidden 768
    amp-xla plan my_script.py:build_model --gpu all

Flags after ``--`` belong to the recipe or script. The command prints tables and writes
``plan.json`` and ``plan.svg``. docs/plan.md explains how far to trust the forecast.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any, Iterator, Optional, Sequence, Tuple

import numpy as np
from typing_extensions import Annotated

from amp_xla.commands.recipe_job import SubjectOptions
from amp_xla.config import parse, split_words, within
from amp_xla.errors import SettingsError
from amp_xla.process import durable
from amp_xla.process.progress import note
from amp_xla.speed.plan.gpus import chosen

_LOOKED_AT = 200  # batches


@dataclasses.dataclass(frozen=True)
class Config:
    """Forecast time, memory and cost on GPUs that are not here. After `--`: the recipe's flags."""

    subject: SubjectOptions = SubjectOptions()
    gpu: str = "all"
    """names of GPUs, separated by commas, or all"""
    gpus: Annotated[int, within(1, 4096)] = 1
    """number of GPUs, 8 per machine; they share the batch"""
    price: Annotated[Optional[float], within(above=0)] = None
    """price of one GPU per hour"""
    steps: Annotated[Optional[int], within(at_least=1)] = None
    """steps of the run; none = from the recipe's --steps or --epochs"""
    json: bool = False
    """print plan.json instead of tables"""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Forecast, print and write plan.json and plan.svg."""
    own_words, words = split_words(argv)
    config = parse(Config, own_words, "amp-xla plan RECIPE")
    gpus = chosen(config.gpu)
    model, batches, flags = config.subject.open(words)
    # These import TensorFlow, after `open` has set the precision.
    from amp_xla.speed.plan import count, report
    from amp_xla.speed.plan.forecast import Mode

    longest, ratio = _longest(batches)
    work = count.count(model, longest)
    accumulation = flags.get("accumulate") or 1
    steps = config.steps or flags.get("steps") or None
    if steps is None and flags.get("epochs"):
        steps = flags["epochs"] * model.batches.steps_per_epoch()
    if work.samples < config.gpus:
        raise SettingsError(
            f"--gpus {config.gpus}: the batch has {work.samples} samples for all GPUs; allowed: at "
            f"most {work.samples}, or a larger batch"
        )
    own = work.scaled(1 / config.gpus)
    samples = None if steps is None else float(steps * work.samples * accumulation)
    options = [
        report.option(
            own, ratio, gpu, Mode(precision, xla, config.gpus, accumulation), samples, config.price
        )
        for gpu in gpus
        for precision in ("fp32", "tf32", "amp")
        for xla in (False, True)
        if precision != "tf32" or gpu.tf32
    ]
    total = sum(product.flops for product in work.products)
    half = sum(product.flops for product in work.products if product.half)
    result = report.Report(
        config.subject.recipe, own.samples, config.gpus, total, half / max(total, 1.0), options
    )
    folder = config.subject.write("plan", "plan.json", result, quiet=config.json)
    durable.replace(folder / "plan.svg", result.svg().encode())
    if config.json:
        print(json.dumps(result.to_json(), indent=1))
    return 0


def _longest(batches: Optional[Iterator[Any]]) -> Tuple[Optional[Sequence[Any]], float]:
    """Return the largest of some batches, and the mean size of a batch as a share of it."""
    if batches is None:
        note("no batch: assumed are 32 rows of 128 tokens")
        return None, 1.0
    looked_at = list(itertools.islice(batches, _LOOKED_AT))
    sizes = [_size(batch) for batch in looked_at]
    return looked_at[int(np.argmax(sizes))], float(np.mean(sizes) / max(sizes))


def _size(batch: Any) -> int:
    while isinstance(batch, (list, tuple)):
        batch = batch[0]
    return int(np.size(next(iter(batch.values())) if isinstance(batch, dict) else batch))
