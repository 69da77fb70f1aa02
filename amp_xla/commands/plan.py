"""``amp-xla plan``: forecast step time, memory, hours and cost on GPUs that are not here.

    amp-xla plan classification --gpu a100-40g,rtx3090 --price 2.5 -- --layers 12 --hidden 768
    amp-xla plan my_script.py:build_model --gpu all

docs/plan.md explains how far to trust the forecast.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Optional, Sequence

from typing_extensions import Annotated

from amp_xla.commands.recipe_job import LOOKED_AT, SubjectOptions, longest
from amp_xla.config import parse, split_words, within
from amp_xla.data.batches.protocol import micro_batches
from amp_xla.errors import SettingsError
from amp_xla.process.checkout import running
from amp_xla.process.progress import note
from amp_xla.process.stopping import temporary_folder
from amp_xla.speed.plan.gpus import chosen


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


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Forecast; print the result and write it to plan.json."""
    own_words, words = split_words(argv)
    config = parse(Config, own_words, "amp-xla plan RECIPE")
    gpus = chosen(config.gpu)
    model, batches, flags, choice = config.subject.open(
        "plan", words, steps=config.steps or 0, gpus=config.gpus
    )
    # These import TensorFlow, after `open` has set the precision.
    from amp_xla.speed.plan import count, report
    from amp_xla.speed.plan.forecast import Mode

    batch, ratio = longest(batches)
    with temporary_folder("amp_xla-") as folder:
        with _compiling(config.subject, words, gpus[0].name, folder) as process:
            with ThreadPoolExecutor(1) as pool:
                compiled = pool.submit(_errors, process)
                work = count.count(model, batch)
            errors = compiled.result()
        if process.returncode:
            reason = errors.rpartition("\n")[2].replace("error: ", "", 1)
            xla = f"a guess from the graph of mixed precision: {reason}"
        else:
            kernels = json.loads((folder / "compiled.json").read_bytes())["kernels"]
            others = [kernel for kernel in kernels if not kernel["products"]]
            work = work.compiled(sum(kernel["read"] + kernel["written"] for kernel in others))
            xla = f"of the program that XLA compiles for {gpus[0].name}"
    # Packed rows hold several samples each.
    work = work._replace(samples=round(work.samples * _samples_per_row(model)))
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
    mode = functools.partial(
        Mode, gpus=config.gpus, accumulation=accumulation, recipe=hasattr(model, "batches")
    )
    options = [
        report.option(own, ratio, gpu, mode(precision, fused), samples, config.price)
        for gpu in gpus
        for precision in ("fp32", "tf32", "amp")
        for fused in (False, True)
        if precision != "tf32" or gpu.tf32
    ]
    total = sum(product.flops for product in work.products)
    half = sum(product.flops for product in work.products if product.half)
    result = report.Report(
        config.subject.recipe, own.samples, config.gpus, total, half / max(total, 1.0), xla,
        options, *(choice or ())[:2],
    )  # fmt: skip
    config.subject.write("plan", "plan.json", result)
    return 0


def _compiling(subject: SubjectOptions, words: Sequence[str], gpu: str, folder: Path) -> Any:
    """Start ``inspect --compiled`` in a new process, which builds the model again with XLA on."""
    command = [*running("amp_xla"), "inspect", subject.recipe, "--compiled", gpu]
    command += [] if subject.batch is None else ["--batch", subject.batch]
    return subprocess.Popen(
        [*command, "--out", str(folder), "--", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, universal_newlines=True,
    )  # fmt: skip


def _errors(process: Any) -> str:
    """Wait for a compilation; return what it wrote to standard error."""
    while True:
        try:
            return str(process.communicate(timeout=8)[1]).strip()
        except subprocess.TimeoutExpired:
            note("compiling the step with XLA, about 3 seconds per layer ...")


def _samples_per_row(model: Any) -> float:
    """Return the mean number of samples per row of a recipe's batches; 1 for a script's model."""
    epoch = getattr(model, "batches", None) and model.batches.epoch(0)
    ids = [batch["sample_ids"] for whole in itertools.islice(epoch or (), LOOKED_AT)
           for batch in micro_batches(whole)]  # fmt: skip
    return max(1.0, sum((i >= 0).sum() for i in ids) / max(sum(map(len, ids)), 1))
