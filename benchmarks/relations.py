"""Figures of docs/results/relations.md.

./amp-xla python -m benchmarks.relations --measure dictionary    # F1 without a model
./amp-xla python -m benchmarks.relations --measure sparse        # memory of the loss; or: dense
./amp-xla python -m benchmarks.relations --measure example       # the same data, two programs
"""

from __future__ import annotations

import collections
import dataclasses
import importlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Counter, Dict, List

import numpy as np
from typing_extensions import Literal

from amp_xla.config import parse
from amp_xla.data.text.corpora import WORD, relations
from amp_xla.process.exits import exit_code
from amp_xla.tasks.relations.data import unpack
from amp_xla.training.extraction import counted, f1
from benchmarks import ROOT

EXAMPLES = ROOT / "examples"
ROWS, PREDICATES, LENGTH, TRIPLES = 16, 48, 128, 4  # DuIE's predicates


@dataclasses.dataclass(frozen=True)
class Config:
    """Measure relation extraction."""

    measure: Literal["dictionary", "sparse", "dense", "example"] = "dictionary"
    """what to measure"""


def main() -> int:
    """Measure, and print the result."""
    config = parse(Config, prog="python -m benchmarks.relations")
    measures = {"dictionary": dictionary, "example": example}
    print(measures[config.measure]() if config.measure in measures else loss(config.measure))
    return 0


def dictionary() -> str:
    """Return F1 of the best simple guess on the built-in texts.

    The subject is the first name in a text. A word is the object of its usual predicate if it is
    one in at least 3 of 10 training texts that have it.
    """
    train, dev = relations()
    texts: Counter[str] = collections.Counter()
    uses: Dict[str, Counter[str]] = collections.defaultdict(collections.Counter)
    for text, label in zip(train.texts, train.labels or []):
        texts.update(set(WORD.findall(text)))
        for _, predicate, name in unpack(label):
            uses[name][predicate] += 1
    found = []
    for text in dev.texts:
        words = [word for word in WORD.findall(text) if word not in ("async", "class", "def")]
        usual = {word: uses[word].most_common(1)[0] for word in words if uses[word]}
        often = [(w, p) for w, (p, n) in usual.items() if n >= 0.3 * texts[w]]
        found.append(unpack(json.dumps([(words[0], p, w) for w, p in often])))
    gold = list(map(unpack, dev.labels or []))
    names = sorted({triple.label for text in gold for triple in text})
    score = f1(counted(found, gold, names))
    return f"dictionary: F1 {score['f1']:.4f} on {len(dev)} dev texts, {len(train)} for training"


def loss(form: str) -> str:
    """Return memory and time of the loss and its gradient, from sparse or dense targets."""
    from amp_xla.backend import tf
    from amp_xla.models import losses
    from amp_xla.tasks.relations import model

    planes = 2 + 2 * PREDICATES
    source = np.random.RandomState(1)
    shape = ROWS, planes, TRIPLES
    cells: Any = source.randint(LENGTH + 1, LENGTH**2, shape).astype(np.int32)
    scores = tf.placeholder(tf.float32, [ROWS, planes, LENGTH, LENGTH])
    targets: Any = tf.placeholder(tf.int32, cells.shape)
    if form == "dense":
        right = np.zeros((ROWS, planes, LENGTH**2), np.bool_)
        np.put_along_axis(right, cells.astype(np.int64), True, 2)
        cells, targets = right, tf.placeholder(tf.bool, right.shape)
        flat = tf.reshape(scores, right.shape)
        value = tf.reduce_sum(losses.several_labels(targets, flat))
    else:
        value = tf.reduce_sum(model.sparse_loss(targets, scores))
    gradient = tf.gradients(value, scores)[0]
    feed = {scores: source.randn(*scores.shape.as_list()).astype(np.float32) - 4.0, targets: cells}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tf.Session() as session:
        session.run([value, tf.reduce_sum(gradient)], feed)
        began = time.process_time()
        for _ in range(5):
            found = session.run([value, tf.reduce_sum(gradient)], feed)
        seconds = (time.process_time() - began) / 5
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return (
        f"{form}: targets {cells.nbytes / 2**20:.2f} MiB a batch; loss and gradient need "
        f"{more:.0f} MiB more and {seconds:.2f} CPU seconds; loss {found[0]:.1f}"
    )


def example() -> str:
    """Return F1 of the recipe and of bert4keras' way on the same 200 sentences in DuIE's format."""
    sys.path.insert(0, str(EXAMPLES))
    news = importlib.import_module("made_up").news
    script = (EXAMPLES / "relations_gplinker.py").read_text("utf-8")
    script = script.replace("news(320, 1), news(40, 2)", "news(200, 1), news(60, 2)")
    script = script.replace("epochs, most = 24, 16, 10, 4", "epochs, most = 24, 16, 24, 4")
    with tempfile.TemporaryDirectory() as folder:
        for name, samples in (("train", news(200, 1)), ("dev", news(60, 2))):
            lines = [json.dumps({k: s[k] for k in ("text", "spo_list")}) + "\n" for s in samples]
            Path(folder, f"{name}.json").write_text("".join(lines), encoding="utf-8")
        Path(folder, "gplinker.py").write_text(script, encoding="utf-8")
        recipe = (
            "-m amp_xla train relations --train train.json --dev dev.json --layers 2 --hidden 64 "
            "--max-length 24 --shapes 1 --learning-rate 2e-3 --token-dropout 0 --epochs 24"
        )
        return f"{_best(recipe.split(), folder)}; {_best(['gplinker.py'], folder)}"


def _best(words: List[str], folder: str) -> str:
    """Return the best dev F1 that a program prints, and its seconds."""
    path = f"{EXAMPLES}:{EXAMPLES.parent}"
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True,
    )  # fmt: skip
    every = [float(x) for x in re.findall(rb"dev f1 ([\d.]+)", done.stdout)]
    return f"{words[0]}: F1 {max(every):.4f} in {time.monotonic() - began:.0f} s"


if __name__ == "__main__":
    sys.exit(exit_code(main))
