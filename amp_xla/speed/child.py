"""The measured side: builds a recipe's job in a process of its own and steps it on command.

One JSON object a line on standard input, one a line on standard output, each marked so that other
people's prints do no harm:

    {"do": "warm"}                 every shape, until it is compiled
    {"do": "warm", "sample": 8}    the same, for that many batches of an epoch: short to long
    {"do": "steps", "steps": 20}   timed steps, the making of their batches included
    {"do": "flops"}                FLOPs of the batches, and the best a matrix product gets here
    {"do": "train", "epochs": 2}   whole epochs, then the recipe's evaluation
    {"do": "end"}                  memory, compilations; the process ends
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

MARK = "@amp_xla "
# XLA's lazy mode compiles a shape at its third request; one more to be sure of a warm step.
WARM_STEPS = 4


@dataclasses.dataclass(frozen=True)
class Request:
    """What to measure.

    Attributes:
      recipe: module in ``recipes`` with ``Config`` and ``build``.
      words: its command line.
      precision, xla: as in ``Settings``.
      rows, length: size of every batch, in place of the corpus' own; 0 = as the recipe makes them.
      dump: count compilations; costs some disk and little time.
      address_space: most bytes of address space, 0 = no limit.
    """

    recipe: str
    words: Tuple[str, ...] = ()
    precision: str = "amp"
    xla: str = "off"
    rows: int = 0
    length: int = 0
    dump: bool = False
    address_space: int = 0


def reply(**values: Any) -> None:
    """One line to the parent."""
    sys.stdout.write(MARK + json.dumps(values) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Runs the protocol; the request is the only argument."""
    values = json.loads(sys.argv[1])
    request = Request(**{**values, "words": tuple(values["words"])})
    if request.address_space:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (request.address_space, request.address_space))
    with tempfile.TemporaryDirectory(prefix="amp_xla-") as folder:
        dump = None
        if request.dump and request.xla != "off":
            from amp_xla.speed import compilations

            os.environ.update(compilations.flags(Path(folder), os.environ))
            dump = compilations.Dump(Path(folder))
        began = time.monotonic()
        subject = Subject(request, dump)
        reply(built=time.monotonic() - began, **subject.facts())
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] == "warm":
                reply(**subject.warm(command.get("sample", 0)))
            elif command["do"] == "steps":
                reply(**subject.steps(command["steps"]))
            elif command["do"] == "flops":
                reply(**subject.flops(command["trial_seconds"]))
            elif command["do"] == "train":
                reply(**subject.train(command["epochs"]))
            elif command["do"] == "end":
                reply(**subject.end())
                break
    return 0


