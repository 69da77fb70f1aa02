"""Runs TensorFlow's auto-mixed-precision pass against a GPU that does not exist.

The pass asks grappler's description of the machine whether there is a GPU with tensor cores, so a
description is all it needs. It runs in a process of its own: the pass reads switches from the
environment, logs through C++, and aborts on a malformed switch, none of which should happen to
the caller.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.errors import AmpXlaError, UnsupportedError
from amp_xla.graph import executed, optimized
from amp_xla.graph import lists as op_lists
from amp_xla.process import children
from amp_xla.settings import flags

# What a session's grappler does before the pass, so that it meets the graph it would meet there.
PASSES = ("pruning", "function", "constfold", "shape", "auto_mixed_precision")
_CUDA = {"tf1": ("11000", "8000"), "tf2": ("12030", "8900")}
_TIMEOUT = 600  # seconds; BERT-large takes about 30


class PassFailedError(AmpXlaError, RuntimeError):
    """TensorFlow's pass failed, was skipped, or converted nothing."""


@dataclasses.dataclass(frozen=True)
class Request:
    """One graph to rewrite.

    Attributes:
      graph_def: serialized GraphDef.
      fetches: names of operations that must survive; they keep their dtype.
      capability: compute capability of the GPU that is pretended, e.g. ``8.0``.
      environment: variables for the pass, from ``lists.environment``.
    """

    graph_def: bytes
    fetches: Sequence[str]
    capability: str
    environment: Dict[str, str]


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """What came back.

    Attributes:
      graph_def: the rewritten GraphDef, devices cleared.
      before: the GraphDef as the pass met it (pruned, constants folded), devices cleared.
      counts: over ``graph_def``.
      lists: the op lists the pass used.
      log: what it logged.
      capability, lists_name: what was asked for, defaults filled in.
    """

    graph_def: Any
    before: Any
    counts: executed.ExecutedGraph
    lists: op_lists.OpLists
    log: str
    capability: str
    lists_name: str


def rewrite(
    graph: Any, fetches: Sequence[str], capability: str = "8.0", lists: Optional[str] = None
) -> Rewritten:
    """The training graph as mixed precision would run it.

    Args:
      graph: tf.Graph or GraphDef of the whole training step.
      fetches: names of its operations that a step runs.
      capability: compute capability of the pretended GPU.
      lists: ``fork``, ``stock`` or None for what this runtime trains with.

    Raises:
      PassFailedError: with the reason the pass logged.
      UnsupportedError: ``capability`` or ``lists`` cannot be.
    """
    return rewrite_all([(graph, fetches)], capability, lists)[0]


def rewrite_all(
    graphs: Sequence[Any], capability: str = "8.0", lists: Optional[str] = None
) -> List[Rewritten]:
    """``rewrite`` for pairs (graph, fetches), in one process."""
    if not re.fullmatch(r"\d+\.\d", capability):
        raise UnsupportedError(
            f"GPU {capability!r} is not a compute capability; allowed: numbers like 7.0 (V100), "
            f"8.0 (A100), 8.6 (RTX 30), 9.0 (H100)"
        )
    lists = lists or op_lists.default_lists(backend.kind())
    environment = op_lists.environment(lists, backend.kind(), backend.is_fork(), os.environ)
    requests = []
    for graph, fetches in graphs:
        graph_def = graph.as_graph_def() if hasattr(graph, "as_graph_def") else graph
        data = graph_def.SerializeToString()
        requests.append(Request(data, list(fetches), capability, environment))
    return [_judged(answer, capability, lists) for answer in _ask(requests)]


def _judged(answer: Dict[str, Any], capability: str, lists: str) -> Rewritten:
    graph_def, before = tf.GraphDef.FromString(answer["after"]), tf.GraphDef()
    buckets = op_lists.parse_buckets(answer["buckets"])
    if answer["before"]:
        before = tf.GraphDef.FromString(answer["before"])
    for node in list(graph_def.node) + list(before.node):
        node.device = ""
    counts = executed.count([graph_def])
    if buckets is None or counts.half_nodes - counts.casts <= 0:
        raise PassFailedError(
            f"the auto-mixed-precision pass did not run for GPU {capability}: "
            f"{_reason(answer['log'], capability, counts)}"
        )
    return Rewritten(graph_def, before, counts, buckets, answer["log"], capability, lists)


