"""``make bench-peers ARGS="--train a.tsv --dev b.tsv --vocab vocab.txt"``: side by side, in turn.

    make bench-peers ARGS="--task pretraining --rounds 12 --steps 3"

Every contestant is a process; each gets its turn of the same number of steps, round after round,
forth and back. The steps are on batches of an epoch at equal distances from its shortest to its
longest, so that they stand for the epoch. Samples a second include the making of batches.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional

from typing_extensions import Annotated, Literal

from amp_xla.config import make, parse, within
from amp_xla.errors import AmpXlaError
from amp_xla.process.exits import exit_code
from amp_xla.speed import machine, table
from amp_xla.speed.child import Request
from amp_xla.speed.measure import Child, ChildEnded, Outcome
from scripts.peers import corpus

PEERS_PYTHON = Path(".venvs") / "peers" / "bin" / "python"


@dataclasses.dataclass(frozen=True)
class Config:
    """Measure this project beside plain bert4keras and Hugging Face on PyTorch."""

    task: Literal["classification", "pretraining"] = "classification"
    """pretraining: the masked language model's step alone, on made-up sequences"""
    train: Optional[str] = None
    """training file; none = built-in corpus"""
    dev: Optional[str] = None
    """file to evaluate on"""
    vocab: Optional[str] = None
    """vocab.txt; none = trained"""
    layers: Annotated[int, within(at_least=1)] = 4
    """transformer layers"""
    hidden: Annotated[int, within(at_least=8)] = 512
    """hidden size, a multiple of 64"""
    batch_size: Annotated[int, within(at_least=0)] = 0
    """samples a step, packed rows hold that many on the average; 0 = 32, in pretraining 16"""
    max_length: Annotated[int, within(at_least=0)] = 0
    """tokens a sample; 0 = 256, in pretraining 128"""
    vocab_size: Annotated[int, within(at_least=32)] = 21128
    """tokens of the vocabulary in pretraining"""
    dropout: Annotated[float, within(at_least=0, below=1)] = 0.1
    """share dropped"""
    learning_rate: Annotated[float, within(above=0)] = 2e-4
    """peak, the same schedule for all"""
    steps: Annotated[int, within(at_least=1)] = 8
    """timed steps a round, on so many different batches"""
    rounds: Annotated[int, within(at_least=1)] = 3
    """turns of each"""
    epochs: Annotated[int, within(at_least=0)] = 0
    """train each for so many epochs instead, and compare dev accuracies"""
    xla: str = "off"
    """XLA modes of this project's side, semicolons between them"""
    shapes: str = "6"
    """padded lengths that its buckets have, semicolons between several numbers"""
    seed: Annotated[int, within(0, 2**32 - 1)] = 1
    """of everything"""
    only: str = ""
    """parts of the names of the contestants to run, between semicolons; none = all"""
    timeout: Annotated[float, within(above=0)] = 3600.0
    """seconds without an answer"""
    out: str = "runs/peers"
    """where to write .json and .md"""


