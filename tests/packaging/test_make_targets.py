"""Every make target is run: here on small data in a copy of the checkout, or where TESTED says."""

from __future__ import annotations

import random
import re
import shutil
import sys
from pathlib import Path
from typing import Dict, List, NamedTuple

import pytest

from tests.horovod import need_horovod
from tests.packaging.checkout import ROOT, run
from tests.packaging.test_makefile import DEFINED

pytestmark = [pytest.mark.once, pytest.mark.timeout(900)]
MODEL = "--layers 1 --hidden 64 --max-length 16"
SHARE = f"{MODEL} --shapes 1 --vocab-size 200 --train-fraction 0.1 --epochs 1"
DATA = f"--train train.tsv --dev dev.tsv {MODEL} --shapes 1 --vocab-size 100 --epochs 1"


class Small(NamedTuple):
    """A target's variables on small data, and what it then says."""

    variables: List[str]
    says: str
    code: int = 0


# In this order: what one leaves in runs/, the next ones use.
SMALL: Dict[str, Small] = {
    "train": Small([f"ARGS={DATA} --name small"], "predict with: make predict RUN=runs/class"),
    "predict": Small(["RUN=runs/classification/small", "ARGS=--file texts.txt"], "\tsalt soup"),
    "fill": Small(
        ["RUN=runs/classification/small", "ARGS=--text 'salt [MASK]'"],
        "is of recipe classification, which has no [MASK] to fill in",
        2,
    ),
    "export": Small(
        ["RUN=runs/classification/small"], "is of recipe classification, which has no export", 2
    ),
    "evaluate": Small(["RUN=tests"], "tests holds no bert_config.json with a checkpoint", 2),
    "verify": Small(["RUN=runs/classification/small"], "LAST -> step-"),
    "header": Small(["ARGS=--runtime tf2"], "import os"),
    "doctor": Small([], "0 errors"),
    "prepare": Small(
        ["CORPUS=text.txt", "OUT=data", "ARGS=--length 32 --vocab-size 128 --workers 1"],
        "sequences",
    ),
    "inspect": Small([f"ARGS={DATA}"], "written: runs/classification/inspect/amp.json"),
    "rehearse": Small([f"ARGS={DATA}", "STEPS=1"], "written: runs/classification/rehearse"),
    "tune": Small(
        ["TUNE=--steps 1 --rounds 1 --minutes 1", f"ARGS={DATA}"],
        "Use it: make train RECIPE=classification",
    ),
    "bench": Small(["BENCH=--compare bench.json bench.json"], "error: bench.json is not", 2),
    "bench-peers": Small([], "error: .venvs/peers/bin/python is missing", 2),
    "bench-curve": Small(["ARGS=-- --data data"], "error: .venvs/peers/bin/python is missing", 2),
    "bench-gpu": Small(["ARGS=--trial --render"], "written: runs/gpu.md"),
    "bench-loop": Small(["ARGS=--steps 2 --rounds 1"], "ms"),
    "bench-loss-scale": Small(
        ["ARGS=--layers 1 --hidden 64 --batch-size 2 --length 8 --rounds 2"], "dynamic"
    ),
    "bench-precision": Small(
        [f"ARGS=--only 'rewrite tf2 fp32' --job '{SHARE}'"],
        "| rewrite | tf2 | fp32 | 0.",
    ),
    "bench-rehearse": Small(
        [
            "ARGS=--layers 1 --hidden 64 --batch-size 2 --length 16 --steps 1 --float32-steps 1"
            " --part rewrite"
        ],
        "inspect",
    ),
    "bench-tables": Small(
        ["ARGS=--rounds 1 --steps 1 --rows 100 --batch 8"], "least possible, ids of 8 bytes"
    ),
    "bench-reader": Small(
        ["ARGS=--megabytes 1 --source-mb 1 --workers 1 --sequences 512 --rounds 1"],
        "a second and core",
    ),
    "bench-ranks": Small(["ARGS=--paper"], "8 x 8 GPUs"),
    "soak": Small(["KILLS=1", "ARGS=--minutes 2 --workers 1"], "0 differences"),
    "test": Small(["ARGS=-p no:cacheprovider tests/settings/test_flags.py"], "passed"),
    "test-all": Small(["ARGS=-p no:cacheprovider tests/settings/test_flags.py"], "passed"),
    "clean": Small([], ""),
    "clean-env": Small([], ""),
}
QUICK = (
    "header",
    "bench",
    "bench-peers",
    "bench-curve",
    "bench-gpu",
    "bench-ranks",
    "test",
    "clean",
    "clean-env",
    "verify",
    "fill",
    "evaluate",
    "predict",
    "train",
)
# Target -> the file, and the words in it, that run it with more than is at hand here.
TESTED = {
    "help": ("tests/packaging/test_makefile.py", '["make"]'),
    "env": ("tests/packaging/test_container_install.py", "make_env_does_it"),
    "lint": ("tests/packaging/test_import_contracts.py", '["make", "lint"]'),
    "format": ("tests/packaging/test_import_contracts.py", '["make", "format"]'),
    "type": (".ci/run", "lint | type) make"),
    "record": ("tests/packaging/test_stated_results.py", "record.describe"),
    "docker-build": ("tests/packaging/test_docker.py", 'docker.make("docker-build")'),
    "docker-train": ("tests/packaging/test_docker.py", 'docker.make("docker-train"'),
    "docker-test": ("tests/packaging/test_docker.py", 'docker.make("docker-test"'),
    "docker-run": ("tests/packaging/test_docker.py", 'docker.make("docker-run"'),
    "apptainer-train": ("tests/packaging/test_servers.py", "make apptainer-train RECIPE="),
    "docker-shell": ("tests/packaging/test_docker.py", 'docker.make("docker-shell")'),
}


def test_every_target_is_run_somewhere() -> None:
    assert sorted([*SMALL, *TESTED]) == sorted(DEFINED)
    for target, (file, words) in TESTED.items():
        assert words in (ROOT / file).read_text(encoding="utf-8"), target


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("amp_xla", "recipes", "scripts", "tests"):
        shutil.copytree(str(ROOT / name), str(folder / name), ignore=ignore)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(str(ROOT / name), str(folder))
    rng = random.Random(1)
    words = {"weather": ["rain", "wind", "snow", "sun"], "kitchen": ["soup", "bread", "salt"]}
    for name, count in (("train.tsv", 64), ("dev.tsv", 16)):
        labels = [rng.choice(sorted(words)) for _ in range(count)]
        rows = [
            f"{' '.join(rng.choice(words[label]) for _ in range(6))}\t{label}\n" for label in labels
        ]
        (folder / name).write_text("".join(rows))
    (folder / "texts.txt").write_text("salt soup\n")
    (folder / "text.txt").write_text("".join(f"{word} is a word.\n\n" for word in dir(str) * 5))
    (folder / "bench.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow, id=name)
        for name in SMALL
    ],
)
def test_a_target_runs(target: str, checkout: Path) -> None:
    """Through the real make and launcher, on the Python that runs this test."""
    if target == "bench-tables":
        need_horovod()
    small = SMALL[target]
    before = {path.name for path in checkout.iterdir()}
    done = run(["make", target, f"PYTHON={sys.executable}", *small.variables], root=checkout)
    said = done.stdout + done.stderr
    # make's own exit status is 2 for any failure, and it names the command's.
    found = re.search(r"Error (\d+)", said)
    assert (int(found.group(1)) if found else done.returncode) == small.code, said
    assert small.says in said, said
    assert "Traceback" not in said
    assert before - {path.name for path in checkout.iterdir()} <= {".pytest_cache", ".venvs"}
