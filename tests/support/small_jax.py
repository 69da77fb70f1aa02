"""A corpus of two labels and the flags of a run over it that takes seconds."""

import os
import random
import socket
import subprocess
import sys
from pathlib import Path

from tests.support.running import ROOT

CPU = {"JAX_PLATFORMS": "cpu"}  # several devices or processes, also where there is one GPU
RUNS = Path("runs") / "jax_classification"
WORDS = {"a": ["x", "y", "zed"], "b": ["p", "q", "r"]}
FLAGS = (
    "--train train.tsv --dev dev.tsv --layers 1 --hidden 16 --vocab-size 60 --max-length 16 "
    "--shapes 1 --batch-size 8 --epochs 3 --log-every 5"
).split()
# Lets a run kill itself after step 20, with all checkpoints on disk.
KILL = """
import os, signal
from amp_xla.training.loop import Loop
def killed(self, *args, after_step=Loop.after_step, os=os, signal=signal):
    after_step(self, *args)
    if self.state.step == 20:
        self.checkpoints.wait()
        os.kill(os.getpid(), signal.SIGKILL)
Loop.after_step = killed
"""
KILLED = f"""{KILL}
import importlib, sys
from amp_xla.process.exits import exit_code
sys.exit(exit_code(importlib.import_module(sys.argv[1]).main, sys.argv[2:]))
"""


def corpus(folder):
    """Write 120 and 40 texts; the label is the set from which most words come."""
    numbers = random.Random(0)
    for name, count in (("train", 120), ("dev", 40)):
        lines = []
        for i in range(count):
            label = "ab"[i % 2]
            words = [numbers.choice(WORDS[label] + ["w"]) for _ in range(numbers.randint(3, 12))]
            lines.append(f"{' '.join(words)}\t{label}\n")
        (folder / f"{name}.tsv").write_text("".join(lines))


def start(folder, words, **environ):
    """Start Python in ``folder``, with standard output and error in one pipe."""
    # All runs have the same programs, which are compiled once.
    caches = {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    env = {**os.environ, "PYTHONPATH": str(ROOT), **caches, **environ}
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return subprocess.Popen([sys.executable, *words], cwd=str(folder), env=env, **pipes)


def run(folder, *words, code=0, **environ):
    """Run Python in ``folder``; return its output."""
    process = start(folder, list(words), **environ)
    said = process.communicate(timeout=280)[0]
    assert process.returncode == code, said
    return said


def together(folder, words):
    """Run two connected JAX processes; return the output of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": "2", **CPU}
    both = [start(folder, words, JAX_PROCESS_ID=str(i), **environ) for i in range(2)]
    said = [process.communicate(timeout=280)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    return said
