"""A corpus of two labels and the flags of a run over it that takes seconds."""

import random
import socket
from pathlib import Path

from tests.support.running import run_python, start_python

CPU = {"JAX_PLATFORMS": "cpu"}  # several devices or processes, also where there is one GPU
RUNS = Path("runs") / "jax_classification"
WORDS = {"a": ["x", "y", "zed"], "b": ["p", "q", "r"]}
FLAGS = (
    "--train train.tsv --dev dev.tsv --layers 1 --hidden 16 --vocab-size 60 --max-length 16 "
    "--shapes 1 --batch-size 8 --epochs 3 --log-every 5"
).split()
# Lets a run kill itself after step 20, with all checkpoints on disk.
KILLED = """
import importlib, os, signal, sys
from amp_xla.process.exits import exit_code
from amp_xla.training.loop import Loop
def killed(self, *args, after_step=Loop.after_step, os=os, signal=signal):
    after_step(self, *args)
    if self.state.step == 20:
        self.checkpoints.wait()
        os.kill(os.getpid(), signal.SIGKILL)
Loop.after_step = killed
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


def caches(folder):
    """Return variables with which all runs have the same programs, which are compiled once."""
    least = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
    return {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"), least: "0"}


def run(folder, *words, code=0, **environ):
    """Run Python in ``folder``; return its output."""
    env = {**caches(folder), **environ}
    done = run_python(*words, env=env, timeout=280, cwd=folder, code=code)
    return done.out + done.err


def together(folder, words):
    """Run two connected JAX processes; return the output of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": "2", **CPU}
    environ.update(caches(folder))
    both = [start_python(*words, cwd=folder, JAX_PROCESS_ID=str(i), **environ) for i in range(2)]
    said = [b"".join(process.communicate(timeout=280)).decode() for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    return said
