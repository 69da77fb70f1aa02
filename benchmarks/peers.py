"""How fast is a training step, compared with plain bert4keras and Hugging Face on PyTorch?

    python -m benchmarks.peers --train a.tsv --dev b.tsv --vocab vocab.txt
    python -m benchmarks.peers --task pretraining --rounds 12 --steps 3

The timed batches are evenly spaced between the shortest and the longest batch of an epoch. Samples
per second include the time to make batches.
"""

from __future__ import annotations

import dataclasses
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
from amp_xla.speed.measure import Outcome
from benchmarks import corpus, harness

PEERS_PYTHON = Path(".venvs") / "peers" / "bin" / "python"


@dataclasses.dataclass(frozen=True)
class Config:
    """Compare this project with plain bert4keras and Hugging Face on PyTorch."""

    task: Literal["classification", "pretraining"] = "classification"
    """pretraining: a step of the masked language model, on made-up sequences"""
    train: Optional[str] = None
    """training file (default: built-in corpus)"""
    dev: Optional[str] = None
    """file to evaluate on"""
    vocab: Optional[str] = None
    """vocab.txt (default: trained on the corpus)"""
    layers: Annotated[int, within(at_least=1)] = 4
    """transformer layers"""
    hidden: Annotated[int, within(at_least=8)] = 512
    """hidden size, a multiple of 64"""
    batch_size: Annotated[int, within(at_least=0)] = 0
    """samples per step (0: 32, or 16 for pretraining)"""
    max_length: Annotated[int, within(at_least=0)] = 0
    """maximum tokens per sample (0: 256, or 128 for pretraining)"""
    vocab_size: Annotated[int, within(at_least=32)] = 21128
    """size of the vocabulary for pretraining"""
    dropout: Annotated[float, within(at_least=0, below=1)] = 0.1
    """dropout rate"""
    learning_rate: Annotated[float, within(above=0)] = 2e-4
    """peak learning rate"""
    steps: Annotated[int, within(at_least=1)] = 8
    """timed steps per round, each on a different batch"""
    rounds: Annotated[int, within(at_least=1)] = 3
    """rounds per contestant"""
    epochs: Annotated[int, within(at_least=0)] = 0
    """if not 0: train for this number of epochs and compare dev accuracies, instead of timing"""
    xla: str = "off"
    """XLA modes to measure for this project, separated by semicolons"""
    shapes: str = "6"
    """values of --shapes to measure for this project, separated by semicolons"""
    seed: Annotated[int, within(0, 2**32 - 1)] = 1
    """seed of weights, order and dropout"""
    only: str = ""
    """contestants whose name contains one of these texts, separated by semicolons (default: all)"""
    timeout: Annotated[float, within(above=0)] = 3600.0
    """maximum seconds for one measurement"""
    out: str = "runs/peers"
    """path without .json and .md of the files to write"""


def main() -> int:
    """Measure, print the table and write the record."""
    config = parse(Config, prog="python -m benchmarks.peers")
    pretraining = config.task == "pretraining"
    config = dataclasses.replace(
        config,
        batch_size=config.batch_size or (16 if pretraining else 32),
        max_length=config.max_length or (128 if pretraining else 256),
    )
    if not PEERS_PYTHON.exists():
        raise AmpXlaError(
            f"{PEERS_PYTHON} is missing; next: python3.11 -m venv .venvs/peers && "
            f".venvs/peers/bin/pip install -r benchmarks/peers.txt"
        )
    precisions = ["amp"] * bool(machine.look().half_dtype) + ["fp32"]
    with tempfile.TemporaryDirectory() as folder:
        if pretraining:
            commands = pretraining_contestants(config, precisions)
        else:
            path = os.path.join(folder, "corpus.npz")
            commands = contestants(config, path, write_corpus(config, path), precisions)
        commands = {n: c for n, c in commands.items() if harness.named(n, config.only)}
        results = harness.alternate(
            commands, config.rounds, config.steps, config.timeout, config.epochs
        )
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
    names = ("layers", "hidden", "batch_size", "dropout", "learning_rate", "seed")
    steps = -(-len(train) // config.batch_size)
    return {
        **{name: getattr(config, name) for name in names},
        "classes": len(labels),
        "schedule_steps": steps * (config.epochs or 4),
    }


def contestants(
    config: Config, path: str, shape: Dict[str, Any], precisions: List[str]
) -> Dict[str, List[str]]:
    """Return name -> command line, this project's first."""
    names = ("train", "dev", "vocab", "layers", "hidden", "batch_size", "max_length", "dropout",
             "learning_rate", "seed")  # fmt: skip
    # The peers have no token dropout and no label smoothing.
    words = ["--token-dropout", "0", "--label-smoothing", "0", "--epochs", str(config.epochs or 4)]
    for name in names:
        if getattr(config, name) is not None:
            words += ["--" + name.replace("_", "-"), str(getattr(config, name))]
    kinds = {"packed": ["--packed"]}
    kinds.update({f"{n} buckets": ["--shapes", n] for n in config.shapes.split(";")})
    out = {}
    for precision in precisions:
        for xla in config.xla.split(";"):
            for kind, flags in kinds.items():
                request = Request("classification", (*words, *flags), precision, xla)
                out[f"amp_xla {Outcome(precision, xla).name}, {kind}"] = [
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
    names = ("layers", "hidden", "batch_size", "max_length", "vocab_size", "dropout",
             "learning_rate", "seed")  # fmt: skip
    shape = {name: getattr(config, name) for name in names}
    out = {}

    def add(name: str, python: str, side: str, **values: str) -> None:
        words = json.dumps({**shape, **values})
        out[name] = [python, "-m", "benchmarks.masked_lm", side, words]

    for precision in precisions:
        for xla in config.xla.split(";"):
            name = f"amp_xla {Outcome(precision, xla).name}"
            add(name, sys.executable, "ours", precision=precision, xla=xla)
        theirs = {"amp": "bf16"}.get(precision, precision)
        add(f"HF BertForMaskedLM {theirs}", str(PEERS_PYTHON), "hugging_face", precision=theirs)
    return out


if __name__ == "__main__":
    sys.exit(exit_code(main))
