"""How fast is a training step, compared with plain bert4keras and Hugging Face on PyTorch?

    ./amp-xla python -m benchmarks.peers --train a.tsv --dev b.tsv --vocab vocab.txt
    ./amp-xla python -m benchmarks.peers --task pretraining --rounds 12 --steps 3

The timed batches are taken at even intervals from an epoch's batches, sorted by size. Samples
per second are tokens per second, padding included, times the epoch's samples per token; they
include the time to make batches.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional

from typing_extensions import Annotated, Literal

from amp_xla.config import changed, parse, within
from amp_xla.errors import AmpXlaError
from amp_xla.process.exits import exit_code
from amp_xla.speed import machine
from amp_xla.speed.child import Request
from benchmarks import corpus, harness

PEERS_PYTHON = Path(".venvs") / "peers" / "bin" / "python"
MODEL = {"layers": 4, "hidden": 512, "dropout": 0.1, "learning_rate": 2e-4}
BATCH_SIZE = {"classification": 32, "pretraining": 16}
LENGTH = {"classification": 256, "pretraining": 128}
VOCAB_SIZE = 21128  # for pretraining
TIMEOUT = 3600.0  # seconds for one measurement


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


def main() -> int:
    """Measure, print the table and write the record."""
    config = parse(Config, prog="python -m benchmarks.peers")
    config = dataclasses.replace(config, max_length=config.max_length or LENGTH[config.task])
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
            path = os.path.join(folder, "corpus.npz")
            commands = contestants(config, path, write_corpus(config, path), precisions)
        commands = {n: c for n, c in commands.items() if harness.named(n, config.only)}
        results = harness.alternate(commands, config.rounds, config.steps, TIMEOUT, config.epochs)
    harness.write(config.out, "benchmarks.peers", config, results, harness.render(results))
    return 0


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
        parts.append(
            corpus.Tokens(encoded.token_ids, encoded.offsets, labels.ids(data.labels or []))
        )
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


if __name__ == "__main__":
    sys.exit(exit_code(main))
