"""XLA on a CPU, in a real process: one compilation a shape, none after; a stray shape is named."""

from __future__ import annotations

import json

import pytest

from tests.running import run_python

# Compiling takes half a minute on two idle cores, and many times that on busy ones.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = """
import json, os, sys, tempfile
from pathlib import Path
from amp_xla.speed import compilations
folder = Path(tempfile.mkdtemp())
os.environ.update(compilations.flags(folder, os.environ))
from amp_xla import setup
setup.configure(precision="fp32", xla="on")
from amp_xla.process.arguments import make
from recipes import classification
from amp_xla.training.step import initialize_variables
from amp_xla.graph.shape_watch import watched

job = classification.build(make(classification.Config,
    train="train.tsv", dev="dev.tsv", layers=1, hidden=64, max_length=32, shapes=2,
    batch_size=8, vocab_size=60, precision="fp32", xla="on"))
initialize_variables()
said = []
step = watched(job.step, job.batches, "on", said.append)
dump = compilations.Dump(folder)

def run(feed, number):
    assert step(feed, number).finite

feeds = []
for epoch in range(2):
    for batch in job.batches.epoch(epoch):
        feeds.append({n: getattr(batch, n) for n in step.input_names})
shapes = {}
for feed in feeds:
    shapes.setdefault(feed["token_ids"].shape, feed)
for feed in shapes.values():
    for number in range(4):
        run(feed, number)
dump.poll()
out = dict(shapes=len(shapes), planned=len(job.batches.shapes), by_cluster=dump.by_cluster(),
           repeated=len(dump.repeated()), seconds=dump.seconds, clusters=step.executed.clusters,
           files=len(list(folder.iterdir())))
for number, feed in enumerate(feeds[:24]):
    run(feed, number)
out["late"] = len(dump.poll())
out["said"] = list(said)
# Padding to the longest of each batch, as plain scripts do: three tokens less.
feed = {n: a[:, :-3] if a.ndim == 2 else a for n, a in feeds[0].items()}
for number in range(4):
    run(feed, 100 + number)
out["stray"], out["said_then"] = len(dump.poll()), said
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compilations")
    for name, count in (("train.tsv", 96), ("dev.tsv", 8)):
        lines = []
        for i in range(count):
            # Every batch has another number of different tokens: that must not be a shape.
            words = [chr(97 + (i * 7 + j * j) % 26) for j in range(4 + i * 5 % 26)]
            lines.append(f"{' '.join(words)}\t{'ab'[i % 2]}\n")
        (folder / name).write_text("".join(lines))
    done = run_python("-c", SCRIPT, cwd=folder, timeout=580)
    assert done.code == 0, done.err
    return json.loads(done.out.splitlines()[-1])


def test_clusters_compile_once_a_shape_and_never_twice(found):
    assert found["shapes"] == found["planned"] == 2
    assert found["clusters"] > 0 and found["seconds"] > 0
    # Those that see no batch, as the optimizer's, once; those that do, once a shape.
    assert set(found["by_cluster"].values()) == {1, found["shapes"]}
    assert found["repeated"] == 0


def test_nothing_is_compiled_after_the_warm_up(found):
    assert found["late"] == 0 and found["said"] == []


def test_a_length_that_was_not_planned_is_compiled_and_named(found):
    assert found["stray"] > 0
    (text,) = found["said_then"]
    assert "dimension 1 of segment_ids, token_ids" in text and "--shapes" in text


def test_dumps_do_not_pile_up(found):
    assert found["files"] == 0
