"""Settings that recipes share, as option groups: a recipe's Config holds those that it needs.

On the command line their fields have no prefix. A recipe's own defaults go into the group:
``update: UpdateOptions = UpdateOptions(learning_rate=1e-3)``.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Optional, Tuple

from typing_extensions import Annotated, Literal

from amp_xla.config import MAY_CHANGE, flat, part, within
from amp_xla.errors import AmpXlaError
from amp_xla.settings import Resolved

Seed = Annotated[int, within(0, 2**32 - 1)]

# Settings of recipes that change no step: the data behind a path are compared by content.
FREE = ("log_every", "train", "dev", "bert", "vocab", "data")


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """A run's name, checkpoints and how it goes on; a recipe's Config holds one as ``run``."""

    name: Annotated[Optional[str], MAY_CHANGE] = None
    """name of the run's folder in runs/<recipe>; none = date and time, with --resume the newest"""
    resume: Annotated[bool, MAY_CHANGE] = False
    """continue the run from its newest whole checkpoint, exactly; start it if there is none"""
    force_resume: Annotated[bool, MAY_CHANGE] = False
    """with --resume: go on though data, settings or versions differ from the checkpoint's"""
    warm_start: Annotated[Optional[str], MAY_CHANGE] = None
    """run folder whose best weights to begin with; steps, optimizer and order start anew; with
    --resume: only where there is no checkpoint to go on from"""
    checkpoint_every: Annotated[int, within(at_least=0), MAY_CHANGE] = 0
    """steps between checkpoints, besides those at each evaluation; 0 = by time only"""
    checkpoint_minutes: Annotated[float, within(at_least=0), MAY_CHANGE] = 10.0
    """minutes between checkpoints; 0 = at evaluations only"""
    keep: Annotated[int, within(at_least=1), MAY_CHANGE] = 2
    """how many of the newest checkpoints stay on disk, besides the best"""
    on_nonfinite: Annotated[Literal["skip", "report", "stop"], MAY_CHANGE] = "skip"
    """when loss or gradients are not finite: skip the step; report names the cause once; or stop"""


@dataclasses.dataclass(frozen=True)
class Switches:
    """Mixed precision and XLA."""

    precision: Optional[Literal["fp32", "tf32", "amp"]] = None
    """none = AMP_XLA_PRECISION, else amp"""
    xla: Optional[Literal["off", "on", "no_lazy", "lite"]] = None
    """none = AMP_XLA_XLA, else off"""
    loss_scale: Optional[str] = None
    """1, a number, or dynamic; none = AMP_XLA_LOSS_SCALE, else 1000 in float16 and 1 elsewhere"""
    device: Annotated[Optional[Literal["auto", "cpu", "gpu"]], MAY_CHANGE] = None
    """auto stops at a GPU that TensorFlow does not see, cpu takes none; none = AMP_XLA_DEVICE"""

    def resolve(self) -> Resolved:
        """Throws them, before anything imports TensorFlow; see ``amp_xla.setup.resolve``."""
        from amp_xla import setup

        return setup.resolve(**dataclasses.asdict(self))


def switches_of(config: Any, what: str) -> Switches:
    """The ``Switches`` in a recipe's settings; ``what`` says what is of no use without them.

    Raises:
      AmpXlaError: there are none: the recipe's precision is not decided by the graph rewrite.
    """
    found: Optional[Switches] = part(config, Switches)
    if found is None:
        name = type(config).__module__.split(".")[-1]
        why = "its precision is --policy" if "policy" in flat(config) else "its Config: no Switches"
        raise AmpXlaError(
            f"{what} recipes that have --precision and --xla, such as classification and "
            f"pretraining; {name} has neither ({why})"
        )
    return found


