"""bert4keras' own example scripts with the import and the callback: do they run, with AMP, finite?

    git clone --depth 1 https://github.com/bojone/bert4keras /tmp/bert4keras
    pip install bottle cchess jieba nltk opencv-python-headless pandas rouge sentencepiece sympy
    python -m benchmarks.own_scripts --examples /tmp/bert4keras/examples --work /tmp/own-scripts

Paths, lengths, batches and epochs are made small; data are made up in the scripts' formats, and
weights are random (2 layers, hidden 32). Each script is a process. Prints one row per script, with
what ``Run`` found in the executed graph and the losses; logs stay under ``--work``.
"""

from __future__ import annotations

import dataclasses
import glob
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import amp_xla.setup
from amp_xla.backend import tensorflow
from amp_xla.config import parse
from benchmarks import own_scripts_data

ROOT = Path(__file__).resolve().parents[1]
# Pattern -> replacement, in this order.
SMALLER: Tuple[Tuple[str, str], ...] = (
    (r"^maxlen = \d+", "maxlen = 64"),
    (r"^(max_p_len|max_c_len) = \d+", r"\1 = 64"),
    (r"^(max_q_len|max_a_len|max_t_len) = \d+", r"\1 = 8"),
    (r"^batch_size = \d+", "batch_size = 4"),
    (r"\b(epochs ?= ?)\d+", r"\g<1>2"),
    (r"\b(steps_per_epoch ?= ?)\d+", r"\g<1>3"),
    (r"^bert_layers = \d+", "bert_layers = 2"),
    (r"num_hidden_layers=3", "num_hidden_layers=1"),
    (r"^steps = 10000", "steps = 10"),
    (r"^converged_steps = 1000", "converged_steps = 5"),
    (r"maxlen=(16|32|64|256)\b", "maxlen=8"),
    (r"minlen=128", "minlen=4"),
    (r"train_frac = 0.01", "train_frac = 0.5"),
    (r"^img_size = 299", "img_size = 64"),
    # Weights of the internet; weights saved only if random weights are ever right.
    (r"MobileNetV2\(include_top=False", "MobileNetV2(weights=None, include_top=False"),
    (r"(val_acc|metrics\['bleu'\]) > self", r"\1 >= self"),
    # A game against a person, and a server that never ends.
    (r"^chessplayer\.new_game\(0\)", ""),
    (r"web\.start\(\)", "print(gen_synonyms('北京天气', n=4, k=2))"),
)
# A script that starts from another's weights.
AFTER = {"task_sentiment_integrated_gradients": "task_sentiment_albert"}


@dataclasses.dataclass(frozen=True)
class Config:
    """Run bert4keras' example scripts with the import and the callback."""

    examples: str = "bert4keras/examples"
    """folder of the scripts"""
    work: str = "own-scripts"
    """folder for data, patched scripts and logs; its content is replaced"""
    only: Optional[str] = None
    """run the scripts whose name contains this"""
    plain: bool = False
    """run without the callback and in float32, to see whether a script fails anyway"""


def patched(name: str, source: str, root: Path, plain: bool) -> str:
    """Return a script with small data and sizes, the import and the callback."""
    for pattern, replacement in SMALLER:
        source = re.sub(pattern, replacement, source, flags=re.MULTILINE)
    source = source.replace("'/root/", f"'{root}/")
    lines = source.split("\n")
    starts = [i for i, line in enumerate(lines) if line and not line.startswith("#")]
    futures = [i + 1 for i, line in enumerate(lines) if line.startswith("from __future__")]
    lines.insert(futures[-1] if futures else starts[0], "import amp_xla.setup, amp_xla.callbacks")
    source = "\n".join(lines)
    if plain:
        return source
    pieces = re.split(r"callbacks=\[(\w+)\]", source)
    for i in range(1, len(pieces), 2):
        run = f"amp_xla.callbacks.Run('runs/{name}-{i // 2 + 1}')"
        pieces[i] = f"callbacks=[{pieces[i]}, {run}]"
    return "".join(pieces)


def run(name: str, folder: Path, environment: Dict[str, str]) -> Dict[str, Any]:
    """Run a script in ``folder``; return its exit code, losses, and what the graph executed."""
    began = time.monotonic()
    with (folder / "log").open("w") as log:
        code = subprocess.run(
            [sys.executable, f"{name}.py"], cwd=str(folder), env=environment, stdout=log,
            stderr=log, stdin=subprocess.DEVNULL, timeout=900,
        ).returncode  # fmt: skip
    text = (folder / "log").read_text(errors="replace")
    losses: List[float] = []
    for path in sorted(glob.glob(str(folder / "runs" / "*" / "metrics.jsonl"))):
        records = [json.loads(line) for line in Path(path).read_text().splitlines()]
        losses += [record["loss"] for record in records if "loss" in record]
    return {
        "code": code,
        "losses": losses,
        "nodes": re.findall(r"first step ran: (.*)", text),
        "error": "" if code == 0 else text.strip().splitlines()[-1],
        "seconds": round(time.monotonic() - began),
    }


def row(name: str, result: Dict[str, Any]) -> str:
    """Return a script's row of the table."""
    losses, verdict = result["losses"], "runs" if result["code"] == 0 else result["error"]
    finite = "does not train"
    if losses:
        is_finite = all(math.isfinite(loss) for loss in losses)
        finite = f"loss {losses[-1]:.3f}" if is_finite else "not finite"
    nodes = "; ".join(result["nodes"]) or "-"
    return f"| {name} | {verdict} | {finite} | {nodes} | {result['seconds']} s |"


def main() -> int:
    """Write the data, run the scripts and print the table."""
    config = parse(Config)
    examples, work = Path(config.examples).resolve(), Path(config.work).resolve()
    sources = {path.stem: path.read_text(encoding="utf-8") for path in examples.glob("*.py")}
    root, datasets = work / "root", work / "datasets"
    if not root.exists():
        own_scripts_data.write(root, datasets, sources.values())
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONUTF8": "1", "PYTHONPATH": path, "PYTHONHASHSEED": "0"}
    if config.plain:
        environment["AMP_XLA_PRECISION"] = "fp32"
    print(f"TensorFlow {tensorflow().__version__}; {amp_xla.setup.current().describe()}")
    for name in sorted(sources):
        if config.only and config.only not in name:
            continue
        folder = work / name / "examples"
        shutil.rmtree(str(folder.parent), ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "datasets").symlink_to(datasets)
        for weights in (work / AFTER.get(name, name) / "examples").glob("best_model.weights*"):
            shutil.copy(str(weights), str(folder))
        for other, source in sources.items():  # one imports another
            text = patched(other, source, root, config.plain)
            (folder / f"{other}.py").write_text(text, encoding="utf-8")
        print(row(name, run(name, folder, environment)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
