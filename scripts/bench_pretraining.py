"""A pretraining step beside Hugging Face's ``BertForMaskedLM`` in PyTorch: paired, in turn.

    .venvs/tf2/bin/python -m scripts.bench_pretraining --peer-python .venvs/peers/bin/python

Two processes hold one model each and wait; the parent lets them run ``steps`` steps in turn, A B
B A A B ..., so that both meet the same machine. Printed: milliseconds a step of both and the
median of the pairs' ratios. Both train the same shape, dropout on, AdamW, gradients clipped to
norm 1; the peer's model computes logits for every position, as it does for its users.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import subprocess
import sys
import time
from typing import Any, Callable, Iterator, List

LAYERS, HIDDEN, HEADS = 4, 512, 8
MASKED = 19  # of 128: 15%


@dataclasses.dataclass(frozen=True)
class Config:
    """Compare a training step with Hugging Face's."""

    peer_python: str = ".venvs/peers/bin/python"
    """Python that has torch and transformers"""
    precision: str = "amp"
    """amp against bfloat16 autocast, or fp32 against fp32"""
    pairs: int = 12
    """paired measurements"""
    steps: int = 3
    """steps in each of them"""
    batch: int = 16
    """sequences a step"""
    length: int = 128
    """tokens a sequence"""
    vocab: int = 21128
    """tokens of the vocabulary"""
    threads: int = 2
    """CPU threads of the peer; TensorFlow takes all the cores it is given"""


def ours(config: Config) -> Callable[[], None]:
    """One step of this package's model, ready to be called."""
    import numpy as np

    from amp_xla import setup

    setup.configure(precision=config.precision)
    from amp_xla.backend import tf
    from amp_xla.data.masking import positions_for
    from amp_xla.optimizers.adamw import AdamW
    from amp_xla.precision.optimizer import LossScaleOptimizer
    from amp_xla.training import dropout, job, losses
    from amp_xla.training.language_model import LanguageModel
    from amp_xla.training.step import TrainStep, initialize_variables

    job.seed_everything(1)
    step_input = dropout.install(1)
    lm = LanguageModel(config.vocab, config.length, LAYERS, HIDDEN, HEADS, dropout_rate=0.1)
    inputs = {
        "token_ids": lm.model.inputs[0],
        "segment_ids": lm.model.inputs[1],
        "positions": tf.placeholder(tf.int32, [None, None]),
        "labels": tf.placeholder(tf.int32, [None, None]),
        "weights": tf.placeholder(tf.float32, [None, None]),
    }
    out = lm.head(inputs, lm.model.output)
    loss = losses.weighted_mean(out["loss"], tf.reshape(inputs["weights"], [-1]))
    rate = tf.constant(1e-4)
    optimizer = LossScaleOptimizer(AdamW(rate), job.loss_scale(), global_clipnorm=1.0)
    step = TrainStep(inputs, step_input, loss, optimizer, lm.weights, rate)
    initialize_variables()
    rng, count = np.random.RandomState(0), positions_for(config.length, 0.15)
    shape = (config.batch, config.length)
    places = np.argsort(rng.rand(*shape), 1)[:, :count]
    feed = {
        "token_ids": rng.randint(5, config.vocab, shape).astype(np.int32),
        "segment_ids": np.zeros(shape, np.int32),
        "positions": np.sort(places, 1).astype(np.int32),
        "labels": rng.randint(5, config.vocab, (config.batch, count)).astype(np.int32),
        "weights": np.ones((config.batch, count), np.float32),
    }
    number = iter(range(10**9))
    return lambda: (step(feed, next(number)), None)[1]


def theirs(config: Config) -> Callable[[], None]:
    """One step of ``BertForMaskedLM``, ready to be called."""
    import contextlib

    import torch
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(1)
    torch.set_num_threads(config.threads)
    model = BertForMaskedLM(
        BertConfig(
            vocab_size=config.vocab,
            hidden_size=HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=4 * HIDDEN,
        )
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(5, config.vocab, (config.batch, config.length))
    labels = torch.full_like(ids, -100)
    for row in range(config.batch):
        places = torch.randperm(config.length)[:MASKED]
        labels[row, places] = ids[row, places]
    attention = torch.ones_like(ids)
    half = config.precision == "amp"

    def step() -> None:
        cast: Any = torch.autocast("cpu", torch.bfloat16) if half else contextlib.nullcontext()
        with cast:
            loss = model(input_ids=ids, attention_mask=attention, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def serve(step: Callable[[], None]) -> None:
    """Runs as many steps as each line of standard input says; answers with the seconds."""
    for _ in range(3):
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        for _ in range(int(line)):
            step()
        print(time.perf_counter() - began, flush=True)


class Side:
    """A process that holds a model."""

    def __init__(self, python: str, which: str, words: List[str]) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "scripts.bench_pretraining", which, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            universal_newlines=True,
        )
        self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a side of the comparison ended with {self._process.wait()}")
        return line

    def run(self, steps: int) -> float:
        """Milliseconds a step."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        return float(self._line()) / steps * 1e3

    def close(self) -> None:
        """Lets the process end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _turns(pairs: int) -> Iterator[bool]:
    return (number % 2 == 0 for number in range(pairs))


def _decoded(words: List[str]) -> Config:
    defaults = dataclasses.asdict(Config())
    values = dict(word.split("=", 1) for word in words)
    return Config(**{k: type(defaults[k])(v) for k, v in values.items()})


def main(argv: List[str]) -> int:
    """Prints the comparison; with ``ours`` or ``theirs`` first, is one side of it."""
    if argv and argv[0] in ("ours", "theirs"):
        config = _decoded(argv[1:])
        serve({"ours": ours, "theirs": theirs}[argv[0]](config))
        return 0
    from amp_xla.config import parse

    config = parse(Config, argv, "python -m scripts.bench_pretraining")
    words = [f"{k}={v}" for k, v in dataclasses.asdict(config).items()]
    sides = [Side(sys.executable, "ours", words), Side(config.peer_python, "theirs", words)]
    found: List[List[float]] = [[], []]
    for straight in _turns(config.pairs):
        for index in (0, 1) if straight else (1, 0):
            found[index].append(sides[index].run(config.steps))
            time.sleep(0.2)  # thread pools spin a little after their work
    for side in sides:
        side.close()
    ratios = sorted(a / b for a, b in zip(*found))
    quarter = len(ratios) // 4
    print(
        f"{LAYERS} layers, hidden {HIDDEN}, vocabulary {config.vocab}, {config.batch} x "
        f"{config.length} tokens, {config.precision}, {config.pairs} pairs of {config.steps} "
        f"steps, load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    for name, values in zip(("ours", "Hugging Face"), found):
        print(
            f"{name:<13} {statistics.median(values):8.0f} ms a step (fastest {min(values):.0f}, "
            f"slowest {max(values):.0f})"
        )
    print(
        f"ours / theirs {statistics.median(ratios):.2f} (half of the pairs between "
        f"{ratios[quarter]:.2f} and {ratios[-1 - quarter]:.2f})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
