"""Real processes that end by real signals, cheaply: forked from one that has imported TensorFlow.

The server never makes a session (a fork would inherit dead threads). For each line of JSON on
standard input it forks a child that runs one training job and answers with the child's pid, then
with its exit status once it has ended.

A fault is chosen by the test and built in here, around the product's own functions:

    {"checkpoint": ["step-00000006", 7]}   SIGKILL instead of the 8th file operation of writing it
    {"main": 3}               the same for the main thread (opening and resuming a run)
    {"step": [9, "before"]}   SIGKILL before or after the training step with this number
    {"evaluate": [1, 2]}      SIGKILL in the 2nd evaluation, before its 3rd batch
    {"restore": "after"}      SIGKILL before or after the tensors were restored
    {"signal": "SIGTERM", ...} with any of the above: this signal instead of SIGKILL
    {"raise": "ValueError", ...} likewise: this exception, raised there
    {"close": 9}              before step 9, whoever reads standard output and error goes away
    {"deaf": true}            SIGHUP is ignored, as under nohup
    {"pause": 9}              say so before step 9, then wait until the file "go" is there
    {"hold": 14, ...}         before step 14, wait until the fault has happened, in whatever thread

Standard output and error go to the job's file "out", unless it names a file "err" for the latter.
"stdin" is a file; "stdout" is another file, "closed", or "unread": a pipe whose reader went away;
"encoding" is that of standard output, as PYTHONIOENCODING sets it. "code" is Python to execute
before a command.
"""

from __future__ import annotations

import builtins
import dataclasses
import importlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

MUTATING = ("open", "write", "fsync", "mkdir", "rename", "replace", "unlink", "rmdir")