@dataclasses.dataclass(frozen=True)
class ClassifierOptions:
    """Passes over the texts."""

    token_dropout: Annotated[float, within(at_least=0, below=1)] = 0.1
    """share of tokens hidden in training, other ones each epoch; helps where texts are few; with
    --bert 0"""
    label_smoothing: Annotated[float, within(at_least=0, below=1)] = 0.1
    """share of each label's weight that is spread over all labels in training; with --bert 0"""
    epochs: Annotated[int, within(1, 10**6)] = 8
    """passes over the training data; with --bert 3"""
    patience: Annotated[int, within(at_least=0)] = 0
    """evaluations without improvement until the run stops early; 0 = never"""

    def loop(self, pace: Pace) -> LoopOptions:
        """What the loop is told: the best is what is most often right."""
        return pace.loop(monitor="accuracy", epochs=self.epochs, patience=self.patience)


@dataclasses.dataclass(frozen=True)
class RateOptions:
    """From gradients to weights."""

    learning_rate: Annotated[float, within(above=0)] = 5e-4
    """peak of the schedule; a classifier with --bert: 2e-5"""
    warmup: Annotated[float, within(0, 1)] = 0.1
    """share of all steps until the peak"""
    weight_decay: Annotated[float, within(at_least=0)] = 0.01
    """decoupled, not on norms and biases"""
    clip_norm: Annotated[float, within(at_least=0)] = 1.0
    """global gradient norm to clip to, after unscaling; 0 = no clipping"""


@dataclasses.dataclass(frozen=True)
class UpdateOptions(RateOptions):
    """From gradients to weights."""

    accumulate: Annotated[Optional[int], within(at_least=1)] = None
    """micro-batches per update, each of --batch-size (default: 1)"""
    recompute: Annotated[bool, MAY_CHANGE] = False
    """compute transformer layers again in the backward pass: far less memory, a longer step"""
    reduce: Optional[Literal["none", "fp16", "bf16"]] = None
    """precision of scaled gradients on their way between ranks; none = float32"""

    def scheduled(self, steps: int, loss_scale: Any, **how: Any) -> Tuple[Any, Any]:
        """Return the optimizer and its learning rate.

        Args:
          steps: updates of the whole run.
          loss_scale, how: see ``amp_xla.optimizers.scheduled.scheduled``.
        """
        from amp_xla.optimizers.scheduled import scheduled
        from amp_xla.precision.reduction import Reduction
        from amp_xla.process.progress import note
        from amp_xla.training import distributed

        ranks = distributed.current()
        several = ranks.several
        reduction = Reduction(ranks.hvd, self.reduce or "none", note) if several else None
        return scheduled(
            self.learning_rate, max(1, steps), self.warmup, loss_scale,
            weight_decay=self.weight_decay, clip_norm=self.clip_norm,
            recompute=self.recompute, reduction=reduction, **how,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Pace:
    """How often the loop looks up."""

    evaluate_every: Annotated[int, within(at_least=0)] = 0
    """steps between evaluations; 0 = each epoch"""
    log_every: Annotated[int, within(at_least=1), MAY_CHANGE] = 20
    """steps between two lines of metrics.jsonl"""

    def loop(self, **rest: Any) -> LoopOptions:
        """What the loop is told, with the ``rest`` of it."""
        return LoopOptions(log_every=self.log_every, evaluate_every=self.evaluate_every, **rest)


@dataclasses.dataclass(frozen=True)
class LoopOptions:
    """How often the loop does what.

    Attributes:
      epochs: passes over the training data.
      log_every: steps between two lines of metrics.jsonl.
      evaluate_every: steps between evaluations; 0 = at the end of each epoch. The last step of a
        run is always evaluated.
      monitor: name of the evaluated value that decides what is best.
      higher_is_better: direction of ``monitor``.
      patience: evaluations without improvement until the run stops; 0 = never.
      nonfinite_limit: skipped steps in a row that mean trouble. A dynamic loss scale that starts
        at 2**15 reaches 1 after 15, and the search for the right scale must not count as trouble.
    """

    epochs: int = 1
    log_every: int = 20
    evaluate_every: int = 0
    monitor: str = "accuracy"
    higher_is_better: bool = True
    patience: int = 0
    nonfinite_limit: int = 20
