"""Forecasts of a job on several GPUs, as text and JSON."""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Optional, Sequence, Tuple

from amp_xla.diagnose.report_text import JsonReport, columns
from amp_xla.speed.plan import forecast
from amp_xla.speed.plan.forecast import Mode, Work
from amp_xla.speed.plan.gpus import Gpu

Range = Tuple[float, float]
_FEW = 3  # for at most this many GPUs, every mode is printed


@dataclasses.dataclass(frozen=True)
class Option:
    """The forecast for one GPU in one mode; a range holds 80% of measured times.

    Attributes:
      step_ms: milliseconds of a micro-batch.
      samples_per_s, speed: samples per second of all GPUs, as a range and as one number.
      memory_gib, verdict: needed memory, and whether it ``fits``.
      largest_batch: largest batch per GPU that fits.
      hours, cost: duration and cost of the run; None if its length or the price is unknown.
      parts: share of each part of a step.
    """

    gpu: str
    precision: str
    xla: bool
    step_ms: Range
    samples_per_s: Range
    memory_gib: float
    verdict: str
    largest_batch: int
    hours: Optional[Range]
    cost: Optional[Range]
    parts: Dict[str, float]
    speed: float

    @property
    def mode(self) -> str:
        return str(Mode(self.precision, self.xla))


def option(
    work: Work, ratio: float, gpu: Gpu, mode: Mode, samples: Optional[float], price: Optional[float]
) -> Option:
    """Forecast one GPU in one mode.

    ``work`` is that of the longest micro-batch; a mean micro-batch has ``ratio`` times as much. The
    run's ``samples`` and the ``price`` of an hour of one GPU are None if unknown.
    """
    seconds = forecast.seconds(work.scaled(ratio), gpu, mode, forecast.program("tensorflow"))
    total = sum(seconds)
    low, high = (total * factor for factor in forecast.spread(gpu))
    count = work.samples * mode.gpus
    speeds = (count / high, count / low)
    needed = forecast.memory(work, mode)
    hours = cost = None
    if samples is not None:
        hours = samples / speeds[1] / 3600, samples / speeds[0] / 3600
    if hours is not None and price is not None:
        scale = price * mode.gpus
        cost = hours[0] * scale, hours[1] * scale
    return Option(
        gpu.name, mode.precision, mode.xla, (low * 1e3, high * 1e3), speeds, needed / 2**30,
        forecast.verdict(needed / (gpu.memory * 2**30)), forecast.largest_batch(work, gpu, mode),
        hours, cost, {n: value / total for n, value in seconds._asdict().items()}, count / total,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Report(JsonReport):
    """The forecasts; plan.json has these fields.

    ``xla`` is a text: how the bytes with XLA were counted. ``auto`` is what ``--xla auto`` chooses,
    True = on; None if the job sets the mode. ``auto_why`` is the reason.
    """

    job: str
    batch_per_gpu: int
    gpus: int
    matmul_flops: float
    half_flops_share: float
    xla: str
    options: Sequence[Option]
    auto: Optional[bool] = None
    auto_why: str = ""

    def best(self) -> List[Option]:
        """Return each GPU's best option (by verdict, then speed); ``auto`` may fix the XLA mode."""
        allowed = [item for item in self.options if self.auto in (None, item.xla)]
        verdicts = ["does not fit", "close", "fits"]
        ranked = sorted(allowed, key=lambda item: (verdicts.index(item.verdict), item.speed))
        found = {item.gpu: item for item in ranked}
        return [found[gpu] for gpu in dict.fromkeys(item.gpu for item in allowed)]

    def __str__(self) -> str:
        best = self.best()
        head = "GPU,mode,step ms,samples/s,GiB,memory,largest,hours,cost,longest part".split(",")
        rows = [
            (o.gpu, o.mode, _range(o.step_ms), _range(o.samples_per_s), f"{o.memory_gib:.1f}",
             o.verdict, str(o.largest_batch), _range(o.hours), _range(o.cost), _longest(o))
            for o in (self.options if len(best) <= _FEW else best)
        ]  # fmt: skip
        return (
            f"{self.job}: {self.batch_per_gpu} samples per micro-batch on each of {self.gpus} "
            f"GPU{'s' * (self.gpus > 1)}; {self.matmul_flops / 1e12:.3g} TFLOP of matrix products, "
            f"{self.half_flops_share:.0%} of them in float16 under amp\n"
            f"A forecast from data sheets; 8 of 10 published speeds are within the ranges; "
            f"docs/plan.md\nBytes with XLA: {self.xla}\n\n"
            f"{columns([head, *rows])}\n\n{self.advice()}"
        )

    def advice(self) -> str:
        """Return one line: the GPU and the mode to choose, and why."""
        fitting = [item for item in self.best() if item.verdict == "fits"]
        if not fitting:
            allowed = [item for item in self.options if self.auto in (None, item.xla)]
            largest = max(allowed, key=lambda item: item.largest_batch)
            return (
                f"Advice: none of these GPUs surely holds the batch; the largest that fits is "
                f"{largest.largest_batch} per GPU, on {largest.gpu} with {largest.mode}"
            )
        if all(item.cost for item in fitting):
            chosen, why = min(fitting, key=lambda item: sum(item.cost or ())), "the least cost"
        else:
            chosen, why = max(fitting, key=lambda item: item.speed), "the fastest"
        same = (item for item in self.options if item.gpu == chosen.gpu and not item.xla)
        slower = max((o for o in same if o.precision != "amp"), key=lambda item: item.speed)
        gain = f"; {chosen.speed / slower.speed:.1f} times as fast as {slower.precision} "
        gain = f"{gain}without XLA" * (chosen is not slower)
        end = "; a larger batch pays more than a faster GPU" if chosen.parts["fixed"] > 0.4 else ""
        flags = f"--precision {chosen.precision} --xla {'on' if chosen.xla else 'off'}"
        if self.auto is not None:
            flags += f" (auto: {self.auto_why})"
            why += f" with{'' if self.auto else 'out'} XLA"
        return (
            f"Advice: {chosen.gpu} with {flags}, {why}{gain}; a batch of up to "
            f"{chosen.largest_batch} per GPU fits{end}"
        )


def _range(values: Optional[Range]) -> str:
    if values is None:
        return "-"
    digits = 0 if values[0] >= 100 else 1 if values[0] >= 10 else 2 if values[0] >= 1 else 3
    low, high = (f"{value:.{digits}f}" for value in values)
    return low if low == high else f"{low} to {high}"


def _longest(item: Option) -> str:
    name, share = max(item.parts.items(), key=lambda part: part[1])
    return f"{name.replace('_', ' ')} {share:.0%}"
