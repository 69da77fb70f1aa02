"""The rule of ``--xla auto``: XLA is on if a run saves more time than compiling takes."""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

LENGTHS = 2  # most lengths of batches if auto turns XLA on
# Seconds of compiling per shape, and per shape and layer. TensorFlow 2 on an H100: 16, 79 and 145
# for 2, 12 and 24 layers (docs/results/h100.md). TensorFlow 1.15 was not measured on a GPU.
_FIXED, _PER_LAYER = 4.0, 6.0
# Seconds saved per layer, token and hidden unit. On an H100: 176 ms for BERT-base, 64 x 384 tokens;
# 225 ms for BERT-large, 32 x 384. Slower GPUs save more.
_SAVED = 0.176 / (12 * 64 * 384 * 768)
TENSOR_CORES = (7, 0)  # compute capability


class Work(NamedTuple):
    """A run's size: updates, tokens per update and GPU, encoder sizes, number of batch shapes."""

    steps: int
    tokens: float
    layers: int
    hidden: int
    shapes: int


class Choice(NamedTuple):
    """Whether XLA is on, why, and how many lengths batches may have at most; None = any number."""

    on: bool
    why: str
    lengths: Optional[int] = None

    def __str__(self) -> str:
        few = f", with at most {self.lengths} lengths" if self.lengths and self.on else ""
        mode, other = ("on", "off") if self.on else ("off", "on")
        return f"XLA {mode} (auto: {self.why}{few}; --xla {other} overrules)"


def choose(work: Optional[Work], capability: Optional[Tuple[int, int]], runtime: str) -> Choice:
    """Return what ``auto`` chooses.

    Args:
      work: work of the run; None if the size of its encoder is unknown.
      capability: compute capability of the GPU; None = no GPU.
      runtime: ``tf1`` or ``tf2``.
    """
    if capability is None:
        return Choice(False, "no GPU")
    if capability < TENSOR_CORES:
        return Choice(False, "not measured on a GPU without tensor cores")
    if work is None:
        return Choice(False, "not measured for this kind of model")
    saved = _SAVED * work.layers * work.tokens * work.hidden
    enough = int(work.shapes * (_FIXED + _PER_LAYER * work.layers) / saved) + 1
    measured = "" if runtime == "tf2" else ", not measured on TensorFlow 1.15"
    why = f"{work.steps:,} steps, and XLA pays off after about {enough:,}{measured}"
    return Choice(True, why, LENGTHS) if work.steps >= enough else Choice(False, why)
