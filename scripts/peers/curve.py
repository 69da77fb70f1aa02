"""``make bench-curve``: the pretraining recipe's losses beside Hugging Face's, step by step.

    make prepare OUT=data/docstrings ARGS="--length 96"
    make bench-curve RUNTIME=tf1 ARGS="-- --data data/docstrings --steps 3000"
    make bench-curve RUNTIME=tf2 ARGS="-- --data data/docstrings --steps 3000"

Words behind ``--`` are the recipe's; it runs as any user runs it, with ``--preset bert --precision
fp32 --dropout 0``, from weights that a run of no learning rate has left. ``BertForMaskedLM`` on
PyTorch begins with the same weights, reads the same sequences with the same masks, and has an
AdamW of PyTorch's own. Whichever comes second finds what the first has left, and compares.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
from typing_extensions import Annotated, Literal

from amp_xla.errors import AmpXlaError
from amp_xla.process.arguments import parse, split_words
from amp_xla.process.exits import exit_code
from amp_xla.process.fields import flat, within
from amp_xla.speed import table
from recipes import pretraining
from scripts.peers.__main__ import PEERS_PYTHON, need_python
from scripts.peers.curve_torch import SIDE as THEIRS

ROOT = Path(__file__).resolve().parents[2]
WINDOW = 100  # one batch's loss is noisy: curves are compared by means of so many
PLAIN = ("--preset", "bert", "--model", "tiny", "--precision", "fp32", "--dropout", "0",
         "--log-every", "1", "--global-batch", "16")  # fmt: skip
# What PyTorch's side has no words for.
FIXED: Dict[str, Any] = dict(
    objective="mlm", topic=0.0, phase2_length=None, accumulate=None, optimizer="adamw",
    decay="linear", average=0.0, reduce=None, precision="fp32", log_every=1,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Config:
    """Compare the pretraining recipe's losses with those of Hugging Face's BERT."""

    out: str = "runs/curve"
    """folder of all that is compared; what has ended there is not run again"""
    only: Optional[Literal["ours", "theirs"]] = None
    """run one side, to compare later; none = both"""
    first: Annotated[int, within(at_least=1)] = 50
    """steps from the start whose losses are compared one by one"""


def main() -> int:
    """The command."""
    own, words = split_words(None)
    config = parse(Config, own, prog="make bench-curve")
    recipe = parse(pretraining.Config, [*PLAIN, *words], prog="make bench-curve")
    values = flat(recipe)
    for name, value in FIXED.items():
        if values[name] != value:
            flag = f"--{name.replace('_', '-')}"
            raise AmpXlaError(f"{flag} is {values[name]}; both sides have {value}, nothing else")
    if recipe.amount.accumulation(recipe.update.accumulate, 1) != 1:
        raise AmpXlaError("an update is one batch here: give --micro-batch, too")
    if values["data"] is None:  # the built-in text is each runtime's own
        raise AmpXlaError("--data is missing: a prepared folder, the same for all sides")
    if config.only != "ours":
        need_python()
    out = Path(config.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    values["data"] = str(Path(values["data"]).resolve())
    words = [*PLAIN, *words, "--data", values["data"]]
    _same(out / "settings.json", values)
    start = values["bert"] and str(Path(values["bert"]).resolve())
    if start is None:
        start = str(out / "runs" / "pretraining" / "start")
        if not Path(start, "bert_config.json").exists():
            # The smallest rate there is moves no weight.
            _recipe(out, [*words, "--name", "start", "--steps", "1", "--learning-rate", "1e-30"])
    kind = "tf2" if sys.version_info >= (3, 8) else "tf1"
    if config.only != "theirs" and not _ended(_run(out, kind), values["steps"]):
        _recipe(out, [*words, "--bert", start, "--name", kind, "--resume"])
    if config.only != "ours" and not _ended(out / f"{THEIRS}.jsonl", values["steps"]):
        with open(out / f"{THEIRS}.json", "w", encoding="utf-8") as file:
            json.dump({**values, "config": _bert(start, out)}, file)
        done = subprocess.run([str(PEERS_PYTHON), "-m", "scripts.peers.curve_torch", str(out)])
        if done.returncode:
            raise AmpXlaError(f"{PEERS_PYTHON} ended with {done.returncode}: see above")
    print(report(out, values["steps"], config.first))
    return 0


def _recipe(out: Path, words: Sequence[str]) -> None:
    """The recipe as a process, its runs in ``out``."""
    done = subprocess.run(
        [sys.executable, "-m", "amp_xla", "train", "--recipe", "pretraining", "--", *words],
        cwd=str(out),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    if done.returncode:
        raise AmpXlaError(f"the recipe ended with {done.returncode}: see above")


def _bert(folder: str, out: Path) -> Dict[str, Any]:
    """A BERT's configuration; its weights go into ``out``, where numpy reads them."""
    from amp_xla.backend import tf
    from amp_xla.models.weights import google

    config = json.loads(Path(folder, google.CONFIG).read_text(encoding="utf-8"))
    reader = tf.train.load_checkpoint(str(google.checkpoint_prefix(Path(folder))))
    names = [name for name, _ in google.wanted(config, language_model=True)]
    np.savez(str(out / f"{THEIRS}.npz"), **{name: reader.get_tensor(name) for name in names})
    return config


def _same(path: Path, values: Dict[str, Any]) -> None:
    """``AmpXlaError`` if what is in the folder was begun with other settings."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else values
    other = sorted(name for name in values if before.get(name) != values[name])
    if other:
        raise AmpXlaError(f"{path.parent} holds curves with another {other[0]}; take another --out")
    path.write_text(json.dumps(values), encoding="utf-8")


def _run(out: Path, kind: str) -> Path:
    return out / "runs" / "pretraining" / kind / "metrics.jsonl"


def _lines(path: Path) -> List[Dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _ended(path: Path, steps: int) -> bool:
    return any(line["step"] == steps and "dev_loss" in line for line in _lines(path))


def report(out: Path, steps: int, first: int) -> str:
    """A table of all sides in ``out``; what is apart is a loss from PyTorch's of the same step."""
    paths = {THEIRS: out / f"{THEIRS}.jsonl"}
    for kind in ("tf1", "tf2"):
        paths[kind] = _run(out, kind)
    found = {name: _lines(path) for name, path in paths.items() if path.exists()}
    losses = {n: {x["step"]: x["loss"] for x in lines if "loss" in x} for n, lines in found.items()}
    held = {
        n: {x["step"]: x["dev_loss"] for x in lines if "dev_loss" in x}
        for n, lines in found.items()
    }
    evaluated = sorted(set().union(*held.values()))
    marks = sorted({steps // 6, steps // 3, 2 * steps // 3, steps} - {0})
    theirs = losses.get(THEIRS, {})

    def row(name: str) -> List[str]:
        ours = losses[name]
        both = [ours[step] / theirs[step] - 1 for step in ours if step in theirs and step <= first]
        cells = [name, f"{np.max(np.abs(both)):.1e}" if both and name != THEIRS else "-"]
        for mark in marks:
            window = [ours[step] for step in range(mark - WINDOW + 1, mark + 1) if step in ours]
            cells.append(f"{np.mean(window):.4f}" if mark in ours else "-")
        return cells + [f"{held[name][s]:.4f}" if s in held[name] else "-" for s in evaluated]

    head = ["side", f"apart, first {first}"]
    head += [f"training to {mark}" for mark in marks] + [f"held out, {s}" for s in evaluated]
    return table.markdown(head, [row(name) for name in found])


if __name__ == "__main__":
    sys.exit(exit_code(main))
