"""Runs TensorFlow's auto-mixed-precision pass against the description of a GPU.

The pass reads grappler's description of the machine to find tensor cores, so it needs no GPU. It
runs in a separate process (``python -m amp_xla.graph.virtual_gpu``), because it reads switches
from the environment, logs through C++, and aborts on a malformed switch.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Sequence

from amp_xla.backend import tf
from amp_xla.errors import AmpXlaError
from amp_xla.graph import executed, optimized
from amp_xla.graph import lists as op_lists
from amp_xla.settings import flags

# The pass and those before it in a session, so that it reads the same graph here.
PASSES = ("pruning", "function", "constfold", "shape", "auto_mixed_precision")
# The pass converts the same nodes for each compute capability from 7.0 on.
CAPABILITY = "8.0"
_PROPERTIES = {"architecture": CAPABILITY, "cuda": "12030", "cudnn": "8900"}
_GRAPH, _RESULT = "graph.pb", "result.pb"


class PassFailedError(AmpXlaError, RuntimeError):
    """TensorFlow's pass failed, was skipped, or converted nothing."""


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """A training graph before and after the pass.

    Attributes:
      graph_def: the rewritten GraphDef, devices cleared.
      before: the GraphDef as the pass received it (pruned, constants folded), devices cleared.
      counts: counts over ``graph_def``.
      lists: op -> color on the lists that the pass used.
    """

    graph_def: Any
    before: Any
    counts: executed.ExecutedGraph
    lists: op_lists.Colors


def rewrite(graph: Any, fetches: Sequence[str]) -> Rewritten:
    """Return the training graph as mixed precision would run it.

    Args:
      graph: GraphDef of the whole training step.
      fetches: names of the operations that a step runs; they keep their dtype.

    Raises:
      PassFailedError: with the reason that the pass logged.
    """
    with tempfile.TemporaryDirectory(prefix="amp_xla-") as name:
        folder = Path(name)
        (folder / _GRAPH).write_bytes(optimized.item(graph, fetches).SerializeToString())
        return _read(folder, _run_worker(folder))


def _run_worker(folder: Path) -> str:
    """Run the pass on the graph in a folder, in a separate process; return its log."""
    environment = dict(os.environ)
    for name in (flags.GRAPH_REWRITE, flags.FULL_AMP, flags.FORK_LOSS_SCALING, flags.XLA_FLAGS):
        environment.pop(name, None)
    environment.update(op_lists.environment())
    environment.update(
        PYTHONPATH=os.pathsep.join(path for path in sys.path if path),
        CUDA_VISIBLE_DEVICES="-1",
        TF_CPP_MIN_LOG_LEVEL="0",
        # TensorFlow 2 logs its reason for skipping at this level only.
        TF_CPP_VMODULE="auto_mixed_precision=1",
    )
    command = [sys.executable, "-m", "amp_xla.graph.virtual_gpu", str(folder)]
    process = subprocess.run(command, env=environment, capture_output=True, check=False)
    log = process.stderr.decode("utf-8", "replace")
    if process.returncode:
        last = "".join(log.strip().splitlines()[-1:]).split("] ", 1)[-1]
        raise PassFailedError(
            f"the process that runs the auto-mixed-precision pass ended with code "
            f"{process.returncode}: {last}"
        )
    return log


def _read(folder: Path, log: str) -> Rewritten:
    """Read the worker's result; raise an error if nothing was converted."""
    graph_def = tf.GraphDef.FromString((folder / _RESULT).read_bytes())
    original = tf.GraphDef.FromString(_newest(folder, "graphdef_preop_*.pb"))
    for node in [*graph_def.node, *original.node]:
        node.device = ""
    counts = executed.count([graph_def])
    used = op_lists.parse_buckets(_newest(folder, "paintbuckets_*.txt").decode())
    if not used or counts.half_nodes - counts.casts <= 0:
        raise PassFailedError(f"the auto-mixed-precision pass did not run: {_reason(log, counts)}")
    return Rewritten(graph_def, original, counts, used)


def _newest(folder: Path, pattern: str) -> bytes:
    paths = sorted(folder.glob(pattern))
    return paths[-1].read_bytes() if paths else b""


def _reason(log: str, counts: executed.ExecutedGraph) -> str:
    conflicts = sorted(set(re.findall(r"Op present in multiple lists: (\w+)", log)))
    if conflicts:
        variables = sorted(n for n in os.environ if n.startswith(op_lists.PREFIX))
        return (
            f"Op lists have conflicting entries: {', '.join(conflicts)} would be on two lists; "
            f"look at {', '.join(variables) or 'the lists'}"
        )
    for line in log.splitlines():
        if "auto_mixed_precision" in line and ("FAILED" in line or "skipping" in line):
            return line.split("] ", 1)[-1]
    converted = re.search(r"Converted \d+/\d+ nodes.*|No \w+ ops found.*", log)
    return converted.group(0) if converted else f"{counts.describe()}; it logged: {log[-500:]!r}"


def run_pass(folder: Path) -> None:
    """Run grappler on the graph in a folder, where the pass also writes its log files."""
    os.environ[op_lists.PREFIX + "LOG_PATH"] = str(folder)
    prefix = "/job:localhost/replica:0/task:0/device:"
    devices = [
        optimized.named_device(prefix + "CPU:0", "CPU", frequency=2000),
        optimized.named_device(prefix + "GPU:0", "GPU", frequency=1400, environment=_PROPERTIES),
    ]
    config = tf.ConfigProto()
    options = config.graph_options.rewrite_options
    options.optimizers.extend(PASSES)
    options.min_graph_nodes = -1
    options.meta_optimizer_iterations = options.ONE
    item = tf.MetaGraphDef.FromString((folder / _GRAPH).read_bytes())
    fetches = item.collection_def["train_op"].node_list.value
    result = optimized.optimize(item.graph_def, config, fetches, devices)
    (folder / _RESULT).write_bytes(result.SerializeToString())


if __name__ == "__main__":
    run_pass(Path(sys.argv[1]))
