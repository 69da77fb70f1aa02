"""How fast is a training step, compared with plain bert4keras and Hugging Face on PyTorch?

    ./amp-xla python -m benchmarks.peers --train a.tsv --dev b.tsv --vocab vocab.txt
    ./amp-xla python -m benchmarks.peers --task pretraining --rounds 12 --steps 3

Each round starts every contestant once, in turn, A B B A A B ..., so that a slow moment affects all
of them. The timed batches are taken at even intervals from an epoch's batches, sorted by size.
Samples per second are tokens per second, padding included, times the epoch's samples per token;
they include the time to make batches.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np
from typing_extensions import Annotated, Literal

from amp_xla.config import changed, parse, within
from amp_xla.errors import AmpXlaError
from amp_xla.process import durable
from amp_xla.process.checkout import revision
from amp_xla.process.exits import exit_code
from amp_xla.process.progress import note
from amp_xla.speed import machine
from amp_xla.speed.measure import Request, spread
from benchmarks import corpus, markdown, named
from benchmarks.child import ChildEnded, answer_of

PEERS_PYTHON = Path(".venvs") / "peers" / "bin" / "python"
MODEL = {"layers": 4, "hidden": 512, "dropout": 0.1, "learning_rate": 2e-4}
BATCH_SIZE = {"classification": 32, "pretraining": 16}
LENGTH = {"classification": 256, "pretraining": 128}
VOCAB_SIZE = 21128  # for pretraining
TIMEOUT = 3600.0  # seconds for one turn of a contestant
HEAD = ("contestant", "samples/s", "spread", "first row is (half of the rounds)",
        "samples/CPU s", "tokens/s", "step ms", "peak MiB", "dev accuracy", "result")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Config:
    """Compare this project with plain bert4keras and Hugging Face on PyTorch."""

    task: Literal["classification", "pretraining"] = "classification"
    """training step to measure: of a text classifier, or of a masked language model on made-up
    sequences (pretraining)"""
    train: Optional[str] = None
    """training file (default: built-in corpus)"""
    dev: Optional[str] = None
    """dev file; needed with --train"""
    vocab: Optional[str] = None
    """vocab.txt (default: trained on the corpus)"""
    max_length: Annotated[int, within(at_least=0)] = 0
    """maximum tokens per sample; 0 = 256 for classification, 128 for pretraining"""
    steps: Annotated[int, within(at_least=1)] = 8
    """timed steps per round, each on a different batch"""
    rounds: Annotated[int, within(at_least=1)] = 3
    """rounds of measurement; each round measures every contestant once"""
    epochs: Annotated[int, within(at_least=0)] = 0
    """if not 0: train for this number of epochs and compare dev accuracies, instead of timing"""
    shapes: str = "6"
    """values of the recipe's --shapes, separated by semicolons; each is one contestant"""
    seed: Annotated[int, within(0, 2**32 - 1)] = 1
    """seed of weights, order and dropout"""
    only: str = ""
    """contestants whose name contains one of these texts, separated by semicolons (default: all)"""
    out: str = "runs/peers"
    """path of the files to write, without .json and .md"""


@dataclasses.dataclass
class Result:
    """The measurements of a contestant: one value per round, in ``step_ms`` one per step."""

    samples_per_second: List[float] = dataclasses.field(default_factory=list)
    tokens_per_second: List[float] = dataclasses.field(default_factory=list)
    per_cpu_second: List[float] = dataclasses.field(default_factory=list)
    step_ms: List[float] = dataclasses.field(default_factory=list)
    loss: Optional[float] = None
    peak_bytes: int = 0
    accuracy: Optional[float] = None
    status: str = "ok"

    def add(self, answer: Mapping[str, Any]) -> None:
        """Add the answer of ``benchmarks.timing``."""
        making, count, samples = answer["making_seconds"], len(answer["seconds"]), answer["samples"]
        seconds = sum(answer["seconds"]) + count * making
        self.samples_per_second.append(sum(samples) / seconds)
        self.tokens_per_second.append(sum(answer["tokens"]) / seconds)
        self.per_cpu_second.append(sum(samples) / (answer["cpu_seconds"] + count * making))
        self.step_ms += [1e3 * (second + making) for second in answer["seconds"]]
        self.loss, self.accuracy = answer["loss"], answer.get("accuracy")
        self.peak_bytes = max(self.peak_bytes, answer["peak_bytes"])


