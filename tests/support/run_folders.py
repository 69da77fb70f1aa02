"""Small run folders and checkpoints, with files as training writes them, without TensorFlow."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np

from amp_xla.commands import evaluate
from amp_xla.training import checkpoint
from amp_xla.training.sample_scores import LabelScores, NumberScores, Samples
from amp_xla.training.state import LoopState

STEPS = 200


def good(folder, extra=None, state="done", message="", lines=20, **settings):
    """Write a run that learned; return its folder.

    Args:
      extra: more metrics for each training line of the log.
      lines: number of training lines in the log.
      settings: settings that differ from the defaults.
    """
    folder.mkdir(parents=True)
    defaults = {"train": None, "epochs": 2, "learning_rate": 5e-4, "precision": None}
    plan = {
        "total_steps": STEPS, "monitor": "accuracy", "higher_is_better": True,
        "shapes": ["16 × 32", "16 × 96"], "padding_share": 0.13, "defaults": defaults,
    }  # fmt: skip
    _json(folder / "config.json", {**defaults, **settings, "run": {"name": folder.name}})
    again = {"continuing": "the same command with --resume continues"}
    _json(folder / "status.json", {"state": state, "message": message, "plan": plan, **again})
    _json(folder / "run.json", {"recipe": "classification", "command": "amp-xla train 'a b'"})
    counts = {"nodes": 2000, "half_nodes": 700, "half_dtype": "bfloat16", "clusters": 0}
    _json(folder / "executed.json", {**counts, "half_ops": {"MatMul": 56}})
    with (folder / "metrics.jsonl").open("w") as log:
        for line in range(1, lines + 1):
            step = line * STEPS // lines
            values = {
                "step": step, "kind": "train", "epoch": 1, "loss": 2.5 * math.exp(-step / 60),
                "accuracy": 1 - 0.9 * math.exp(-step / 60), "learning_rate": 1e-3 / line,
                "loss_scale": 1000.0, "gradient_norm": 1.0 + math.sin(line), "skipped_steps": 0,
                "samples_per_second": 100.0 + line % 7, **(extra or {}),
            }  # fmt: skip
            log.write(json.dumps(values) + "\n")
            if line % max(1, lines // 4) == 0:
                share = line / lines
                dev = {"dev_accuracy": 0.5 + 0.4 * share, "dev_loss": 1.5 - share}
                log.write(json.dumps({"step": step, "kind": "dev", **dev}) + "\n")
    return folder


def scored(run, label):
    """Write the evaluation of a run that predicts three labels at random."""
    source = np.random.RandomState(1)
    chances = source.dirichlet([1.0, 1.0, 1.0], 200)
    labels = np.array([source.choice(3, p=row) for row in chances])
    texts = [f"{label} {number}" for number in range(200)]
    names = ("tool", "food", label)
    wanted = [names[i] for i in labels]
    samples = Samples(run, "step-00000200", "test.tsv", texts, wanted)
    _evaluated(LabelScores(samples, names, chances))


def ranked(run):
    """Write the evaluation of a run that predicts similarities."""
    labels = np.arange(30.0)
    pairs = [f"a\tb{i}" for i in range(30)]
    samples = Samples(run, "step-00000200", "pairs.tsv", pairs, labels)
    _evaluated(NumberScores(samples, labels % 7))


def _evaluated(answers):
    other = answers.samples._replace(run=Path("other"))
    both = [answers, dataclasses.replace(answers, samples=other)]
    evaluate.write(answers, evaluate.result_of(answers, both, seed=1), 100)


def diverged(folder):
    """Write a run whose numbers became non-finite; return its folder."""
    good(folder, state="failed", message="step 190: loss nan at loss scale 1")
    path = folder / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        if record["step"] > 120 and record["kind"] == "train":
            record.update(loss="nan", gradient_norm="inf", skipped_steps=record["step"] - 120)
            record["loss_scale"] = max(1.0, 1000.0 / 2 ** ((record["step"] - 120) // 10))
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "nonfinite-00000190").mkdir()
    (folder / "nonfinite-00000190" / "report.txt").write_text("first non-finite node: MatMul\n")
    return folder


def _json(path, value):
    path.write_text(json.dumps(value))


def state(step):
    """Return the state of a checkpoint."""
    parts = ("data", "assets", "config", "settings", "versions", "defaults")
    return {
        "recipe": "r",
        "loop": dataclasses.asdict(LoopState(step=step)),
        "identity": {part: {} for part in parts},
        "ranks": {"size": 1, "first_size": 1, "micro_batches": 1},
    }


def tensors(step):
    """Return tensors that differ from step to step."""
    weight = np.arange(12, dtype=np.float32).reshape(3, 4) + step
    return {"weight": weight, "count": np.array(step, np.int64), "slot": np.ones(5)}


def checkpointed(folder, step):
    """Write a checkpoint and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"vocab.txt": b"[PAD]\n"}
    return checkpoint.write(folder, tensors(step), state(step), files)
