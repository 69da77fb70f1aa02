"""Commands as users type them, each a process of its own, forked from one that has TensorFlow."""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from amp_xla.training import checkpoint
from tests.support.killing import metrics
from tests.support.running import Result

RECIPE, CLI = "recipes.classification", "amp_xla.commands.cli"
PREDICT, VERIFY = "amp_xla.commands.predict", "amp_xla.commands.verify"
# Code before a command: as if this variable had been set before the import of the setup.
FP32 = """
import os
from amp_xla.backend import configuring
for environ in (os.environ, configuring._original_environment):
    environ["AMP_XLA_PRECISION"] = "fp32"
configuring.configure()
"""


class Commands:
    """Runs commands of a fork server in ``folder``."""

    def __init__(self, server, folder):
        self._server, self.folder = server, folder
        self._scratch = tempfile.TemporaryDirectory()  # for their output

    def __call__(self, module, *argv, **job):
        return self.job({"module": module, "argv": [str(word) for word in argv], **job})

    def done(self, module, *argv, **job):
        """Run a command that must succeed."""
        result = self(module, *argv, **job)
        assert result.code == 0, result.out + result.err
        return result

    def job(self, job):
        """Any job of the fork server's."""
        paths = [Path(self._scratch.name, name) for name in ("out.txt", "err.txt")]
        for path in paths:
            path.write_bytes(b"")
        where = {"cwd": str(self.folder), "out": str(paths[0]), "err": str(paths[1])}
        self._server.start({**where, **job})
        code = self._server.wait()
        # Bytes: reading as text would turn a carriage return into the end of a line.
        return Result(code, *(path.read_bytes().decode("utf-8", "replace") for path in paths))

    def answers(self, run, file, *flags):
        """Return the answers of ``predict --json``."""
        lines = self.done(CLI, "predict", str(run), file, "--json", *flags).out.splitlines()
        return [json.loads(line) for line in lines]

    def evaluated(self, run, file):
        """Score a run on a file; return what is printed, and the result."""
        done = self.done(CLI, "evaluate", str(run), "--file", file)
        return done.out, json.loads((run / "evaluation" / file / "result.json").read_text())

    def metrics(self, recipe, run):
        """Return the lines of a run's metrics.jsonl."""
        return metrics(self.folder / "runs" / recipe / run)

    def resumed(self, recipe, whole, step, *words, **job):
        """Resume a copy of a run as if it had been killed after a step; return the copy."""
        copy = whole.with_name(f"{whole.name}-resumed")
        shutil.copytree(str(whole), str(copy), symlinks=True)
        for path in checkpoint.steps(copy / "checkpoints"):
            if int(path.name[5:13]) > step:
                shutil.rmtree(str(path))
        done = self.done(recipe, *words, "--name", copy.name, "--resume", **job)
        assert "resumed from step-" in done.err, done.err
        return copy


def served(folder, batch):
    """Return what a SavedModel computes from the arrays of a batch that it reads."""
    from amp_xla.backend import tf

    with tf.Session(graph=tf.Graph()) as session:
        loaded = tf.saved_model.load(session, ["serve"], str(folder))
        signature = loaded.signature_def["serving_default"]
        feed = {tensor.name: batch[name] for name, tensor in signature.inputs.items()}
        outputs = {name: output.name for name, output in signature.outputs.items()}
        return session.run(outputs, feed)


def bytes_of(folder):
    """Every file, link and folder under ``folder`` with a hash of what it holds."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_symlink():
            what = "-> " + os.readlink(str(path))
        elif path.is_dir():
            what = "folder"
        else:
            what = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(folder))] = what
    return found
