"""Runs TensorFlow's auto-mixed-precision pass for a described GPU.

The pass reads grappler's description of the machine to find tensor cores, so it needs no GPU. It
runs in a separate process (``python -m amp_xla.graph.virtual_gpu``), because it reads switches
from the environment, logs through C++, and aborts on a malformed switch.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Mapping, NamedTuple, Sequence

from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.errors import AmpXlaError
from amp_xla.graph import nodes, optimized
from amp_xla.process.checkout import running
from amp_xla.process.stopping import temporary_folder
from amp_xla.settings import flags

# The pass and those before it in a session, so that it reads the same graph here.
PASSES = ("pruning", "function", "constfold", "shape", "auto_mixed_precision")
# The pass converts the same nodes for each compute capability from 7.0 on.
CAPABILITY = "8.0"
_PROPERTIES = {"architecture": CAPABILITY, "cuda": "12030", "cudnn": "8900"}
_GRAPH, _RESULT = "graph.pb", "result.pb"

PREFIX = flags.REWRITE_PREFIX
Colors = Mapping[str, str]  # op -> color

# TensorFlow 2.4 renamed the lists; 1.15 ignores the new names.
_LISTS = flags.LISTS_TF1 if backend.kind() == "tf1" else flags.LISTS_TF2
_NAMES = dict(zip(("white", "gray", "black", "clear"), _LISTS))
_FORK_GRAY = ("Softmax", "Log", "Log1p", "LogSoftmax")
_FORK_WHITE = ("Einsum",)


class PassFailedError(AmpXlaError, RuntimeError):
    """TensorFlow's pass failed, was skipped, or converted nothing."""


class Rewritten(NamedTuple):
    """A GraphDef after the pass, without devices, and the op lists that the pass used."""

    graph_def: Any
    lists: Colors


def rewrite(training: Any, fetches: Sequence[str], repeatable: bool = True) -> Rewritten:
    """Return the training graph as mixed precision would run it.

    Args:
      training: the ``TrainingGraph``.
      fetches: names of the operations that a step runs; they keep their dtype.
      repeatable: see ``TrainingGraph.export``.

    Raises:
      PassFailedError: with the reason that the pass logged.
    """
    with temporary_folder("amp_xla-") as folder:
        graph = optimized.item(training.export(fetches, repeatable), fetches)
        (folder / _GRAPH).write_bytes(graph.SerializeToString())
        log = _run_worker(folder)
        graph_def = tf.GraphDef.FromString((folder / _RESULT).read_bytes())
        logs = sorted(folder.glob("paintbuckets_*.txt"))
        used = _parse_buckets(logs[-1].read_text()) if logs else {}
    for node in graph_def.node:
        node.device = ""
    if not used or not nodes.half_nodes(graph_def):
        raise PassFailedError(f"the auto-mixed-precision pass did not run: {_reason(log)}")
    return Rewritten(graph_def, used)


def _run_worker(folder: Path) -> str:
    """Run the pass on the graph in a folder, in a separate process; return its log."""
    environment = dict(os.environ)
    for name in (flags.GRAPH_REWRITE, flags.FULL_AMP, flags.FORK_LOSS_SCALING, flags.XLA_FLAGS):
        environment.pop(name, None)
    environment.update(_lists_of_nvidia())
    environment.update(
        PYTHONPATH=os.pathsep.join(path for path in sys.path if path),
        CUDA_VISIBLE_DEVICES="-1",
        TF_CPP_MIN_LOG_LEVEL="0",
        # TensorFlow 2 logs its reason for skipping at this level only.
        TF_CPP_VMODULE="auto_mixed_precision=1",
    )
    command = [*running("amp_xla.graph.virtual_gpu"), str(folder)]
    process = subprocess.run(command, env=environment, capture_output=True, check=False)
    log = process.stderr.decode("utf-8", "replace")
    if process.returncode:
        last = "".join(log.strip().splitlines()[-1:]).split("] ", 1)[-1]
        raise PassFailedError(
            f"the process that runs the auto-mixed-precision pass ended with code "
            f"{process.returncode}: {last}"
        )
    return log


def _lists_of_nvidia() -> Dict[str, str]:
    """Return environment variables that make stock TensorFlow 1.15's pass use NVIDIA's lists.

    In NVIDIA's lists Softmax, LogSoftmax, Log and Log1p are gray instead of black, and Einsum is
    white. If a user's variable makes the opposite change to the same list, it wins. Source:
    ``auto_mixed_precision_lists.h`` of NVIDIA/tensorflow, branch r1.15.5+nv23.03.
    """
    if backend.kind() != "tf1" or backend.is_fork():
        return {}
    changes = {}
    for stem, action, opposite, ops in (
        ("BLACKLIST", "REMOVE", "ADD", _FORK_GRAY),
        ("GRAYLIST", "ADD", "REMOVE", _FORK_GRAY),
        ("WHITELIST", "ADD", "REMOVE", _FORK_WHITE),
    ):
        name = f"{PREFIX}{stem}_{action}"
        against = os.environ.get(f"{PREFIX}{stem}_{opposite}", "").split(",")
        added = [op for op in ops if op not in against]
        changes[name] = ",".join(word for word in (os.environ.get(name), *added) if word)
    return changes


def _parse_buckets(text: str) -> Colors:
    """Return op -> color from the ``paintbuckets`` file that the pass writes to its LOG_PATH.

    Colors: ``white``: always half; ``gray``: half between half ops; ``clear``: half next to a
    half op; ``black``: never half, and neither are the ops after it, up to the next white op.
    """
    titles = {f"{name}:": color for color, name in _NAMES.items()}  # e.g. ``WhiteList:``
    colors: Dict[str, str] = {}
    color = ""
    for word in text.split():
        if word.upper() in titles:
            color = titles[word.upper()]
        else:
            colors[word] = color
    return colors


def _reason(log: str) -> str:
    conflicts = sorted(set(re.findall(r"Op present in multiple lists: (\w+)", log)))
    if conflicts:
        variables = sorted(n for n in os.environ if n.startswith(PREFIX))
        return (
            f"Op lists have conflicting entries: {', '.join(conflicts)} would be on two lists; "
            f"look at {', '.join(variables) or 'the lists'}"
        )
    for line in log.splitlines():
        if "auto_mixed_precision" in line and ("FAILED" in line or "skipping" in line):
            return line.split("] ", 1)[-1]
    converted = re.search(r"Converted \d+/\d+ nodes.*|No \w+ ops found.*", log)
    return converted.group(0) if converted else f"it logged {log[-500:]!r}"


def keep_in_float32(op: str, lists: Colors) -> str:
    """Return environment variables, as a shell sets them, that keep all ``op`` nodes in float32."""
    color = lists.get(op, "black")
    moved = "" if color == "black" else f"{PREFIX}{_NAMES[color]}_REMOVE={op} "
    return f"{moved}{PREFIX}{_NAMES['black']}_ADD={op}"


def run_pass(folder: Path) -> None:
    """Run grappler on the graph in a folder; the pass writes its log files into the same folder."""
    os.environ[PREFIX + "LOG_PATH"] = str(folder)
    item = tf.MetaGraphDef.FromString((folder / _GRAPH).read_bytes())
    fetches = item.collection_def["train_op"].node_list.value
    result = optimized.passed(item.graph_def, PASSES, fetches, _PROPERTIES)
    (folder / _RESULT).write_bytes(result.SerializeToString())


if __name__ == "__main__":
    run_pass(Path(sys.argv[1]))