def main() -> int:
    """Measure, print the table and write the record."""
    config = parse(Config, prog="python -m benchmarks.peers")
    config = dataclasses.replace(config, max_length=config.max_length or LENGTH[config.task])
    if config.epochs and config.task == "pretraining":
        raise AmpXlaError("--epochs: made-up sequences have no labels; allowed: classification")
    if not PEERS_PYTHON.exists():
        raise AmpXlaError(
            f"{PEERS_PYTHON} is missing; next: python3.11 -m venv .venvs/peers && "
            f".venvs/peers/bin/pip install -r benchmarks/peers.txt"
        )
    precisions = ["amp"] * bool(machine.look().half_dtype) + ["fp32"]
    with tempfile.TemporaryDirectory() as folder:
        if config.task == "pretraining":
            commands = pretraining_contestants(config, precisions)
        else:
            path = os.path.join(folder, "corpus.json")
            commands = contestants(config, path, write_corpus(config, path), precisions)
        chosen = {name: line for name, line in commands.items() if named(name, config.only)}
        if not chosen:
            raise AmpXlaError(
                f"--only {config.only}: nobody has this name; allowed: parts of "
                f"{'; '.join(commands)}"
            )
        results = measure(config, chosen)
    write(config, results, render(results))
    return 0


def measure(config: Config, commands: Mapping[str, Sequence[str]]) -> Dict[str, Result]:
    """Measure contestants in turn, each turn in a new process.

    Args:
      commands: name -> command line of a process, which gets the task as its last argument.
    """
    task = {"epochs": config.epochs} if config.epochs else {"steps": config.steps, "windows": 1}
    results = {name: Result() for name in commands}
    rounds = 1 if config.epochs else config.rounds
    for number in range(rounds):
        note(f"round {number + 1} of {rounds} ...")
        for name in list(commands) if number % 2 == 0 else list(commands)[::-1]:
            result = results[name]
            if result.status != "ok":
                continue
            note(f"{name} ...")
            try:
                result.add(answer_of([*commands[name], json.dumps(task)], {}, TIMEOUT))
            except ChildEnded as end:
                result.status = ": ".join(end.args)
    return results


