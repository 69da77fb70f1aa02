"""What does the callback ``Run`` cost? Keras' ``fit`` of a BERT of 12 layers, with and without it.

    python -m benchmarks.callback_cost

Processes take turns: with, without, without, with, ... A step lasts from the end of one batch to
the end of the next, so the work of callbacks counts; the start lasts from ``fit`` to the end of the
first batch.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List

from typing_extensions import Annotated, Literal

from amp_xla.config import parse, within
from amp_xla.process.exits import exit_code


@dataclasses.dataclass(frozen=True)
class Config:
    """Measure what the callback costs in Keras' fit."""

    rounds: Annotated[int, within(at_least=1)] = 6
    """pairs of processes"""
    steps: Annotated[int, within(at_least=2)] = 40
    """steps of each process"""
    side: Literal["both", "with", "without"] = "both"
    """both in turn; one of them is run in this process and prints its seconds"""


def fit(with_run: bool, steps: int) -> None:
    """Print the seconds of the start and of each later step as JSON."""
    import amp_xla.setup  # noqa: F401  # first, as in scripts

    # isort: split
    import numpy as np
    from bert4keras.models import build_transformer_model
    from bert4keras.optimizers import Adam

    from amp_xla.backend import keras
    from amp_xla.callbacks import Run

    bert = build_transformer_model(
        model="bert", vocab_size=2000, hidden_size=256, num_hidden_layers=12, num_attention_heads=4,
        intermediate_size=1024, max_position=64, hidden_act="gelu", dropout_rate=0.1,
    )  # fmt: skip
    first = keras.layers.Lambda(lambda x: x[:, 0])(bert.output)
    model = keras.models.Model(bert.input, keras.layers.Dense(2, activation="softmax")(first))
    model.compile(Adam(1e-4), "sparse_categorical_crossentropy")
    ends: List[float] = []

    class Clock(keras.callbacks.Callback):
        def on_batch_end(self, batch: int, logs: Any = None) -> None:
            ends.append(time.perf_counter())

    random = np.random.RandomState(1)
    tokens = random.randint(0, 2000, [steps * 16, 64])
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [Run(folder + "/run")] if with_run else []
        began = time.perf_counter()
        model.fit(
            [tokens, np.zeros_like(tokens)], random.randint(0, 2, len(tokens)), 16, 1, verbose=0,
            callbacks=[*callbacks, Clock()],
        )  # fmt: skip
    print(json.dumps([ends[0] - began, *(b - a for a, b in zip(ends, ends[1:]))]))


def main() -> int:
    """Measure, and print medians, spreads and the ratios of neighbouring processes."""
    config = parse(Config, prog="python -m benchmarks.callback_cost")
    if config.side != "both":
        fit(config.side == "with", config.steps)
        return 0
    starts: Dict[str, List[float]] = {"with": [], "without": []}
    step_times: Dict[str, List[float]] = {"with": [], "without": []}
    for number in range(config.rounds):
        for side in ("with", "without") if number % 2 == 0 else ("without", "with"):
            command = [sys.executable, "-m", "benchmarks.callback_cost", "--side", side]
            out = subprocess.check_output([*command, "--steps", str(config.steps)])
            start, *seconds = json.loads(out.splitlines()[-1])
            starts[side].append(start)
            step_times[side].append(statistics.median(seconds))
    for side in starts:
        steps = [f"{1e3 * seconds:.1f}" for seconds in step_times[side]]
        print(
            f"{side}: start {statistics.median(starts[side]):.1f} s, steps in ms {', '.join(steps)}"
        )
    ratios = sorted(a / b for a, b in zip(step_times["with"], step_times["without"]))
    extra = statistics.median(a - b for a, b in zip(starts["with"], starts["without"]))
    print(
        f"a step costs {statistics.median(ratios):.4f} of one without ({ratios[0]:.4f} to "
        f"{ratios[-1]:.4f}), the start {extra:.1f} s more"
    )
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