def main() -> int:
    """Measures and writes the record."""
    config = parse(Config, prog="python -m scripts.peers")
    pretraining = config.task == "pretraining"
    config = dataclasses.replace(
        config,
        batch_size=config.batch_size or (16 if pretraining else 32),
        max_length=config.max_length or (128 if pretraining else 256),
    )
    need_python()
    here = machine.look()
    with tempfile.TemporaryDirectory() as folder:
        half = bool(here.half_dtype)
        if pretraining:
            commands = pretraining_contestants(config, half)
        else:
            path = os.path.join(folder, "corpus.npz")
            commands = contestants(config, path, write_corpus(config, path), half)
        named = [part.strip() for part in config.only.split(";")]
        commands = {n: c for n, c in commands.items() if any(part in n for part in named)}
        found = run(config, commands)
    record = {
        "command": " ".join(["python -m scripts.peers", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "machine": dataclasses.asdict(here),
        "load_average": Path("/proc/loadavg").read_text().split()[:3],
        "config": dataclasses.asdict(config),
        "found": found,
    }
    out = Path(config.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    text = render(found)
    out.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


def need_python() -> None:
    """``AmpXlaError`` unless there is an environment of the peers; says what builds it."""
    if not PEERS_PYTHON.exists():
        raise AmpXlaError(
            f"{PEERS_PYTHON} is missing: python3.11 -m venv .venvs/peers && "
            f".venvs/peers/bin/pip install -r scripts/peers/requirements.txt"
        )


def _recipe_words(config: Config) -> List[str]:
    names = ("train", "dev", "vocab", "layers", "hidden", "batch_size", "max_length", "dropout",
             "learning_rate", "seed")  # fmt: skip
    words = []
    for name in names:
        value = getattr(config, name)
        if value is not None:
            words += ["--" + name.replace("_", "-"), str(value)]
    # The others hide no tokens and smooth no labels.
    words += ["--token-dropout", "0", "--label-smoothing", "0"]
    return words + ["--epochs", str(config.epochs or 4)]


def write_corpus(config: Config, path: str) -> Dict[str, Any]:
    """Tokens as the recipe makes them, into ``path``; the shape that peers are told."""
    from amp_xla.data.text import corpora
    from amp_xla.data.text.labels import Labels
    from recipes import classification

    recipe = make(classification.Config, train=config.train, dev=config.dev, vocab=config.vocab)
    train, dev = recipe.files.read(corpora.pydoc, recipe.seed)
    tokenizer = recipe.vocabulary.tokenizer(train.texts)
    labels = Labels.fit(train.labels or [])
    parts = []
    for data in (train, dev):
        encoded = tokenizer.encode(data.texts, data.pairs, max_length=config.max_length)
        parts.append(
            corpus.Tokens(encoded.token_ids, encoded.offsets, labels.ids(data.labels or []))
        )
    corpus.save(path, parts[0], parts[1], tokenizer.vocab_size)
    shape = {k: getattr(config, k) for k in
             ("layers", "hidden", "batch_size", "dropout", "learning_rate", "seed")}  # fmt: skip
    steps = -(-len(train) // config.batch_size)
    return {**shape, "classes": len(labels), "schedule_steps": steps * (config.epochs or 4)}


def contestants(
    config: Config, path: str, shape: Dict[str, Any], half: bool
) -> Dict[str, List[str]]:
    """Name -> command line, this project's first."""
    out = {}
    words = _recipe_words(config)
    for precision in ["amp"] * half + ["fp32"]:
        for xla in config.xla.split(";"):
            kinds = {"packed": ["--packed"]}
            for shapes in config.shapes.split(";"):
                kinds[f"{shapes} buckets"] = ["--shapes", shapes]
            for kind, flags in kinds.items():
                name = f"amp_xla {Outcome(precision, xla).name}, {kind}"
                request = Request("classification", (*words, *flags), precision, xla)
                asked = json.dumps(dataclasses.asdict(request))
                out[name] = [sys.executable, "-m", "scripts.peers.recipe", asked]
    out["bert4keras fp32, DataGenerator"] = [
        sys.executable, "-m", "scripts.peers.plain_bert4keras", path, json.dumps(shape),
    ]  # fmt: skip
    for precision, group in (("fp32", False), ("bf16", False), ("bf16", True)):
        padding = "group_by_length" if group else "dynamic padding"
        asked = json.dumps({**shape, "precision": precision, "group": group})
        out[f"HF PyTorch {precision}, {padding}"] = [
            str(PEERS_PYTHON), "-m", "scripts.peers.hf_torch", path, asked,
        ]  # fmt: skip
    return out


def pretraining_contestants(config: Config, half: bool) -> Dict[str, List[str]]:
    """Name -> command line, this project's first."""
    names = ("layers", "hidden", "batch_size", "max_length", "vocab_size", "dropout",
             "learning_rate", "seed")  # fmt: skip
    shape = {name: getattr(config, name) for name in names}
    out = {}

    def add(name: str, python: str, side: str, **more: str) -> None:
        words = json.dumps({**shape, **more})
        out[name] = [python, "-m", "scripts.peers.pretraining", side, words]

    for precision, theirs in [("amp", "bf16")] * half + [("fp32", "fp32")]:
        for xla in config.xla.split(";"):
            name = f"amp_xla {Outcome(precision, xla).name}"
            add(name, sys.executable, "ours", precision=precision, xla=xla)
        name = f"HF BertForMaskedLM {theirs}"
        add(name, str(PEERS_PYTHON), "hugging_face", precision=theirs)
    return out


def run(config: Config, commands: Dict[str, List[str]]) -> Dict[str, Dict[str, Any]]:
    """Starts all, lets them take turns, and collects what they say."""
    found: Dict[str, Dict[str, Any]] = {
        name: {
            key: []
            for key in ("samples_per_second", "tokens_per_second", "per_cpu_second", "step_ms")
        }
        for name in commands
    }
    children: Dict[str, Child] = {}

    def ask(name: str, **command: Any) -> Optional[Dict[str, Any]]:
        try:
            return children[name].ask(config.timeout, **command)
        except ChildEnded as end:
            found[name]["status"] = f"{end.status}: {end.why}"
            children.pop(name).close()
            return None

    try:
        for name, command in commands.items():
            print(f"{name}: starting ...", file=sys.stderr, flush=True)
            children[name] = Child(command)
            try:
                children[name].answer(config.timeout)
            except ChildEnded as end:
                found[name]["status"] = f"{end.status}: {end.why}"
                children.pop(name).close()
                continue
            if not config.epochs:
                ask(name, do="warm", sample=config.steps)
            else:
                found[name].update(ask(name, do="train", epochs=config.epochs) or {})
        for round_ in range(0 if config.epochs else config.rounds):
            print(f"round {round_ + 1} of {config.rounds} ...", file=sys.stderr, flush=True)
            names = list(children)
            for name in names if round_ % 2 == 0 else reversed(names):
                answer = ask(name, do="steps", steps=config.steps)
                if answer is not None:
                    seconds = sum(answer["seconds"])
                    found[name]["samples_per_second"].append(answer["samples"] / seconds)
                    found[name]["tokens_per_second"].append(answer["tokens"] / seconds)
                    found[name]["per_cpu_second"].append(answer["samples"] / answer["cpu_seconds"])
                    found[name]["step_ms"] += [1e3 * s for s in answer["seconds"]]
                    found[name]["loss"] = answer["loss"]
        for name in list(children):
            found[name].update(ask(name, do="end") or {})
    finally:
        for child in children.values():
            child.close()
    return found


def render(found: Dict[str, Dict[str, Any]]) -> str:
    """The table: everyone against this project's first row, round by round."""
    body = []
    first: List[float] = []
    for name, values in found.items():
        rates = values["samples_per_second"]
        if "accuracy" in values:
            rates = [values["samples"] / values["seconds"]]
        first = first or rates
        ratios = sorted(a / b for a, b in zip(first, rates))
        quarter = len(ratios) // 4
        half = f" ({ratios[quarter]:.2f} to {ratios[-1 - quarter]:.2f})" if len(ratios) > 2 else ""
        body.append([
            name,
            f"{statistics.median(rates):.1f}" if rates else "-",
            f"{table.spread(rates):.0%}" if len(rates) > 1 else "-",
            f"{statistics.median(ratios):.2f}x{half}" if ratios else "-",
            *(f"{statistics.median(values[key]):{form}}" if values[key] else "-" for key, form in
              (("per_cpu_second", ".1f"), ("tokens_per_second", ".0f"), ("step_ms", ".0f"))),
            f"{values.get('peak_bytes', 0) / 2**20:.0f}",
            f"{values['accuracy']:.4f}" if "accuracy" in values else "-",
            values.get("status", "ok"),
        ])  # fmt: skip
    head = ("contestant", "samples/s", "spread", "first row is (half of the rounds)",
            "samples/CPU s", "tokens/s", "step ms", "peak MiB", "dev accuracy",
            "result")  # fmt: skip
    return table.markdown(head, body)


if __name__ == "__main__":
    sys.exit(exit_code(main))
