"""Processes that are measured: how they are started, and what they answer."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any, Dict, Mapping, Sequence

from amp_xla.speed.machine import clean_environment
from amp_xla.speed.measure import ChildEnded, Request, ended

MARK = "@amp_xla "
# XLA's lazy mode compiles a shape at its third request; the fourth step is warm.
WARM_STEPS = 4


def answer_of(command: Sequence[str], environ: Mapping[str, str], timeout: float) -> Dict[str, Any]:
    """Start a process and return its result, as ``reply`` prints it.

    Args:
      environ: variables to add to a clean environment.

    Raises:
      ChildEnded: the process ended without a result, or had none after ``timeout`` seconds.
    """
    with subprocess.Popen(
        list(command),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**clean_environment(), **environ},
        start_new_session=True,
    ) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise ChildEnded("timed out", f"no answer in {timeout:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):  # what it started holds GPU and pipes
                os.killpg(process.pid, signal.SIGKILL)
    answers = [line for line in out.splitlines() if line.startswith(MARK.encode())]
    if process.returncode or not answers:
        raise ended(process.returncode, errors)
    values: Dict[str, Any] = json.loads(answers[0][len(MARK) :].decode())
    return values


def reply(**values: Any) -> None:
    """Print the result for the parent process."""
    sys.stdout.write(MARK + json.dumps(values) + "\n")
    sys.stdout.flush()


def build_job(request: Request) -> Any:
    """Build the recipe's job with the requested precision and XLA mode, variables initialized."""
    from amp_xla.training.recipe import find_recipe

    recipe = find_recipe(request.recipe)
    words = (*request.words, "--precision", request.precision, "--xla", request.xla)
    from amp_xla.training.context import build_job

    job = build_job(recipe.build, recipe.parse(words))
    from amp_xla.training.step import initialize_variables

    initialize_variables()
    return job


def peak_bytes() -> int:
    """Return the peak memory: the GPU's if there is one, else this process' resident memory."""
    from amp_xla import backend

    if not backend.gpus():
        return peak_resident()
    raw = backend.tensorflow()
    if backend.kind() == "tf2":
        return int(raw.config.experimental.get_memory_info("GPU:0")["peak"])
    from tensorflow.contrib.memory_stats.python.ops import memory_stats_ops

    with raw.device("/GPU:0"):
        return int(backend.session().run(memory_stats_ops.MaxBytesInUse()))


def peak_resident() -> int:
    """Return this process' peak resident memory in bytes."""
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
