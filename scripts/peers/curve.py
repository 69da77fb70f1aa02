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
    if pretraining.accumulation(recipe, 1) != 1:
        raise AmpXlaError("an update is one batch here: give --micro-batch, too")
    if config.only != "ours":
        need_python()
    out = Path(config.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    # Both runtimes have to read one text.
    data = Path(values["data"] or pretraining.get_data(recipe).folder).resolve()
    words = [*PLAIN, *words, "--data", str(data)]
    start = values["bert"] and str(Path(values["bert"]).resolve())
    if start is None:
        start = str(out / "runs" / "pretraining" / "start")
        if not Path(start, "bert_config.json").exists():
            # The smallest rate there is moves no weight.
            _recipe(out, [*words, "--name", "start", "--steps", "1", "--learning-rate", "1e-30"])
    if config.only != "theirs":
        kind = "tf2" if sys.version_info >= (3, 8) else "tf1"
        _recipe(out, [*words, "--bert", start, "--name", kind, "--resume"])
    if config.only != "ours" and not _ended(out / f"{THEIRS}.jsonl", values["steps"]):
        with open(out / f"{THEIRS}.json", "w", encoding="utf-8") as file:
            json.dump({**values, "data": str(data), "config": _bert(start, out)}, file)
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

    config, prefix = google.read(folder, language_model=True)
    reader = tf.train.load_checkpoint(prefix)
    names = [name for name, _ in google.wanted(config, language_model=True)]
    np.savez(str(out / f"{THEIRS}.npz"), **{name: reader.get_tensor(name) for name in names})
    return config


def _lines(path: Path) -> List[Dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _ended(path: Path, steps: int) -> bool:
    return any(line["step"] == steps and "dev_loss" in line for line in _lines(path))


def report(out: Path, steps: int, first: int) -> str:
    """A table of all sides in ``out``; differences are those from PyTorch's, of the same steps."""
    paths = {THEIRS: out / f"{THEIRS}.jsonl"}
    for kind in ("tf1", "tf2"):
        paths[kind] = out / "runs" / "pretraining" / kind / "metrics.jsonl"
    marks = sorted({steps // 6, steps // 3, 2 * steps // 3, steps} - {0})
    losses = {}
    rows = []
    for name, path in paths.items():
        lines = _lines(path)
        found = np.array([line["loss"] for line in lines if "loss" in line])
        if not len(found):
            continue
        losses[name] = found
        apart = "-"
        if THEIRS in losses and name != THEIRS:
            count = min(first, len(found), len(losses[THEIRS]))
            ours, theirs = found[:count], losses[THEIRS][:count]
            apart = f"{np.max(np.abs(ours / theirs - 1)):.1e}"
        means = [found[max(0, mark - WINDOW) : mark].mean() for mark in marks if mark <= len(found)]
        held = [line["dev_loss"] for line in lines if "dev_loss" in line]
        rows.append([name, apart, *(f"{m:.4f}" for m in means), *(f"{h:.4f}" for h in held)])
    head = ["side", f"first {first} steps, apart at most"]
    head += [f"training, {WINDOW} to {mark}" for mark in marks] + ["held out"]
    return "\n".join(" | ".join(row) for row in [head, *rows])


if __name__ == "__main__":
    sys.exit(exit_code(main))