def _reason(log: str, capability: str, counts: executed.ExecutedGraph) -> str:
    conflicts = sorted(set(re.findall(r"Op present in multiple lists: (\w+)", log)))
    if conflicts:
        variables = sorted(n for n in os.environ if n.startswith(op_lists.PREFIX))
        return (
            f"Op lists have conflicting entries: {', '.join(conflicts)} would be on two lists; "
            f"look at {', '.join(variables) or 'the lists'}"
        )
    for line in log.splitlines():
        if "auto_mixed_precision" in line and ("FAILED" in line or "skipping" in line):
            text = line.split("] ", 1)[-1]
            major, minor = backend.MIN_CAPABILITY
            if "skipping" in line:
                text += f" (it needs compute capability {major}.{minor} or newer)"
            return text
    converted = re.search(r"Converted \d+/\d+ nodes.*|No \w+ ops found.*", log)
    return converted.group(0) if converted else f"{counts.describe()}; it logged: {log[-500:]!r}"


def _ask(requests: Sequence[Request]) -> List[Dict[str, Any]]:
    """Hands the requests to ``amp_xla.graph.worker`` in a fresh process."""
    with tempfile.TemporaryDirectory(prefix="amp_xla-") as folder:
        question, reply = Path(folder) / "requests", Path(folder) / "replies"
        question.write_bytes(pickle.dumps([dataclasses.asdict(r) for r in requests]))
        command = children.command("amp_xla.graph.worker", folder)
        try:
            done = subprocess.run(
                command,
                env=_environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PassFailedError(
                f"the auto-mixed-precision pass took more than {_TIMEOUT} s"
            ) from None
        if not reply.exists():
            log = Path(folder) / "log"
            said = log.read_bytes() if log.exists() else done.stderr
            tail = said.decode("utf-8", "replace").strip().splitlines()[-1:]
            raise PassFailedError(
                f"the process that runs the auto-mixed-precision pass ended with code "
                f"{done.returncode}: {''.join(tail).split('] ', 1)[-1]}"
            )
        return list(pickle.loads(reply.read_bytes()))


def _environment() -> Dict[str, str]:
    """The worker's environment: the user's lists stay, session switches and GPUs go."""
    environment = children.environment(os.environ)
    for name in (flags.GRAPH_REWRITE, flags.FULL_AMP, flags.FORK_LOSS_SCALING, flags.XLA_FLAGS):
        environment.pop(name, None)
    environment.update(
        CUDA_VISIBLE_DEVICES="-1",
        TF_CPP_MIN_LOG_LEVEL="0",
        # TensorFlow 2 gives its reason for skipping at this level only.
        TF_CPP_VMODULE="auto_mixed_precision=1",
    )
    return environment


def run_pass(request: Request, folder: Path) -> Dict[str, Any]:
    """The pass itself, in the worker: grappler on the graph, and the files it leaves.

    Args:
      request: what to do.
      folder: empty, for the pass' own files.
    """
    os.environ.update(request.environment)
    os.environ[op_lists.PREFIX + "LOG_PATH"] = str(folder)
    kind = backend.kind()
    cuda, cudnn = _CUDA[kind]
    properties = {"architecture": request.capability, "cuda": cuda, "cudnn": cudnn}
    prefix = "/job:localhost/replica:0/task:0/device:"
    devices = [
        optimized.named_device(prefix + "CPU:0", "CPU", frequency=2000),
        optimized.named_device(prefix + "GPU:0", "GPU", frequency=1400, environment=properties),
    ]
    config = tf.ConfigProto()
    options = config.graph_options.rewrite_options
    options.optimizers.extend(PASSES)
    options.min_graph_nodes = -1
    options.meta_optimizer_iterations = options.ONE
    graph_def = tf.GraphDef.FromString(request.graph_def)
    after = optimized.optimize(graph_def, config, request.fetches, devices)
    return {
        "after": after.SerializeToString(),
        "before": _only(folder, "graphdef_preop_*.pb", b""),
        "buckets": _only(folder, "paintbuckets_*.txt", b"").decode(),
    }


def _only(folder: Path, pattern: str, default: bytes) -> bytes:
    found = sorted(folder.glob(pattern))
    return found[-1].read_bytes() if found else default
