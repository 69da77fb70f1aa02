"""Two hundred damages to one file each: what is read to predict, verify and resume never changes.

Without TensorFlow, and so in seconds: which checkpoint is chosen, and every byte that is taken from
it. ``tests/integration/test_fuzz.py`` is the same with real processes and real answers.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

from amp_xla.commands import verify
from amp_xla.errors import AmpXlaError
from amp_xla.training import checkpoint, json_files
from amp_xla.training.checkpoint import Checkpoint, find
from amp_xla.training.run import RunFolder
from tests.integration.damage import damage
from tests.training import runs as small

SEEDS = 200
STEPS, RUN = (4, 8, 12), Path("runs/r/mine")
CONFIG = {"hidden": 8, "kind": "a"}


def make(folder: Path, number: int, best: int) -> None:
    """A run like a finished one; ``number`` is in every file."""
    run = folder / RUN
    assets = {"vocab.txt": b"[PAD]\n%d\n" % number, "labels.json": b'["a", "b%d"]' % number}
    for name, data in {**assets, "metrics.jsonl": b'{"step": 4}\n'}.items():
        run.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(data)
    config = {**CONFIG, "seed": number}
    (run / "config.json").write_bytes(json_files.encode({**config, "run": {"name": "mine"}}))
    (run / "run.json").write_bytes(json_files.encode({"recipe": "r", "seed": number}))
    (run / "checkpoints").mkdir()
    for step in STEPS:
        state = small.state(step, 0.5 - 0.1 * (step == best))
        digests = {name: checkpoint.sha256(run / name) for name in assets}
        state["identity"].update(assets=digests, config=config)
        checkpoint.write(
            run / "checkpoints", step, small.tensors(number * 100 + step), state, assets
        )


def predicted(folder: Path) -> Any:
    """All that predicting takes from a run."""
    saved = find(folder / RUN)
    files = [Path(saved.file(name)).read_bytes() for name in ("vocab.txt", "labels.json")]
    return saved.recipe, saved.state, (saved.path / checkpoint.TENSORS).read_bytes(), files


def resumed(folder: Path) -> Any:
    """The checkpoint that would be gone on from."""
    run = RunFolder("r", "mine", root=str(folder / "runs"), resume=True)
    try:
        saved = run.newest()
        assert saved is not None  # a run with checkpoints never starts over
        return saved.state, (saved.path / checkpoint.TENSORS).read_bytes()
    finally:
        run.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: Any) -> Tuple[Path, Path]:
    first, second = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second")
    make(first, 1, best=8)
    make(second, 2, best=12)
    return first, second


def test_a_damaged_file_is_named_or_changes_nothing(
    runs: Tuple[Path, Path], tmp_path: Path, capsys: Any
) -> None:
    first, second = runs
    answer = predicted(first)
    newest = [Checkpoint(path) for path in checkpoint.steps(first / RUN / "checkpoints")]
    wholes = [(s.state, (s.path / checkpoint.TENSORS).read_bytes()) for s in newest]
    assert verify.main(["--run", str(first / RUN)]) == 0
    verified = capsys.readouterr().out
    seen: Dict[str, List[int]] = {}
    for seed in range(SEEDS):
        chance = random.Random(seed)
        folder = tmp_path / str(seed)
        shutil.copytree(str(first), str(folder))
        path = chance.choice(sorted(p for p in folder.rglob("*") if p.is_file()))
        kind = damage(path, second / path.relative_to(folder), chance)
        what = f"{seed}: {kind} {path.relative_to(folder / RUN)}"
        for name, check in (("predict", predicted), ("resume", resumed)):
            try:
                found = check(folder)
                assert found in wholes if name == "resume" else found == answer, what
                ended = "same"
            except AmpXlaError as error:
                assert path.name in str(error), (what, error)
                ended = "named"
            seen.setdefault(f"{name} {ended}", []).append(seed)
        capsys.readouterr()
        code = verify.main(["--run", str(folder / RUN)])
        said = capsys.readouterr().out
        assert said == verified if code == 0 else path.name in said, (what, said)
        seen.setdefault(f"verify {code}", []).append(seed)
        shutil.rmtree(str(folder))
    assert all(len(seeds) > 5 for seeds in seen.values()), seen
