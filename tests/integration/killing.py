"""The test's side of the fork server: start a run, hit it, resume it, compare what is left."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from amp_xla.training import checkpoint
from amp_xla.training.metrics import CLOCK_FIELDS
from tests.running import ROOT

MODULES = (
    "amp_xla.setup",
    "amp_xla.data.batches.buckets",
    "amp_xla.optimizers.adamw",
    "amp_xla.optimizers.schedule",
    "amp_xla.precision.optimizer",
    "amp_xla.training.evaluation",
    "amp_xla.training.launch",
    "amp_xla.training.tensorflow_engine",
    "tests.integration.tiny",
)


def repeatable(line: Dict[str, Any]) -> Dict[str, Any]:
    """Return a line of metrics.jsonl without what depends on the clock."""
    return {name: value for name, value in line.items() if name not in CLOCK_FIELDS}


class Server:
    """A fork server process; ``with Server() as server``."""

    def __init__(self, modules: Any = MODULES) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.forkserver", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=str(ROOT),
        )
        assert "ready" in self._answer()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _answer(self) -> Dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the fork server died with {self._process.wait()}")
        found: Dict[str, Any] = json.loads(line)
        return found

    def start(self, job: Dict[str, Any]) -> int:
        """Forks a child; returns its pid. ``wait`` before the next one."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        self._process.stdin.flush()
        pid: int = self._answer()["pid"]
        return pid

    def wait(self) -> int:
        """The child's exit code; a signal's number negative."""
        code: int = self._answer()["code"]
        return code


class Run:
    """One tiny run in ``folder``, over as many processes as it takes."""

    def __init__(self, server: Server, folder: Path, **config: Any) -> None:
        self.server, self.folder, self.config = server, folder, config
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "runs" / "tiny" / "run"
        self.log, self.out = folder / "log.jsonl", folder / "out.txt"

    def job(
        self,
        faults: Optional[Dict[str, Any]] = None,
        config: Optional[Dict[str, Any]] = None,
        **run: Any,
    ) -> Dict[str, Any]:
        options = dict(name="run", resume=True, checkpoint_every=5)
        return {
            "cwd": str(self.folder),
            "module": "tests.integration.tiny",
            "config": {**self.config, **(config or {})},
            "run": {**options, **run},
            "faults": faults or {},
            "log": str(self.log),
            "out": str(self.out),
        }

    def __call__(self, faults: Optional[Dict[str, Any]] = None, **more: Any) -> int:
        """Runs one process to its end; returns its exit code."""
        self.server.start(self.job(faults, **more))
        return self.server.wait()

    def start(self, faults: Dict[str, Any], **more: Any) -> int:
        """Starts a process and returns its pid once it pauses; ``go_on`` ends it."""
        if (self.folder / "go").exists():
            (self.folder / "go").unlink()
        before = len(self.records("paused")) if self.log.exists() else 0
        pid = self.server.start(self.job(faults, **more))
        deadline = time.monotonic() + 120
        while not self.log.exists() or len(self.records("paused")) == before:
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.05)
        return pid

    def go_on(self) -> int:
        """Lets a paused process run on; returns its exit code."""
        (self.folder / "go").touch()
        return self.server.wait()

    def records(self, kind: str) -> List[Any]:
        lines = self.log.read_text().splitlines()
        return [record[1:] for record in map(json.loads, lines) if record[0] == kind]

    def samples(self) -> List[Any]:
        """[epoch, ids] by step; a step that was taken again must have had the same."""
        by_step: Dict[int, Any] = {}
        for step, epoch, ids in self.records("samples"):
            assert by_step.setdefault(step, [epoch, ids]) == [epoch, ids], f"step {step}"
        assert sorted(by_step) == list(range(len(by_step)))
        return [by_step[step] for step in sorted(by_step)]

    def state(self) -> Dict[str, Any]:
        """SHA-256 of every file of the last checkpoint and of the best, and the metrics."""
        folder = self.path / "checkpoints"
        found: Dict[str, Any] = {}
        for which, path in (
            ("last", checkpoint.steps(folder)[-1]),
            ("best", checkpoint.best(folder)),
        ):
            assert path is not None
            assert checkpoint.problems(path) == []
            files = checkpoint.read_manifest(path)
            found[which] = {file: value["sha256"] for file, value in files.items()}
        found["metrics"] = [repeatable(line) for line in self.metrics()]
        return found

    def metrics(self) -> List[Dict[str, Any]]:
        lines = (self.path / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def text(self) -> str:
        return self.out.read_text() if self.out.exists() else ""
