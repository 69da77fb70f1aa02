"""What it costs to inspect and to rehearse BERT-base, against training it in float32, printed.

    make bench-rehearse

BERT-base (12 layers, hidden 768), batch 8, length 128, on random tokens. Three processes in turn:
float32 training as the recipe does it; inspect and rehearse; float32 training again.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
import time
from typing import Any, Iterator, List

import numpy as np
from typing_extensions import Annotated, Literal

from amp_xla.process.arguments import parse
from amp_xla.process.exits import exit_code
from amp_xla.process.fields import within

_BAR_REHEARSE, _BAR_INSPECT = 3.0, 60.0
_DEFAULT_STEPS = 20  # of make rehearse


@dataclasses.dataclass(frozen=True)
class Config:
    """Measure inspect and rehearse on BERT-base."""

    steps: Annotated[int, within(at_least=1)] = 6
    """steps of the rehearsal"""
    float32_steps: Annotated[int, within(at_least=1)] = 4
    """timed steps of each float32 process, after one that is not timed"""
    layers: Annotated[int, within(at_least=1)] = 12
    """transformer layers"""
    hidden: Annotated[int, within(at_least=8)] = 768
    """hidden size"""
    batch_size: Annotated[int, within(at_least=1)] = 8
    """samples a step"""
    length: Annotated[int, within(at_least=16)] = 128
    """tokens a sample"""
    part: Literal["all", "float32", "rewrite"] = "all"
    """what this process does; all = starts the others"""


def main() -> int:
    """Prints seconds and ratios; 1 where a bar is missed."""
    config = parse(Config, prog="python -m scripts.bench_rehearse")
    if config.part != "all":
        result = _float32(config) if config.part == "float32" else _rewrite(config)
        print(json.dumps(result))
        return 0
    seconds = _start("float32")["seconds"]
    found = _start("rewrite")
    seconds += _start("float32")["seconds"]
    step = statistics.median(seconds)
    print(f"float32 step, as trained: {step:.2f} s ({min(seconds):.2f} to {max(seconds):.2f})")
    print(f"inspect: {found['inspect']:.1f} s (bar {_BAR_INSPECT:.0f} s)")
    print("rehearse, a step: " + ", ".join(f"{k} {v:.2f} s" for k, v in found["seconds"].items()))
    plain, examined = found["seconds"]["plain"], found["seconds"]["examined"]
    mean = (plain * (_DEFAULT_STEPS - 4) + examined * 4) / _DEFAULT_STEPS
    print(
        f"rehearse, mean of {_DEFAULT_STEPS} steps, 4 of them examined: {mean:.2f} s = "
        f"{mean / step:.2f} x float32 (bar {_BAR_REHEARSE:g} x)"
    )
    print(f"rehearse, all in all with {config.steps} steps: {found['whole']:.0f} s")
    return int(mean > _BAR_REHEARSE * step or found["inspect"] > _BAR_INSPECT)


def _start(part: str) -> Any:
    command = [sys.executable, "-m", "scripts.bench_rehearse", "--part", part, *sys.argv[1:]]
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    return json.loads(out.decode().splitlines()[-1])


def _words(config: Config) -> List[str]:
    sizes = {"layers": config.layers, "hidden": config.hidden, "batch-size": config.batch_size}
    words = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    return [*words, "--max-length", str(config.length), "--shapes", "1"]


def _batches(job: Any, config: Config) -> Iterator[List[Any]]:
    """Full batches of random tokens, in the order of the step's placeholders."""
    random = np.random.RandomState(0)
    number = 0
    shape = (config.batch_size, config.length)
    while True:
        arrays = {
            "token_ids": random.randint(5, 5000, shape),
            "segment_ids": np.zeros(shape, int),
            "labels": random.randint(0, 12, config.batch_size),
            "weights": np.ones(config.batch_size, np.float32),
        }
        yield job.step.arrays(arrays, number)
        number += 1


def _float32(config: Config) -> Any:
    from recipes import classification

    parsed = parse(classification.Config, [*_words(config), "--precision", "fp32"])
    job = classification.build(parsed)
    from amp_xla.training.step import initialize_variables

    initialize_variables()
    seconds = []
    for number, arrays in zip(range(config.float32_steps + 1), _batches(job, config)):
        began = time.monotonic()
        job.step(dict(zip(job.step.input_names, arrays)), number)
        seconds.append(time.monotonic() - began)
    return {"seconds": seconds[1:]}


def _rewrite(config: Config) -> Any:
    from amp_xla.commands import recipe_job

    job = recipe_job.open_recipe("classification", _words(config)).job
    from amp_xla.diagnose import inspect, rehearse
    from amp_xla.training.step import initialize_variables

    initialize_variables()
    began = time.monotonic()
    inspect(job, batch=next(_batches(job, config)))
    inspected = time.monotonic() - began
    began = time.monotonic()
    found = rehearse(job, _batches(job, config), config.steps)
    whole = time.monotonic() - began
    return {"inspect": inspected, "whole": whole, "seconds": dict(found.seconds)}


if __name__ == "__main__":
    sys.exit(exit_code(main))
