"""Real processes that end by real signals, cheaply: forked from one that has TensorFlow.

The process that forks makes no session (a fork would inherit dead threads). A fault is chosen by
the test and built in here, around the product's own functions:

    {"checkpoint": ["step-00000006", 7]}   SIGKILL instead of the 8th file operation of writing it
    {"main": 3}               the same for the main thread (opening and resuming a run)
    {"step": [9, "before"]}   before, inside or after the training step with this number
    {"evaluate": [1, 2]}      in the 2nd evaluation, before its 3rd batch
    {"restore": "after"}      before or after the tensors were restored
    {"signal": "SIGTERM", ...} with any of the above: this signal instead of SIGKILL
    {"raise": "ValueError", ...} likewise: this exception, raised there
    {"deaf": true}            SIGHUP is ignored, as under nohup
    {"pause": 9}              say so before step 9, then wait until the file "go" is there
    {"hold": 14, ...}         before step 14, wait until the fault has happened, in whatever thread

Standard output and error go to the job's file "out", unless it names a file "err" for the latter.
"stdin" is a file; "stdout" is another file, or "unread": a pipe whose reader went away; "encoding"
is that of standard output, as PYTHONIOENCODING sets it. "code" is Python to execute before all.
"""

import builtins
import dataclasses
import functools
import importlib
import json
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import os
import runpy
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

from amp_xla.backend import configuring
from amp_xla.training import checkpoint
from amp_xla.training.manifest import read_manifest
from tests.support.running import ROOT, until

MUTATING = ("open", "write", "fsync", "mkdir", "rename", "replace", "unlink", "rmdir")
PRELOAD = """amp_xla.setup amp_xla.commands.predict amp_xla.commands.verify
amp_xla.data.batches.buckets amp_xla.models.encoders amp_xla.models.language_model
amp_xla.models.packed amp_xla.training.optimizers.adamw amp_xla.training.optimizers.schedule
amp_xla.precision.optimizer amp_xla.report.page amp_xla.training.evaluation
amp_xla.training.launch amp_xla.training.job amp_xla.training.tricks
bert4keras.layers bert4keras.models jinja2 recipes.classification recipes.pretraining
tests.support.tiny"""
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(PRELOAD.split())
_one_at_a_time = threading.Lock()  # starting a process looks at the ends of all others


class Server:
    """Forks one process at a time."""

    def __init__(self):
        multiprocessing.forkserver.ensure_running()  # before a test changes the environment

    def start(self, job):
        """Start a process; return its pid."""
        with _one_at_a_time:
            self._process = CONTEXT.Process(target=child, args=(job,))
            self._process.start()
        return self._process.pid

    def wait(self):
        """Return the exit code of the process; a signal's number negative."""
        multiprocessing.connection.wait([self._process.sentinel])
        with _one_at_a_time:
            self._process.join()
        return self._process.exitcode


def child(job):
    """Run a "script" or a "module" with "argv", or a training job with "config" and "run"."""
    # As in a program of ours. The fork server's own kind has named locks, such as tqdm's, and
    # Python 3.7 prints a warning about each when the process ends, now and then too late.
    multiprocessing.set_start_method("fork", force=True)
    os.chdir(job["cwd"])
    os.environ["PYTHONPATH"] = str(ROOT)  # for processes that it starts
    # Set by float32 in pytest's own process; a user's has only what its own settings set.
    for environ in (os.environ, configuring._original_environment):
        environ.pop("NVIDIA_TF32_OVERRIDE", None)
    for name, descriptor in (("out", 1), ("out", 2), ("err", 2), ("stdout", 1)):
        if name in job and job[name] != "unread":
            flags = os.O_WRONLY | os.O_APPEND | (0 if name == "stdout" else os.O_CREAT)
            os.dup2(os.open(job[name], flags), descriptor)
    if job.get("stdout") == "unread":
        read_end, write_end = os.pipe()
        os.dup2(write_end, 1)
        os.close(read_end)
    lines = 1 if "script" in job else -1  # a test reads what a script has printed so far
    encoding = job.get("encoding", "utf-8")
    sys.stdout = os.fdopen(1, "w", lines, encoding=encoding, closefd=False)
    stdin = os.fdopen(os.open(job["stdin"], os.O_RDONLY)) if "stdin" in job else None
    sys.stdin = stdin
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as in a program of ours until it watches
    deaf = job.get("faults", {}).get("deaf")
    signal.signal(signal.SIGHUP, signal.SIG_IGN if deaf else signal.SIG_DFL)
    if "log" in job:
        Faults(job.get("faults", {}), job["log"]).install()
    exec(job.get("code", ""), {})
    if "script" in job:
        sys.argv = [job["script"], *job.get("argv", [])]
        sys.path.insert(0, str(Path(job["script"]).parent))
        runpy.run_path(job["script"], run_name="__main__")
        return
    from amp_xla.process.exits import exit_code
    from amp_xla.training.launch import train
    from amp_xla.training.options import RunOptions

    module = importlib.import_module(job["module"])
    if "argv" in job:
        code = exit_code(module.main, job["argv"])
    else:
        config = dataclasses.replace(module.Config(**job["config"]), run=RunOptions(**job["run"]))
        code = exit_code(lambda: train(module.recipe, config))
    sys.stderr.flush()
    os._exit(code)  # without flushing standard output, which may be closed


