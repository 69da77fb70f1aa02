"""What loss scaling and its bookkeeping cost of a step in JAX, beside a step written by hand.

    .venvs/jax/bin/python -m scripts.bench_jax

All steps have the same BERT and Optax's AdamW, and take turns, so that what else the machine does
hits them alike; processor time is hit least. By hand: ``jax.value_and_grad`` and an update, in one
``jax.jit`` with the state donated; no scale, no judgement, no counters.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from typing_extensions import Annotated

from amp_xla.process.arguments import parse
from amp_xla.process.exits import exit_code
from amp_xla.process.fields import within


@dataclasses.dataclass(frozen=True)
class Config:
    """Time a step of the JAX recipe."""

    layers: Annotated[int, within(1, 48)] = 3
    """transformer layers"""
    hidden: Annotated[int, within(at_least=64)] = 192
    """hidden size, a multiple of 64"""
    batch_size: Annotated[int, within(at_least=1)] = 16
    """rows"""
    length: Annotated[int, within(2, 512)] = 96
    """tokens a row"""
    rounds: Annotated[int, within(at_least=3)] = 15
    """turns of each kind of step"""
    steps: Annotated[int, within(at_least=1)] = 4
    """steps a turn"""
    policy: str = "float32"
    """jmp's string"""


CLOCKS = (time.perf_counter, time.process_time)


def main(argv: Optional[List[str]] = None) -> int:
    config = parse(Config, argv, "python -m scripts.bench_jax")
    kinds = steps(config)
    for turn in kinds.values():
        turn()  # compiles
    seconds: Dict[str, List[Tuple[float, ...]]] = {name: [] for name in kinds}
    for _ in range(config.rounds):
        for name, turn in kinds.items():
            seconds[name].append(tuple(value / config.steps for value in turn()))
    print(f"{config}")
    print("| step | clock, ms | processor, ms | of the step by hand, clock | processor |")
    print("|---|---|---|---|---|")
    for name, turns in seconds.items():
        found = [1e3 * statistics.median(turn[i] for turn in turns) for i in range(len(CLOCKS))]
        ratios = [
            statistics.quantiles([a[i] / b[i] for a, b in zip(turns, seconds["by hand"])])
            for i in range(len(CLOCKS))
        ]
        words = [f"{value:.1f}" for value in found]
        words += [f"{middle:.3f} ({low:.3f} to {high:.3f})" for low, middle, high in ratios]
        print(f"| {name} | {' | '.join(words)} |")
    return 0


Turn = Callable[[], Tuple[float, ...]]


def steps(config: Config) -> Dict[str, Turn]:
    """Name -> a turn: takes ``config.steps`` steps and returns their seconds by each clock."""
    import jax
    import numpy as np
    import optax

    from amp_xla.jax import bert, processes, step
    from amp_xla.precision.policy import get_policy

    random = np.random.RandomState(0)
    shape = bert.Shape(8000, config.hidden, config.layers, config.hidden // 64, 4 * config.hidden)
    rows, length = config.batch_size, config.length
    batch = processes.share(
        {
            "token_ids": random.randint(1, 8000, (rows, length)).astype(np.int32),
            "segment_ids": np.zeros((rows, length), np.int32),
            "labels": random.randint(0, 12, rows).astype(np.int32),
            "weights": np.ones(rows, np.float32),
        }
    )
    policy = get_policy(config.policy)
    rate = step.schedule(5e-4, 100, 1000)
    optimizer = step.adamw(rate, 0.01, 1.0)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def by_hand(model: Any, slots: Any, number: Any, batch: Any) -> Any:
        key = jax.random.key_data(jax.random.fold_in(jax.random.key(1), number))

        def loss(model: Any) -> Any:
            masks = bert.Dropout(key, 0.1)
            cast = policy.cast_to_compute(model)
            logits = cast(batch["token_ids"], batch["segment_ids"], masks)
            return step.loss_and_accuracy(logits, batch["labels"], batch["weights"], 0.1)[0]

        value, grads = jax.value_and_grad(loss)(model)
        updates, slots = optimizer.update(grads, slots, model)
        return optax.apply_updates(model, updates), slots, value

    def hand_turn() -> Turn:
        model = processes.put(bert.made(shape, 12, 0))
        held = [model, processes.put(optimizer.init(model)), 0]

        def turn() -> Tuple[float, ...]:
            began = [clock() for clock in CLOCKS]
            for _ in range(config.steps):
                held[0], held[1], value = by_hand(held[0], held[1], np.int32(held[2]), batch)
                held[2] += 1
            jax.block_until_ready(value)
            return tuple(clock() - start for clock, start in zip(CLOCKS, began))

        return turn

    def our_turn(scale: Any) -> Turn:
        run = step.training_step(optimizer, rate, policy, 0.1, 0.1, 1)
        held = [step.start(bert.made(shape, 12, 0), optimizer, scale)]

        def turn() -> Tuple[float, ...]:
            began = [clock() for clock in CLOCKS]
            for _ in range(config.steps):
                held[0], result = run(held[0], batch)
            jax.block_until_ready(result)
            return tuple(clock() - start for clock, start in zip(CLOCKS, began))

        return turn

    return {
        "by hand": hand_turn(),
        "ours, no scale": our_turn(1),
        "ours, 1024": our_turn(1024),
        "ours, dynamic": our_turn("dynamic"),
    }


if __name__ == "__main__":
    sys.exit(exit_code(main))