class Subject:
    """A job with its batches, stepped and timed."""

    def __init__(self, request: Request, dump: Optional[Any] = None) -> None:
        from amp_xla.process.arguments import parse, recipe_module
        from amp_xla.process.fields import changed

        recipe = recipe_module(request.recipe)
        config = parse(recipe.Config, request.words, f"python -m {recipe.__name__}")
        config = changed(config, precision=request.precision, xla=request.xla)
        self.job = recipe.build(config)
        from amp_xla.training.step import initialize_variables

        initialize_variables()
        self._request, self._dump = request, dump
        self._number = 0
        self._feeds = self._endless()
        self._making = 0.0  # seconds a batch, where it was made beforehand
        self._warm_shapes = _by_shape(self._upcoming())

    def facts(self) -> Dict[str, Any]:
        """What the batches are."""
        batches = self.job.batches
        shapes = [[self._request.rows, self._request.length]]
        if not self._request.rows:
            shapes = [list(shape) for shape in batches.shapes]
        return {"shapes": shapes, "padding": batches.padding_share}

    def _upcoming(self) -> Iterator[Tuple[Dict[str, Any], int]]:
        """(feed, samples) of the first epoch."""
        for batch in self.job.batches.epoch(0):
            feed = self.job.step.feed(batch)
            if self._request.rows:
                first = self.job.batches.shapes[0]
                for shape in self.job.batches.shapes:
                    if any(getattr(a, "shape", ())[:2] == tuple(shape) for a in feed.values()):
                        first = shape
                feed = resized(feed, first, (self._request.rows, self._request.length))
                yield feed, self._request.rows
                return
            yield feed, int((batch.sample_ids >= 0).sum())

    def _endless(self) -> Iterator[Tuple[Dict[str, Any], int]]:
        while True:
            yield from self._upcoming()

    def _step(self, feed: Dict[str, Any]) -> Tuple[float, Any]:
        began = time.perf_counter()
        result = self.job.step(feed, self._number)
        self._number += 1
        return time.perf_counter() - began, result

    def warm(self, sample: int = 0) -> Dict[str, Any]:
        """Every shape until it is compiled; seconds beyond what the same steps take warm.

        Args:
          sample: from now on only so many batches are fed, in turn: see ``evenly``.
        """
        if sample:
            began = time.perf_counter()
            epoch = list(self._upcoming())
            self._making = (time.perf_counter() - began) / len(epoch)
            sizes = [_tokens(feed) for feed, _ in epoch]
            chosen = [epoch[i] for i in evenly(sizes, sample)]
            self._feeds = itertools.cycle(chosen)
            self._warm_shapes = _by_shape(iter(chosen))
        cold = 0.0
        for feed in self._warm_shapes:
            times = [self._step(feed)[0] for _ in range(WARM_STEPS)]
            cold += sum(times) - min(times) * len(times)
        found: Dict[str, Any] = {"warm_seconds": cold}
        if self._dump is not None:
            self._dump.poll()
            found["compilations"] = len(self._dump.compilations)
        executed = self.job.step.executed
        if executed is not None:
            found["clusters"], found["half_nodes"] = executed.clusters, executed.half_nodes
        return found

    def steps(self, count: int) -> Dict[str, Any]:
        """Timed steps of the recipe's own batches, in its own order."""
        seconds, samples, tokens, loss, bad = [], 0, 0, math.nan, 0
        infinite = False
        cpu = time.process_time()
        for _ in range(count):
            began = time.perf_counter()
            feed, real = next(self._feeds)
            _, result = self._step(feed)
            seconds.append(time.perf_counter() - began + self._making)
            samples += real
            tokens += _tokens(feed)
            loss = float(result.loss)
            infinite = infinite or not math.isfinite(loss)
            bad += not result.finite
        return {
            "seconds": seconds,
            "cpu_seconds": time.process_time() - cpu + count * self._making,
            "samples": samples,
            "tokens": tokens,
            "loss": loss if math.isfinite(loss) else None,
            # A dynamic loss scale skips a few steps by design; most of them, and it trains not.
            "finite": not infinite and 2 * bad <= count,
            "steps_so_far": self._number,
        }

    def train(self, epochs: int) -> Dict[str, Any]:
        """Whole epochs from the state the model is in; seconds without the evaluation."""
        began, samples = time.perf_counter(), 0
        for epoch in range(epochs):
            for batch in self.job.batches.epoch(epoch):
                feed = self.job.step.feed(batch)
                self._step(feed)
                samples += int((batch.sample_ids >= 0).sum())
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "samples": samples, **self.job.evaluate()}

    def flops(self, seconds: float) -> Dict[str, Any]:
        """FLOPs a sample over the first epoch, and a matrix product's rate in this precision.

        Args:
          seconds: how long to try the matrix product.
        """
        from amp_xla import backend
        from amp_xla.graph import flops
        from amp_xla.graph.shape_watch import signature

        step, counted = self.job.step, {}
        total: Optional[int] = 0
        samples = 0
        for feed, real in self._upcoming():
            shape = signature(feed)
            if shape not in counted:
                placeholders = dict(zip(step.placeholders, feed.values()))
                counted[shape] = flops.count(
                    backend.session().graph, [step.loss, step.train_op], placeholders
                )
            found = counted[shape]
            total = None if total is None or found is None else total + found
            samples += real
        half = self.job.resolved.half
        rate, how = flops.ceiling(half or "float32", seconds=seconds)
        return {
            "flops_per_sample": None if total is None else total / max(samples, 1),
            "ceiling": rate,
            "how": how,
        }

    def end(self) -> Dict[str, Any]:
        """Peak memory and compilations since the warm-up."""
        late: List[str] = []
        if self._dump is not None:
            late = [f"{c.cluster}: {', '.join(c.shapes[:3])}" for c in self._dump.poll()]
        return {"peak_bytes": peak_bytes(), "late_compilations": late}


def evenly(sizes: Sequence[int], count: int) -> List[int]:
    """Indices of ``count`` of the sizes, as far from each other as they go from small to large.

    A few batches stand for an epoch so: a random few of very different lengths would not, and the
    first few of an order by length would be all long.
    """
    order = sorted(range(len(sizes)), key=lambda i: (sizes[i], i))
    return [order[int((k + 0.5) * len(order) / count)] for k in range(count)]


def _tokens(feed: Dict[str, Any]) -> int:
    return max(int(getattr(array, "size", 0)) for array in feed.values())


def _by_shape(feeds: Iterator[Tuple[Dict[str, Any], int]]) -> List[Dict[str, Any]]:
    from amp_xla.graph.shape_watch import signature

    found: Dict[Any, Dict[str, Any]] = {}
    for feed, _ in feeds:
        found.setdefault(signature(feed), feed)
    return list(found.values())


def resized(feed: Dict[str, Any], old: Tuple[int, int], new: Tuple[int, int]) -> Dict[str, Any]:
    """The feed repeated or cut to other rows and another length, for questions about size.

    Args:
      feed: name -> array; axis 0 holds rows, or a multiple of them; axis 1 the length, if as long.
      old: (rows, length) of the feed.
      new: (rows, length) wanted.
    """
    import numpy as np

    out = {}
    for name, array in feed.items():
        shape = list(array.shape)
        if shape:
            shape[0] = shape[0] // old[0] * new[0]
        if len(shape) > 1 and shape[1] == old[1]:
            shape[1] = new[1]
        columns = np.arange(shape[1]) % array.shape[1] if len(shape) > 1 else None
        grown = array[np.arange(shape[0]) % array.shape[0]] if shape else array
        out[name] = grown if columns is None else grown[:, columns]
    return out


def peak_bytes() -> int:
    """The most memory so far: of the GPU where there is one, else resident in this process."""
    from amp_xla import backend

    if backend.gpus():
        raw = backend.tensorflow()
        if backend.kind() == "tf2":
            return int(raw.config.experimental.get_memory_info("GPU:0")["peak"])
        from tensorflow.contrib.memory_stats.python.ops import memory_stats_ops

        with raw.device("/GPU:0"):
            return int(backend.session().run(memory_stats_ops.MaxBytesInUse()))
    return peak_resident()


def peak_resident() -> int:
    """The most bytes of this process that were in memory at once."""
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    sys.exit(main())
