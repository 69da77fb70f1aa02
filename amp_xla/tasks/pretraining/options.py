"""Options of pretraining, and the lines about them in the log. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import functools
import sys
from typing import Any, List, Optional, Sequence

from typing_extensions import Annotated, Literal

from amp_xla.config import within
from amp_xla.tasks.pretraining.data import prepare
from amp_xla.tasks.pretraining.data.prepared import FORMAT, Manifest
from amp_xla.tasks.pretraining.data.stream import LengthOptions, Stream
from amp_xla.training import distributed
from amp_xla.training.context import RunContext

# Tokens per sequence of the built-in corpus. In short sequences a small model with random weights
# learns much sooner which words are neighbours.
LENGTH = 32


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """The text."""

    data: Optional[str] = None
    """folder written by `amp-xla prepare`; none = the built-in corpus, prepared once in .cache"""
    heldout: Annotated[int, within(at_least=1)] = 512
    """maximum number of held-out sequences to evaluate on"""

    def prepared(self) -> Manifest:
        """Return the prepared text; without a folder, prepare the built-in corpus once."""
        if self.data is not None:
            return Manifest.load(self.data)
        python = sys.version.split()[0]
        out = f".cache/pretraining/docstrings-{FORMAT}-{LENGTH}-python{python}"
        text, ranks = prepare.Config(out=out, length=LENGTH), distributed.current()
        # A result must fit into JSON.
        ranks.all_do(lambda: ranks.first and bool(prepare.prepare(text)))
        return Manifest.load(out)


@dataclasses.dataclass(frozen=True)
class ObjectiveOptions:
    """The objective and the masks."""

    objective: Literal["mlm", "lm", "unilm"] = "mlm"
    """what to predict: mlm = masked words (RoBERTa), lm = the next token (GPT), unilm = the second
    of two segments (UniLM)"""
    mask: Literal["word", "token"] = "word"
    """mask whole words or single tokens; each epoch has new masks"""
    mask_rate: Annotated[float, within(above=0, at_most=0.5)] = 0.15
    """share of the tokens to predict: 80% of them become [MASK], 10% a random token, 10% stay"""


@dataclasses.dataclass(frozen=True)
class OptimizerOptions:
    """The optimizer."""

    optimizer: Literal["adamw", "lamb"] = "adamw"
    """optimizer; lamb is for global batches of thousands of samples"""
    beta2: Annotated[float, within(above=0, below=1)] = 0.999
    """decay of Adam's second moments"""
    adam_epsilon: Annotated[float, within(above=0)] = 1e-6
    """epsilon of Adam, added to the denominator"""
    decay: Literal["linear", "cosine", "constant"] = "linear"
    """shape of the learning rate's decay after the warm-up"""
    average: Annotated[float, within(at_least=0, below=1)] = 0.0
    """decay of the moving average of weights for evaluation and export, e.g. 0.999; 0 = off"""

    def build(self, context: RunContext, steps: int) -> Any:
        """Build the optimizer of a run of ``steps`` updates."""
        from amp_xla.training.optimizers.adamw import AdamW
        from amp_xla.training.optimizers.average import averaged
        from amp_xla.training.optimizers.lamb import LAMB

        kind: Any = averaged(AdamW if self.optimizer == "adamw" else LAMB, self.average)
        rule = functools.partial(kind, beta2=self.beta2, epsilon=self.adam_epsilon)
        return context.optimizer(steps, rule, decay=self.decay)


def described(
    length: LengthOptions, phases: Sequence[Stream], costs: List[float], ranks: int
) -> str:
    """Return one line: the global batch and its cost, and the updates of each phase.

    ``costs`` are the FLOPs per sequence of each phase.
    """
    batch, accumulate = length.global_batch, length.accumulation(ranks)
    return (
        f"global batch {batch} = micro-batch {batch / accumulate / ranks:g} x accumulation "
        f"{accumulate} x ranks {ranks}; {costs[0] * batch / 1e9:.1f} GFLOP per update; "
        f"{', then '.join(phase.describe() for phase in phases)}"
    )