def around(owner, name, before, after=None):
    """Call ``before`` and ``after`` with the arguments of each call of a function."""
    inner = getattr(owner, name)

    def wrapped(*args, **kwargs):
        before(*args)
        result = inner(*args, **kwargs)
        if after:
            after(*args)
        return result

    setattr(owner, name, wrapped)


class Faults:
    """Where this process is to be hit."""

    def __init__(self, spec, log):
        self.spec = spec
        self.number = {"main": 0, "writer": 0}
        self.checkpoint = ""
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.evaluations = 0
        self.happened = threading.Event()

    def write(self, *record):
        os.write(self.log, (json.dumps(record) + "\n").encode())

    def at(self, kind, where):
        """Be hit if this is the place."""
        if self.spec.get(kind) != where:
            return
        self.write("hit", kind, where)
        if "raise" in self.spec:
            raise getattr(builtins, self.spec["raise"])("a planted fault\nof two lines")
        os.kill(os.getpid(), getattr(signal, self.spec.get("signal", "SIGKILL")))
        self.happened.set()

    def install(self):
        from amp_xla.process import durable
        from amp_xla.training import loop, run, step

        counting = SimpleNamespace(**vars(os))
        for name in MUTATING:
            around(counting, name, functools.partial(self.file_operation, name))
        durable.os = checkpoint.os = run.os = counting
        write = functools.partial(self.file_operation, "tensors")
        around(checkpoint, "_write_tensors", lambda path, *_: write(str(path)))
        restored = functools.partial(self.at, "restore")
        around(
            step.Variables, "assign", lambda *_: restored("before"), lambda *_: restored("after")
        )
        around(loop.Loop, "train", self.watch)
        around(step.TrainStep, "__call__", self.before_step, self.after_step)

    def file_operation(self, name, *args):
        who = "writer" if threading.current_thread().name.startswith("checkpoint") else "main"
        what = [Path(str(a)).name for a in args if isinstance(a, str)]
        if who == "writer" and name == "mkdir":
            self.checkpoint, self.number[who] = what[0].replace(".tmp-", ""), 0
        number = self.number[who]
        self.number[who] += 1
        where = ["checkpoint", [self.checkpoint, number]] if who == "writer" else ["main", number]
        self.at(*where)
        self.write("file", *where, name, what)

    def watch(self, training, _):
        """Log the sample ids of each batch under the number of its step; look into evaluations."""
        self.training, job = training, training.engine.job
        epoch = job.batches.epoch

        def recorded(number, start=0):
            for batch in epoch(number, start):
                ids = getattr(batch, "whole", batch).get("sample_ids", ())
                self.write("samples", training.state.step, number, [int(i) for i in ids])
                yield batch

        from amp_xla.training import evaluation

        shards = evaluation.shards

        def evaluated(batches):
            self.evaluations += 1
            for index, batch in enumerate(shards(batches)):
                self.at("evaluate", [self.evaluations - 1, index])
                yield batch

        job.batches.epoch = recorded
        evaluation.shards = evaluated

    def before_step(self, step, _, called):
        number, micro_batch = divmod(called, step.optimizer.accumulate)
        if micro_batch:
            return
        if self.spec.get("pause") == number:
            self.training.finish_writing()  # so that a test finds the folder at rest
            self.write("paused", number)
            until(lambda: os.path.exists("go"))
        if self.spec.get("hold") == number:
            assert self.happened.wait(120)
        self.at("step", [number, "before"])

    def after_step(self, step, _, called):
        number, micro_batch = divmod(called, step.optimizer.accumulate)
        if micro_batch == 0:
            self.at("step", [number, "inside"])
        if micro_batch == step.optimizer.accumulate - 1:
            self.at("step", [number, "after"])
            if (number + 1) % 5 == 0:  # a slow disk would put off the checkpoint due now
                self.training.finish_writing()


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