class CountingOs:
    """Stands in for a module's ``os``: counts, logs and, at one point, kills."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        function = getattr(os, name)
        if name not in MUTATING:
            return function

        def counted(*args: Any, **kwargs: Any) -> Any:
            self._faults.file_operation(name, args)
            return function(*args, **kwargs)

        return counted


class Faults:
    """Where this process is to be hit."""

    def __init__(self, spec: Dict[str, Any], log: Path) -> None:
        self.spec = spec
        self.number = {"main": 0, "writer": 0}
        self.checkpoint = ""
        self.log = os.open(str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.evaluations = 0
        self.happened = threading.Event()

    def write(self, *record: Any) -> None:
        os.write(self.log, (json.dumps(record) + "\n").encode())

    def hit(self, *where: Any) -> None:
        self.write("hit", *where)
        if "raise" in self.spec:
            raise getattr(builtins, self.spec["raise"])("a planted fault\nof two lines")
        os.kill(os.getpid(), getattr(signal, self.spec.get("signal", "SIGKILL")))
        self.happened.set()

    def file_operation(self, name: str, args: Tuple[Any, ...]) -> None:
        who = "writer" if threading.current_thread().name.startswith("checkpoint") else "main"
        what = [Path(str(a)).name for a in args if isinstance(a, str)]
        if who == "writer" and name == "mkdir":
            self.checkpoint, self.number[who] = what[0].replace(".tmp-", ""), 0
        number = self.number[who]
        self.number[who] += 1
        where = ["checkpoint", [self.checkpoint, number]] if who == "writer" else ["main", number]
        if self.spec.get(str(where[0])) == where[1]:
            self.hit(*where, name, what)
        self.write("file", *where, name, what)

    def install(self) -> None:
        from amp_xla.process import durable
        from amp_xla.training import checkpoint, loop, run, variables

        counting = CountingOs(self)
        durable.os = checkpoint.os = run.os = counting  # type: ignore[attr-defined]
        write, restore = checkpoint._write_tensors, variables.Variables.assign
        train = loop.Loop.train
        faults = self

        def counted_write(path: Path, tensors: Any) -> None:
            faults.file_operation("tensors", (str(path),))
            write(path, tensors)

        def hit_restore(this: Any, tensors: Any) -> None:
            if faults.spec.get("restore") == "before":
                faults.hit("restore", "before")
            restore(this, tensors)
            if faults.spec.get("restore") == "after":
                faults.hit("restore", "after")

        def hit_train(this: Any, watch: Any) -> Any:
            engine = this.engine
            step = Step(engine.job.step, this.checkpoints, faults)
            seen = Recorded(engine.job.batches, this.state, faults)
            engine.job = dataclasses.replace(engine.job, batches=seen, step=step)
            evaluate = getattr(engine.job.evaluate, "__wrapped__", engine.job.evaluate)
            evaluate._batches = Evaluated(evaluate._batches, faults)
            return train(this, watch)

        checkpoint._write_tensors = counted_write
        variables.Variables.assign = hit_restore  # type: ignore[method-assign]
        loop.Loop.train = hit_train


class Step:
    """A ``TrainStep`` that can be hit before and after."""

    def __init__(self, step: Any, checkpoints: Any, faults: Faults) -> None:
        self._step, self._checkpoints, self._faults = step, checkpoints, faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def __call__(self, feed: Any, called: int) -> Any:
        number, micro_batch = divmod(called, self._step.optimizer.accumulate)
        first, last = micro_batch == 0, micro_batch == self._step.optimizer.accumulate - 1
        if first:
            self._before(number)
        result = self._step(feed, called)
        if first and self._faults.spec.get("step") == [number, "inside"]:
            self._faults.hit("step", number, "inside")
        if last and self._faults.spec.get("step") == [number, "after"]:
            self._faults.hit("step", number, "after")
        if last and (number + 1) % 5 == 0:  # a slow disk would put off the checkpoint due now
            self._checkpoints.wait()
        return result

    def _before(self, number: int) -> None:
        if self._faults.spec.get("pause") == number:
            self._checkpoints.wait()  # so that a test finds the folder at rest
            self._faults.write("paused", number)
            while not os.path.exists("go"):
                time.sleep(0.02)
        if self._faults.spec.get("hold") == number:
            assert self._faults.happened.wait(120)
        if self._faults.spec.get("close") == number:
            read_end, write_end = os.pipe()
            os.close(read_end)
            os.dup2(write_end, 1)
            os.dup2(write_end, 2)
        if self._faults.spec.get("step") == [number, "before"]:
            self._faults.hit("step", number, "before")


class Recorded:
    """Batches whose sample ids are logged under the number of their step."""

    def __init__(self, batches: Any, state: Any, faults: Faults) -> None:
        self._batches, self._state, self._faults = batches, state, faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def epoch(self, epoch: int, start: int = 0) -> Any:
        for batch in self._batches.epoch(epoch, start):
            ids = [int(i) for i in getattr(batch, "whole", batch)["sample_ids"]]
            self._faults.write("samples", self._state.step, epoch, ids)
            yield batch


class Evaluated:
    """Dev batches that can be hit in the middle."""

    def __init__(self, batches: Any, faults: Faults) -> None:
        self._batches, self._faults = batches, faults

    def epoch(self, epoch: int) -> Any:
        number = self._faults.evaluations
        self._faults.evaluations += 1
        for index, batch in enumerate(self._batches.epoch(epoch)):
            if self._faults.spec.get("evaluate") == [number, index]:
                self._faults.hit("evaluate", number, index)
            yield batch


def streams(job: Dict[str, Any]) -> None:
    """Standard input, output and error as the job wants them."""
    if "stdin" in job:
        os.dup2(os.open(job["stdin"], os.O_RDONLY), 0)
    else:
        sys.stdin.close()
        sys.stdin = None  # type: ignore[assignment]
    if "err" in job:
        os.dup2(os.open(job["err"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    if job.get("stdout") == "unread":
        read_end, write_end = os.pipe()
        os.dup2(write_end, 1)
        os.close(read_end)
    elif job.get("stdout") == "closed":
        os.close(1)
        sys.stdout = None  # type: ignore[assignment]
    elif "stdout" in job:
        os.dup2(os.open(job["stdout"], os.O_WRONLY), 1)
    if "encoding" in job:
        sys.stdout.reconfigure(encoding=job["encoding"])  # type: ignore[union-attr]


def child(job: Dict[str, Any]) -> int:
    """One training process: ``job`` has cwd, module, config, run, faults, log, out."""
    os.chdir(job["cwd"])
    descriptor = os.open(job["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    if "err" in job:
        descriptor = os.open(job["err"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 2)
    streams(job)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as in a program of ours until it watches
    deaf = job.get("faults", {}).get("deaf")
    signal.signal(signal.SIGHUP, signal.SIG_IGN if deaf else signal.SIG_DFL)
    if "log" in job:
        Faults(job.get("faults", {}), Path(job["log"])).install()
    from amp_xla.process.exits import exit_code
    from amp_xla.training.launch import train
    from amp_xla.training.options import RunOptions

    module = importlib.import_module(job["module"])
    exec(job.get("code", ""), {})
    if "argv" in job:
        return exit_code(module.main, job["argv"])
    config = module.Config(**job["config"])
    config = dataclasses.replace(config, run=RunOptions(**job["run"]))
    return exit_code(lambda: train("tiny", config, module.build, module.options(config)))


def serve(modules: List[str]) -> None:
    """The server's loop; ``modules`` are imported once, for all children."""
    for name in modules:
        importlib.import_module(name)
    out = os.fdopen(os.dup(1), "w")
    print(json.dumps({"ready": time.monotonic()}), file=out, flush=True)
    for line in iter(sys.stdin.readline, ""):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = child(json.loads(line))
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(json.dumps({"pid": pid}), file=out, flush=True)
        _, status = os.waitpid(pid, 0)
        code: Optional[int] = None
        if os.WIFEXITED(status):
            code = os.WEXITSTATUS(status)
        else:
            code = -os.WTERMSIG(status)
        print(json.dumps({"code": code}), file=out, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1:])
