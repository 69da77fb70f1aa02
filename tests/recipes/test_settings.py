"""The recipes' and commands' settings as users type them, and as older runs wrote them down."""

from __future__ import annotations

import importlib
import json

import pytest

from amp_xla.commands import cli
from amp_xla.process.arguments import document, load, make, parse
from amp_xla.process.exits import exit_code
from amp_xla.process.fields import MAY_CHANGE, SAME_SPEED, fields
from amp_xla.training.options import RunOptions
from tests.running import run_python

# What config.json held before settings were composed of option groups, in the same words.
RUN = {
    "name": "a", "resume": False, "force_resume": False, "warm_start": None,
    "checkpoint_every": 7, "checkpoint_minutes": 10.0, "keep": 3, "on_nonfinite": "skip",
}  # fmt: skip
SHARED = {
    "bert": None, "dropout": 0.1, "learning_rate": 0.0005, "warmup": 0.1, "weight_decay": 0.01,
    "clip_norm": 1.0, "precision": "amp", "xla": None, "loss_scale": "dynamic",
    "evaluate_every": 3, "log_every": 20, "seed": 4, "run": RUN,
}  # fmt: skip
OLDER = {
    "recipes.classification": {
        "train": "a.tsv", "dev": "b.tsv", "text_field": None, "pair_field": None,
        "label_field": "y", "on_bad_line": "error", "train_fraction": 0.5, "vocab": None,
        "vocab_size": 8000, "lowercase": True, "layers": 3, "hidden": 128, "token_dropout": 0.1,
        "label_smoothing": 0.1, "epochs": 8, "batch_size": 16, "max_length": 96, "shapes": 4,
        "packed": False, "patience": 0, **SHARED,
    },
    "recipes.pretraining": {
        "data": None, "objective": "mlm", "mask": "word", "mask_rate": 0.15, "topic": 1.0,
        "model": "tiny", "embeddings": "counts", "steps": 2000, "global_batch": 16,
        "micro_batch": 16, "optimizer": "adamw", "decay": "linear", "average": 0.0,
        "heldout": 512, **SHARED,
    },
}  # fmt: skip


@pytest.mark.parametrize("module", sorted(OLDER))
def test_a_config_that_an_older_run_wrote_is_read_and_written_again(tmp_path, module):
    older = OLDER[module]
    (tmp_path / "config.json").write_text(json.dumps(older))
    config = load(importlib.import_module(module).Config, tmp_path / "config.json")
    written = json.loads(json.dumps(document(config)))
    younger = {"device": None, "accumulate": None, "recompute": False, "reduce": None}
    if module == "recipes.pretraining":
        younger.update(preset=None, positions="sinusoids", attention="neighbours")
        younger.update(phase2_length=None, phase2_share=0.1)
        younger.update(init_range=None, beta2=0.999, adam_epsilon=1e-6)
    assert written == {**older, **younger}


@pytest.mark.parametrize("module", sorted(OLDER))
def test_every_flag_of_before_is_still_typed_the_same(module):
    config = importlib.import_module(module).Config
    words, values = [], {**OLDER[module], **RUN}
    del values["run"]
    for name, value in values.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif value is not None:
            words += [flag, str(value)]
    assert parse(config, words) == make(config, **values)


def test_what_may_change_on_resume_and_what_is_as_fast():
    for module in OLDER:
        known = fields(importlib.import_module(module).Config)
        assert all(MAY_CHANGE in known[name].marks for name in fields(RunOptions))
        free = {name for name, field in known.items() if MAY_CHANGE in field.marks}
        free -= set(fields(RunOptions))
        assert free <= {
            "train",
            "dev",
            "bert",
            "vocab",
            "log_every",
            "device",
            "recompute",
            "preset",
        }
        for name in ("precision", "xla", "learning_rate", "warmup", "weight_decay", "seed"):
            assert SAME_SPEED in known[name].marks and MAY_CHANGE not in known[name].marks
        for name in ("dropout", "clip_norm", "loss_scale", "accumulate", "recompute"):
            assert SAME_SPEED not in known[name].marks


WRONG = {
    "recipes.classification": [
        "--dropout 1", "--dropout 1.5", "--dropout nan", "--dropout -0.1", "--token-dropout 1",
        "--label-smoothing nan", "--warmup 2", "--warmup -1", "--hidden 0", "--hidden 200",
        "--seed -1", "--log-every 0", "--epochs 0", "--epochs -1", "--epochs 1000000000",
        "--learning-rate -1", "--learning-rate inf", "--layers -1", "--layers 0", "--clip-norm -1",
        "--train-fraction nan", "--train-fraction 0", "--evaluate-every -1", "--patience -1",
        "--batch-size 0", "--batch-size 1e9", "--max-length 1", "--shapes 0", "--vocab-size 0",
        "--weight-decay -1", "--keep 0", "--checkpoint-every -1", "--checkpoint-minutes nan",
        "--accumulate 0",
    ],
    "recipes.pretraining": [
        "--steps 0", "--steps -1", "--mask-rate 0", "--mask-rate nan", "--topic -1",
        "--global-batch 0", "--micro-batch 0", "--average 1", "--heldout 0", "--dropout 1",
        "--warmup 2", "--seed -1", "--log-every 0", "--learning-rate 0", "--accumulate 0",
    ],
    "tune": ["--steps 0", "--rounds 1", "--timeout -1", "--minutes nan", "--memory-gib -1"],
    "rehearse": ["--steps 0"],
    "prepare": ["--length 20", "--length 8", "--heldout 1", "--workers -1", "--vocab-mb 0"],
    "header": ["--infinity -1", "--epsilon nan"],
}  # fmt: skip


@pytest.mark.parametrize(
    "where, words", [(where, words) for where, table in WRONG.items() for words in table]
)
def test_a_number_out_of_range_is_one_line_before_anything_is_made(
    where, words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    if where.startswith("recipes."):
        code = exit_code(importlib.import_module(where).main, words.split())
    else:
        code = cli.main([where, *words.split()])
    said = capsys.readouterr()
    flag, value = words.split()
    assert code == 2 and said.out == ""
    assert said.err.startswith("error: ") and said.err.count("\n") == 1
    assert (flag in said.err and "allowed" in said.err) or "is not a whole number" in said.err
    assert value.lstrip("-").split(".")[0] in said.err
    assert not list(tmp_path.iterdir())


def test_it_is_found_before_tensorflow_is_imported(tmp_path):
    code = """
import sys
from amp_xla.process.exits import exit_code
from recipes import classification
print(exit_code(classification.main, ["--dropout", "2"]), "tensorflow" in sys.modules)
"""
    done = run_python("-c", code, cwd=tmp_path)
    assert done.out == "2 False\n" and done.err == "error: --dropout 2.0: allowed is 0 to below 1\n"
    assert not list(tmp_path.iterdir())
