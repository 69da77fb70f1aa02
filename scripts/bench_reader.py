"""What preparing text and reading it again cost: memory, and sequences a second of one core.

    make bench-reader                                            # 20 MB, a minute
    make bench-reader ARGS="--megabytes 1000 --dedup near"       # bounded memory, measured

Text is made up from the docstrings of the installed packages, over and over with words exchanged.
``prepare`` runs on it as a command of its own; every 20 ms the resident memory of it and its
workers is added up, pages that they share counted for each. Then one core, which
nothing else of this command uses, draws batches as the pretraining recipe does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Dict, Iterator, List, Tuple

import numpy as np
from typing_extensions import Annotated, Literal

from amp_xla.data.pretraining import phases
from amp_xla.data.pretraining.prepared import Manifest
from amp_xla.data.text import docstrings
from amp_xla.errors import DataError
from amp_xla.process import children
from amp_xla.process.arguments import parse
from amp_xla.process.exits import exit_code
from amp_xla.process.fields import within

WORDS = (20, 2000)  # of a document; every size between is as likely on a scale of logarithms
EXCHANGED, COPIED = 0.05, 0.1  # of the words; of the documents, with two words exchanged
LOOK = 0.02  # seconds between two looks at memory
MICRO_BATCH = 256


@dataclasses.dataclass(frozen=True)
class Config:
    """Measure the preparing and the reading of text to pretrain on."""

    megabytes: Annotated[int, within(at_least=1)] = 20
    """invented text to prepare, in 1,000,000 bytes"""
    dedup: Literal["off", "exact", "near"] = "off"
    """as for prepare"""
    workers: Annotated[int, within(at_least=0)] = 0
    """as for prepare"""
    length: Annotated[int, within(at_least=16)] = 128
    """tokens a sequence"""
    sequences: Annotated[int, within(at_least=MICRO_BATCH)] = 50 * 1024
    """sequences to draw in each measurement"""
    rounds: Annotated[int, within(at_least=1)] = 3
    """measurements of each kind of mask, in turn"""
    source_mb: Annotated[int, within(at_least=1)] = 20
    """Python source a package that docstrings are taken from, in MB"""
    seed: Annotated[int, within(0, 2**32 - 1)] = 1
    """decides the text, the order and the masks"""


def main() -> int:
    """Prints memory and time of ``prepare``, and sequences a second for tokens and words."""
    config = parse(Config, prog="python -m scripts.bench_reader")
    print(
        f"Python {platform.python_version()}, numpy {np.__version__}, "
        f"{len(os.sched_getaffinity(0))} cores, seed {config.seed}"
    )
    with tempfile.TemporaryDirectory() as folder:
        corpus, out = os.path.join(folder, "text.jsonl"), os.path.join(folder, "prepared")
        with open(corpus, "w", encoding="utf-8") as file:
            for text in _texts(config):
                file.write(json.dumps({"text": text}) + "\n")
        took, most = _prepare(config, corpus, out)
        size = os.path.getsize(corpus)
        manifest = Manifest.load(out)
        print(manifest.describe())
        print(
            f"prepare, {size / 1e6:,.0f} MB of text, --dedup {config.dedup}: {took:.1f} s "
            f"({size / 1e6 / took:.1f} MB/s), at most {most / 2**20:,.0f} MiB in memory"
        )
        _read(config, manifest)
    return 0


def _texts(config: Config) -> Iterator[str]:
    """Documents of ``megabytes`` in all."""
    found = map(docstrings.documents, docstrings.sources(config.source_mb * 10**6))
    words = np.array([w for group in found for text in group for w in text.split()], object)
    rng = np.random.RandomState(config.seed)
    size, at, text = 0, 0, words[:0]
    while size < config.megabytes * 10**6:
        if not len(text) or rng.rand() >= COPIED:
            count = int(np.exp(rng.uniform(*np.log(WORDS))))
            text = words.take(np.arange(at, at + count), mode="wrap")
            at += count
            exchanged = np.flatnonzero(rng.rand(count) < EXCHANGED)
        else:
            exchanged = rng.randint(0, len(text), 2)
        text[exchanged] = words[rng.randint(0, len(words), len(exchanged))]
        joined = " ".join(text)
        size += len(joined.encode("utf-8"))
        yield joined


def _prepare(config: Config, corpus: str, out: str) -> Tuple[float, int]:
    """Seconds, and the most bytes that the command and its workers had in memory at a time."""
    import psutil

    command = children.command("amp_xla")
    command += ["prepare", "--corpus", corpus, "--out", out, "--dedup", config.dedup]
    command += ["--workers", str(config.workers), "--length", str(config.length)]
    began, most = time.perf_counter(), 0
    with subprocess.Popen(command, env=children.environment(os.environ)) as process:
        root = psutil.Process(process.pid)
        while process.poll() is None:
            now = 0
            for each in [root, *root.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):  # it has ended
                    now += each.memory_info().rss
            most = max(most, now)
            time.sleep(LOOK)
    if process.returncode:
        raise DataError(f"prepare ended with {process.returncode}; its message is above")
    return time.perf_counter() - began, most


def _read(config: Config, manifest: Manifest) -> None:
    # The thread that makes batches ahead is to have no core of its own.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    batches = config.sequences // MICRO_BATCH
    rates: Dict[str, List[float]] = {"token": [], "word": []}
    for number in range(config.rounds + 1):  # the first one warms up
        for mask, found in rates.items():
            (phase,) = phases.read(
                manifest, manifest.tokenizer(), [(config.length, batches)], MICRO_BATCH, 0, "mlm",
                mask, 0.15, config.seed + number,
            )  # fmt: skip
            began = time.perf_counter()
            drawn = sum(len(batch.token_ids) for batch in phase.batches.epoch())
            found.append(drawn / (time.perf_counter() - began))
    for mask, found in rates.items():
        print(
            f"--mask {mask:<5} {statistics.median(found[1:]):8,.0f} sequences of {config.length} "
            f"a second and core (min {min(found[1:]):,.0f}, max {max(found[1:]):,.0f})"
        )


if __name__ == "__main__":
    sys.exit(exit_code(main))
