"""What does loss scaling cost a training step?

    python -m benchmarks.loss_scale

One 4-layer BERT, one optimizer, the same batch. Each configuration has a graph and a session; all
take steps in turn. Reported by the clock and in processor time, which other programs disturb less.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
from typing import Any, Callable, Dict, List, Sequence, Tuple

from typing_extensions import Annotated

from amp_xla.config import parse, within
from amp_xla.process.exits import exit_code


@dataclasses.dataclass(frozen=True)
class Config:
    """Measure the cost of loss scaling."""

    layers: Annotated[int, within(at_least=1)] = 4
    """Transformer layers"""
    hidden: Annotated[int, within(at_least=64)] = 512
    """width; heads are 64 wide, feed-forward is 4 times it"""
    batch_size: Annotated[int, within(at_least=1)] = 16
    """sequences per step"""
    length: Annotated[int, within(at_least=1)] = 128
    """tokens per sequence"""
    rounds: Annotated[int, within(at_least=1)] = 20
    """timed steps of each configuration"""
    optimizer: str = "adamw"
    """adamw (fused) or bert4keras (its Adam, many small operations)"""


CLOCKS = {"clock": time.perf_counter, "processor": time.process_time}
BARE = "bare optimizer"


def main() -> int:
    """Print milliseconds per step, and per cent over the bare optimizer."""
    config = parse(Config, prog="python -m benchmarks.loss_scale")
    import amp_xla.setup

    amp_xla.setup.configure(precision="fp32")
    from amp_xla.backend import tensorflow

    names = list(wrappers())
    print(f"measuring {config.rounds} rounds of {len(names)} steps ...", file=sys.stderr)
    seconds = measure(config, names)
    print(f"TensorFlow {tensorflow().__version__}, {config}")
    for clock in CLOCKS:
        for name in names:
            low, middle, high = overhead(seconds, clock, name)
            print(
                f"{clock:10} {name:24}{1000 * statistics.median(seconds[clock, name]):9.1f} ms"
                f"{middle:+8.1f} %  (quartiles {low:+.1f}, {high:+.1f})"
            )
    return 0


def wrappers() -> Dict[str, Callable[[Any], Any]]:
    """Return name -> wrapper of the optimizer."""
    from amp_xla.precision import DynamicLossScale, StaticLossScale
    from amp_xla.precision.optimizer import LossScaleOptimizer

    return {
        BARE: lambda inner: inner,
        "no scale, finite check": lambda inner: LossScaleOptimizer(inner, None),
        "static": lambda inner: LossScaleOptimizer(inner, StaticLossScale(1024.0)),
        "dynamic": lambda inner: LossScaleOptimizer(inner, DynamicLossScale()),
        "dynamic, clipped": lambda inner: LossScaleOptimizer(
            inner, DynamicLossScale(), global_clipnorm=1.0
        ),
    }


def measure(config: Config, names: Sequence[str]) -> Dict[Tuple[str, str], List[float]]:
    """Return seconds of each step by (clock, name); the configurations take turns."""
    steps = {name: _step(config, wrappers()[name]) for name in names}
    seconds: Dict[Tuple[str, str], List[float]] = {(c, n): [] for c in CLOCKS for n in steps}
    for number in range(config.rounds + 2):
        for name, step in steps.items():
            started = {clock: now() for clock, now in CLOCKS.items()}
            step()
            if number >= 2:
                for clock, now in CLOCKS.items():
                    seconds[clock, name].append(now() - started[clock])
    return seconds


def overhead(
    seconds: Dict[Tuple[str, str], List[float]], clock: str, name: str
) -> Tuple[float, float, float]:
    """Return per cent over the bare optimizer: lower quartile, median, upper quartile."""
    pairs = zip(seconds[clock, name], seconds[clock, BARE])
    over = sorted(100 * (mine / bare - 1) for mine, bare in pairs)
    return over[len(over) // 4], statistics.median(over), over[3 * len(over) // 4]


def _step(config: Config, wrap: Callable[[Any], Any]) -> Callable[[], Any]:
    """Build a training step in a new session."""
    import numpy as np

    from amp_xla import backend
    from amp_xla.backend import K, keras, tf

    models = backend.bert4keras("models")
    with tf.Graph().as_default() as graph:
        session = tf.Session(graph=graph)
        K.set_session(session)
        with session.as_default():
            bert = models.BERT(
                vocab_size=8000,
                hidden_size=config.hidden,
                num_hidden_layers=config.layers,
                num_attention_heads=max(1, config.hidden // 64),
                intermediate_size=4 * config.hidden,
                max_position=config.length,
                hidden_act="gelu",
                dropout_rate=0.0,
                with_pool=True,
            )
            bert.build()
            logits = keras.layers.Dense(12)(bert.model.output)
            rng = np.random.RandomState(0)
            shape = (config.batch_size, config.length)
            feeds = {
                bert.model.inputs[0]: rng.randint(1, 8000, shape),
                bert.model.inputs[1]: np.zeros(shape),
            }
            labels = tf.constant(rng.randint(0, 12, config.batch_size))
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            optimizer = wrap(_optimizer(config))
            loss = tf.reduce_mean(losses)
            variables = tf.trainable_variables()
            if hasattr(optimizer, "compute_gradients"):
                operation = optimizer.minimize(loss, var_list=variables)
            else:
                operation = tf.group(*optimizer.get_updates(loss, variables))
            session.run(tf.global_variables_initializer())
            call = session.make_callable([operation, loss], list(feeds))
            values = list(feeds.values())
            return lambda: call(*values)


def _optimizer(config: Config) -> Any:
    from amp_xla import backend

    if config.optimizer == "bert4keras":
        return backend.bert4keras("optimizers").Adam(1e-4)
    from amp_xla.optimizers.adamw import AdamW

    return AdamW(1e-4)


if __name__ == "__main__":
    sys.exit(exit_code(main))