def write_corpus(config: Config, path: str) -> Dict[str, Any]:
    """Write the recipe's token ids to ``path``; return the model's shape for the peers."""
    from amp_xla.data.text.labels import Labels
    from recipes import classification

    recipe = changed(
        classification.Config(), train=config.train, dev=config.dev, vocab=config.vocab
    )
    train, dev = recipe.files.read(recipe.seed)
    tokenizer = recipe.vocabulary.tokenizer(train.texts)
    labels = Labels.fit(train.labels or [])
    parts = []
    for data in (train, dev):
        encoded = tokenizer.encode(data.texts, data.pairs, max_length=config.max_length)
        samples = [part.tolist() for part in np.split(encoded.token_ids, encoded.offsets[1:-1])]
        parts.append(corpus.Tokens(samples, labels.ids(data.labels or []).tolist()))
    corpus.save(path, parts[0], parts[1], tokenizer.vocab_size)
    size = BATCH_SIZE["classification"]
    return {
        **MODEL, "seed": config.seed, "batch_size": size, "classes": len(labels),
        "schedule_steps": -(-len(train) // size) * (config.epochs or 4),
    }  # fmt: skip


def contestants(
    config: Config, path: str, shape: Dict[str, Any], precisions: List[str]
) -> Dict[str, List[str]]:
    """Return name -> command line, this project's first."""
    # The peers have no token dropout and no label smoothing.
    flags = {"token_dropout": 0, "label_smoothing": 0, "epochs": config.epochs or 4, **MODEL,
             "batch_size": shape["batch_size"], "max_length": config.max_length,
             "seed": config.seed, "train": config.train, "dev": config.dev,
             "vocab": config.vocab}  # fmt: skip
    pairs = {"--" + name.replace("_", "-"): str(v) for name, v in flags.items() if v is not None}
    words = tuple(itertools.chain.from_iterable(pairs.items()))
    kinds = {f"{n} buckets": ("--shapes", n) for n in config.shapes.split(";")}
    out = {}
    for precision in precisions:
        for kind, layout in {"packed": ("--packed",), **kinds}.items():
            request = Request("classification", words + layout, precision)
            out[f"amp_xla {precision}, {kind}"] = [
                *(sys.executable, "-m", "benchmarks.recipe_side"),
                json.dumps(dataclasses.asdict(request)),
            ]
    out["bert4keras fp32, DataGenerator"] = [
        *(sys.executable, "-m", "benchmarks.plain_bert4keras", path, json.dumps(shape))
    ]
    for precision, group in (("fp32", False), ("bf16", False), ("bf16", True)):
        padding = "group_by_length" if group else "dynamic padding"
        out[f"HF PyTorch {precision}, {padding}"] = [
            *(str(PEERS_PYTHON), "-m", "benchmarks.torch_classifier", path),
            json.dumps({**shape, "precision": precision, "group": group}),
        ]
    return out


def pretraining_contestants(config: Config, precisions: List[str]) -> Dict[str, List[str]]:
    """Return name -> command line, this project's first."""
    shape = {
        **MODEL, "seed": config.seed, "batch_size": BATCH_SIZE["pretraining"],
        "max_length": config.max_length, "vocab_size": VOCAB_SIZE,
    }  # fmt: skip
    out = {}
    for precision in precisions:
        peer = {"amp": "bf16"}.get(precision, precision)
        for name, python, side, kind in (
            (f"amp_xla {precision}", sys.executable, "ours", precision),
            (f"HF BertForMaskedLM {peer}", str(PEERS_PYTHON), "hugging_face", peer),
        ):
            as_users = {"xla": "off", "all_positions": True}
            words = json.dumps({**shape, "precision": kind, **as_users})
            out[name] = [python, "-m", "benchmarks.masked_lm", side, words]
    return out


def render(results: Mapping[str, Result]) -> str:
    """Return the table; a ratio is the first row's rate / the row's rate in the same round."""
    first = next(iter(results.values())).samples_per_second
    body = []
    for name, result in results.items():
        rates = result.samples_per_second
        ratios = sorted(a / b for a, b in zip(first, rates))
        quarter = len(ratios) // 4
        half = f" ({ratios[quarter]:.2f} to {ratios[-1 - quarter]:.2f})" if len(ratios) > 2 else ""
        body.append([
            name,
            middle(rates, ".1f"),
            f"{spread(rates):.0%}" if len(rates) > 1 else "-",
            middle(ratios, ".2f", "x" + half),
            middle(result.per_cpu_second, ".1f"),
            middle(result.tokens_per_second, ".0f"),
            middle(result.step_ms, ".0f"),
            f"{result.peak_bytes / 2**20:.0f}",
            "-" if result.accuracy is None else f"{result.accuracy:.4f}",
            result.status,
        ])  # fmt: skip
    return markdown(HEAD, body)


def middle(values: Sequence[float], form: str, unit: str = "") -> str:
    """Return the formatted median, or ``-`` without values."""
    return f"{statistics.median(values):{form}}{unit}" if values else "-"


def write(config: Config, results: Mapping[str, Result], text: str) -> None:
    """Write the record (command, machine, date, results) and the table; print the table."""
    path = Path(config.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "command": " ".join(["python -m benchmarks.peers", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "revision": revision(),
        "machine": dataclasses.asdict(machine.look()),
        "load_average": os.getloadavg(),
        "config": dataclasses.asdict(config),
        "results": {name: dataclasses.asdict(result) for name, result in results.items()},
    }
    durable.replace(path.with_suffix(".json"), (json.dumps(record, indent=1) + "\n").encode())
    durable.replace(path.with_suffix(".md"), (text + "\n").encode())
    print(text)


if __name__ == "__main__":
    sys.exit(exit_code(main))
