"""What a table over two ranks costs here: bytes, milliseconds, memory; printed.

    make bench-tables                    # bytes and milliseconds of a step
    make bench-tables ARGS=--memory      # resident memory of 50 million rows of 16 with Adam

Three ways to train one table with Adam of asked rows, the same samples: spread over two ranks
(`amp_xla.sok`); whole on each of two ranks, gradients gathered from all (Horovod's allreduce of
IndexedSlices); whole in one process. Bytes are those that the loopback device counted, of both
ranks, headers and Horovod's own messages included. The least possible: each rank sends the
different ids that others own, 8 bytes each, and their vectors travel once there and once back.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence

import numpy as np
from typing_extensions import Annotated, Literal

from amp_xla.process.arguments import parse
from amp_xla.process.exits import exit_code
from amp_xla.process.fields import within
from amp_xla.process.world import world

_ROOT = Path(__file__).resolve().parents[1]
_WARM_UP = 5
WAYS = {"spread": 2, "gathered": 2, "whole": 1}


@dataclasses.dataclass(frozen=True)
class Config:
    """Measure what a table over ranks costs."""

    rows: Annotated[int, within(at_least=1)] = 1_000_000
    """rows of the table"""
    width: Annotated[int, within(at_least=1)] = 16
    """numbers of a row"""
    batch: Annotated[int, within(at_least=2)] = 4096
    """samples a step, of all ranks together"""
    slots: Annotated[int, within(at_least=1)] = 26
    """ids of a sample"""
    steps: Annotated[int, within(at_least=1)] = 40
    """steps that are timed, after 5 that are not"""
    rounds: Annotated[int, within(at_least=1)] = 3
    """times that each way is started, in turn"""
    memory: bool = False
    """measure memory instead: 50 million rows, with TensorFlow's Adam of whole tables"""
    way: Literal["all", "spread", "gathered", "whole"] = "all"
    """all, or what one of its processes does"""
    out: str = ""
    """folder where such a process says what it found"""


