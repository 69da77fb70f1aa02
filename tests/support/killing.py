"""The test's side of the fork server: start a run, hit it, resume it, compare what is left."""

import json

from amp_xla.training import checkpoint
from amp_xla.training.manifest import read_manifest
from tests.support.forkserver import Server
from tests.support.running import until

__all__ = ["Run", "Server", "metrics", "repeatable", "state"]


def metrics(run):
    """Return the lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def repeatable(run):
    """Return the lines of metrics.jsonl without what depends on the clock."""
    return [
        {k: v for k, v in line.items() if k != "time" and not k.endswith("_per_second")}
        for line in metrics(run)
    ]


def state(run):
    """Return SHA-256 of every file of the last checkpoint and of the best, and the metrics."""
    found = [repeatable(run)]
    folder = run / "checkpoints"
    for path in (checkpoint.steps(folder)[-1], checkpoint.best(folder)):
        assert path is not None and checkpoint.problems(path) == []
        files = read_manifest(path)
        found.append({file: value["sha256"] for file, value in files.items()})
    return found


class Run:
    """One tiny run in ``folder``, over as many processes as it takes."""

    code = ""  # Python that each process executes first

    def __init__(self, server, folder, **config):
        self.server, self.folder, self.config = server, folder, config
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "runs" / "tiny" / "run"
        self.log, self.out = folder / "log.jsonl", folder / "out.txt"

    def _start(self, faults, config=None, **run):
        options = dict(name="run", resume=True, checkpoint_every=5)
        return self.server.start({
            "cwd": str(self.folder), "module": "tests.support.tiny",
            "config": {**self.config, **(config or {})}, "run": {**options, **run},
            "faults": faults or {}, "log": str(self.log), "out": str(self.out), "code": self.code,
        })  # fmt: skip

    def __call__(self, faults=None, **more):
        """Run one process to its end; return its exit code."""
        self._start(faults, **more)
        return self.server.wait()

    def start(self, faults, **more):
        """Start a process and return its pid once it pauses; ``go_on`` ends it."""
        before = len(self.records("paused")) if self.log.exists() else 0
        pid = self._start(faults, **more)
        until(lambda: self.log.exists() and len(self.records("paused")) > before)
        return pid

    def go_on(self):
        """Let a paused process run on; return its exit code."""
        (self.folder / "go").touch()
        code = self.server.wait()
        (self.folder / "go").unlink()
        return code

    def records(self, kind):
        lines = self.log.read_text().splitlines()
        return [record[1:] for record in map(json.loads, lines) if record[0] == kind]

    def samples(self):
        """[epoch, ids] by step; a step that was taken again must have had the same."""
        by_step = {}
        for step, epoch, ids in self.records("samples"):
            assert by_step.setdefault(step, [epoch, ids]) == [epoch, ids], f"step {step}"
        assert sorted(by_step) == list(range(len(by_step)))
        return [by_step[step] for step in sorted(by_step)]

    def state(self):
        return state(self.path)

    def metrics(self):
        return metrics(self.path)

    def text(self):
        return self.out.read_text() if self.out.exists() else ""
