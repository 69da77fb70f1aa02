"""The losses of a hundred steps, dropout on, as they were when they were committed.

``python -m tests.integration.test_golden`` writes them anew for the TensorFlow it runs on; say
in the commit why they changed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List

import numpy as np

from tests.integration.killing import Run, Server

HERE = Path(__file__).parent
CONFIG: Dict[str, Any] = dict(epochs=13, log_every=1, accumulate=1, overflow_at=[30])


def vector_unit() -> str:
    """The widest arithmetic of this CPU: kernels of different width add up in different order."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    return next((name for name in ("avx512f", "avx2", "avx") if name in flags), "none")


def tensorflow_version() -> str:
    from amp_xla import backend

    version: str = backend.tensorflow().__version__
    return version


def losses(server: Server, folder: Path) -> List[Any]:
    run = Run(server, folder, **CONFIG)
    assert run(checkpoint_every=0) == 0, run.text()
    records = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if "loss" in record][:100]


def test_a_hundred_losses(servers: List[Server], tmp_path: Path) -> None:
    path = HERE / f"golden-{tensorflow_version()}.json"
    golden = json.loads(path.read_text())
    found = losses(servers[0], tmp_path)
    assert len(found) == len(golden["losses"]) == 100
    assert found[30] == golden["losses"][30] == "nan"  # the step that overflows has no loss
    if golden["vector_unit"] == vector_unit():
        assert found == golden["losses"]
    numbers, expected = (np.array([float(x) for x in xs]) for xs in (found, golden["losses"]))
    np.testing.assert_allclose(numbers, expected, rtol=1e-3)


if __name__ == "__main__":
    with Server() as forks, tempfile.TemporaryDirectory() as made:
        document = {"vector_unit": vector_unit(), "losses": losses(forks, Path(made))}
    target = HERE / f"golden-{tensorflow_version()}.json"
    target.write_text(json.dumps(document, indent=1) + "\n")
    print(target, file=sys.stderr)