def ids_of(config: Config, step: int, rank: int, size: int) -> np.ndarray:
    """int64 [samples of this rank, slots]: few ids often and many seldom, as clicks have them."""
    random = np.random.RandomState(step)
    ranks = random.zipf(1.2, (config.batch, config.slots)).astype(np.uint64)
    mixed = (ranks * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(16)
    return (mixed % np.uint64(config.rows)).astype(np.int64)[rank::size]


def least_bytes(config: Config, step: int, size: int) -> int:
    """Of a step, all ranks together."""
    total = 0
    for rank in range(size):
        unique = np.unique(ids_of(config, step, rank, size))
        total += int((unique % size != rank).sum()) * (8 + 2 * 4 * config.width)
    return total


def work(config: Config) -> None:
    """One process of a way: trains, and says what it found."""
    from amp_xla import setup

    setup.resolve(precision="fp32", xla="off")
    from amp_xla import sok
    from amp_xla.backend import tf

    sok.Init()
    place = world()
    if place.size > 1:
        import horovod.tensorflow as hvd
    ids = tf.placeholder(tf.int64, [None, config.slots])
    optimizer = (sok.optimizers.Adam if config.memory else sok.optimizers.LazyAdam)(0.01)
    if config.way == "gathered":
        start = tf.random_uniform_initializer(-0.05, 0.05, seed=1)
        variable = tf.get_variable(
            "table", [config.rows, config.width], initializer=start, use_resource=True)  # fmt: skip
        vectors = tf.gather(variable, ids)
    else:
        layer = sok.All2AllDenseEmbedding(
            0, config.width, config.slots, vocabulary_size=config.rows, name="table")  # fmt: skip
        vectors = layer(ids)
        variable = layer.embedding_variable
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(vectors, -1) - 1.0))
    (gradient,) = tf.gradients(loss, [variable])
    if config.way == "gathered":
        gradient = hvd.allreduce(gradient, op=hvd.Average)
    update = optimizer.apply_gradients([(gradient, variable)])
    times, looked = [], []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        if config.way == "gathered":
            session.run(hvd.broadcast_variables([variable], root_rank=0))
        for step in range(_WARM_UP + config.steps):
            feed = {ids: ids_of(config, step, place.rank, place.size)}
            if step == _WARM_UP:
                before = _loopback()
            began = time.perf_counter()
            session.run([update, loss], feed)
            times.append(time.perf_counter() - began)
        moved = _loopback() - before
        for step in range(0 if config.memory else config.steps):
            feed = {ids: ids_of(config, step, place.rank, place.size)}
            began = time.perf_counter()
            session.run(vectors, feed)
            looked.append(time.perf_counter() - began)
    found = {
        "milliseconds": 1e3 * statistics.median(times[_WARM_UP:]),
        "lookup": 1e3 * statistics.median(looked or [0.0]),
        "bytes": moved / config.steps,
        "resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    Path(config.out, f"{place.rank}.json").write_text(json.dumps(found))


def _loopback() -> int:
    """Bytes that the loopback device has taken so far."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[0])
    return 0


def start(way: str, flags: Sequence[str]) -> List[Dict[str, float]]:
    """What the processes of a way found, in order of ranks."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "scripts.bench_tables", *flags, "--way", way]
        if WAYS[way] > 1:
            runner = str(Path(sys.executable).parent / "horovodrun")
            hosts = ["--gloo", "-np", str(WAYS[way]), "-H", f"localhost:{WAYS[way]}"]
            command = [sys.executable, runner, *hosts, *command]
        done = subprocess.run(
            [*command, "--out", folder], cwd=str(_ROOT), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(done.stdout.decode()[-4000:])
        paths = sorted(Path(folder).glob("*.json"))
        return [json.loads(path.read_text()) for path in paths]


def memory(config: Config) -> None:
    flags = ["--memory", "--rows", str(max(config.rows, 50_000_000)), "--steps", "3"]
    flags += ["--width", str(config.width), "--slots", str(config.slots)]
    print(f"{flags[2]} rows of {config.width}, Adam: largest resident memory, start included")
    whole = start("whole", flags)[0]["resident"]
    print(f"1 process, the table whole   {whole / 1e9:6.2f} GB", flush=True)
    for rank, found in enumerate(start("spread", flags)):
        share = found["resident"] / whole
        print(f"rank {rank} of 2                  {found['resident'] / 1e9:6.2f} GB   {share:.2f}x")


def speed(config: Config) -> None:
    names = ("rows", "width", "batch", "slots", "steps")
    flags = [w for n in names for w in (f"--{n}", str(getattr(config, n)))]
    rounds: List[Dict[str, List[Dict[str, float]]]] = []
    for number in range(config.rounds):
        rounds.append({way: start(way, flags) for way in WAYS})
        print(f"round {number + 1} of {config.rounds} is done", flush=True)
    print(f"{config.rows:,} rows of {config.width}, {config.batch} x {config.slots} ids a step")
    print("way         step, ms               lookup, ms             bytes a step")
    for way, ranks in WAYS.items():
        row: List[Any] = []
        for what in ("milliseconds", "lookup"):
            values = [max(f[what] for f in found[way]) for found in rounds]
            row.append(f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})")
        moved = statistics.median(found[way][0]["bytes"] for found in rounds)
        row.append(f"{moved / 1e6:.2f} MB" if ranks > 1 else "none")
        print(f"{way:12}{row[0]:23}{row[1]:23}{row[2]}")
    steps = range(_WARM_UP, _WARM_UP + config.steps)
    least = statistics.mean(least_bytes(config, step, 2) for step in steps)
    print(f"least possible, ids of 8 bytes and vectors there and back: {least / 1e6:.2f} MB")


def main() -> int:
    config = parse(Config, None, "python -m scripts.bench_tables")
    if config.way != "all":
        work(config)
    elif config.memory:
        memory(config)
    else:
        speed(config)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
