"""Option groups that recipes share; their fields are flags without a prefix.

A recipe passes its own defaults to the group: ``UpdateOptions(learning_rate=1e-3)``.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Optional

import tyro
from typing_extensions import Annotated, Literal

from amp_xla.config import MAY_CHANGE, within
from amp_xla.errors import AmpXlaError, SetupOrderError
from amp_xla.settings import AUTO, Precision

Seed = Annotated[int, within(0, 2**32 - 1, help="seed of all random numbers")]
Accumulate = Annotated[
    int,
    within(at_least=1, help="gradient accumulation: micro-batches of --batch-size per update"),
    MAY_CHANGE,
]
Attention = Annotated[
    Literal["plain", "fused"],
    tyro.conf.arg(
        help="fused = by cuDNN, on an A100 or newer: faster, less memory, no attention dropout"
    ),
]


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Name, checkpoints and resuming of a run."""

    name: Annotated[Optional[str], MAY_CHANGE] = None
    """name of the folder in runs/<recipe>; none = date and time, or with --resume the newest run"""
    resume: Annotated[bool, MAY_CHANGE] = False
    """continue from the newest whole checkpoint; start if there is none"""
    force_resume: Annotated[bool, MAY_CHANGE] = False
    """with --resume: continue although data, settings or versions differ"""
    like: Annotated[Optional[str], MAY_CHANGE] = None
    """run folder or config.json: its settings are the defaults, except those of the run itself,
    such as --name; flags have priority"""
    warm_start: Annotated[Optional[str], MAY_CHANGE] = None
    """run folder whose best weights the new run starts from, at step 0 and with a new optimizer;
    with --resume, used only if there is no checkpoint yet"""
    checkpoint_every: Annotated[int, within(at_least=0), MAY_CHANGE] = 0
    """steps between checkpoints; 0 = only every 10 minutes and at evaluations"""
    keep: Annotated[int, within(at_least=1), MAY_CHANGE] = 2
    """number of newest checkpoints to keep, besides the best"""
    on_nonfinite: Annotated[Literal["skip", "report", "stop"], MAY_CHANGE] = "skip"
    """if loss or gradients are not finite: skip the step, report the cause once, or stop"""


@dataclasses.dataclass(frozen=True)
class PrecisionOptions:
    """Mixed precision and XLA."""

    precision: Optional[Literal["fp32", "tf32", "amp"]] = None
    """precision; none = environment variable AMP_XLA_PRECISION, or amp if that is not set"""
    xla: Annotated[Optional[Literal["auto", "off", "on", "no_lazy", "lite"]], MAY_CHANGE] = None
    """XLA mode; none = environment variable AMP_XLA_XLA, or auto if that is not set; auto = on if
    there is a GPU and the run is long enough for compiling to pay"""
    loss_scale: Optional[str] = None
    """loss scale: a number (1 = off) or dynamic; none = environment variable AMP_XLA_LOSS_SCALE, or
    if that is not set, 1000 in float16 and 1 otherwise"""
    reduce: Literal["none", "fp16"] = "none"
    """dtype of gradients in the all-reduce over ranks; none = float32"""

    def resolve(self) -> Precision:
        """Apply these options, before TensorFlow is imported; return the resulting precision."""
        from amp_xla.backend import configuring

        values = {"precision": self.precision, "loss_scale": self.loss_scale}
        try:
            return configuring.resolve(**values, xla=self.xla_mode)
        except SetupOrderError:
            if self.xla_mode != AUTO:
                raise
            return configuring.resolve(**values, xla="off")  # perhaps only XLA's flags are too late

    @property
    def xla_mode(self) -> str:
        """XLA mode: that of the flag, else of the environment variable, else the default."""
        return self.xla or os.environ.get("AMP_XLA_XLA", "").strip() or AUTO


def precision_options(config: Any, purpose: str) -> PrecisionOptions:
    """Return the ``PrecisionOptions`` of a recipe's configuration.

    Raises:
      AmpXlaError: the configuration has none, because the recipe does not use the graph rewrite.
        The message starts with ``purpose``, e.g. "this measures" in "this measures recipes ...".
    """
    options: Optional[PrecisionOptions] = getattr(config, "precision_options", None)
    if options is None:
        name = type(config).__module__.split(".")[-1]
        raise AmpXlaError(
            f"{purpose} recipes that have --precision and --xla, such as classification and "
            f"pretraining; {name} has neither"
        )
    return options


@dataclasses.dataclass(frozen=True)
class ClassifierOptions:
    """Epochs and regularization of a classifier."""

    token_dropout: Annotated[float, within(at_least=0, below=1)] = 0.1
    """share of tokens replaced by [MASK] in training, drawn anew in each epoch (with --bert: 0)"""
    label_smoothing: Annotated[float, within(at_least=0, below=1)] = 0.1
    """share of the target probability that is spread over all labels (with --bert: 0)"""
    epochs: Annotated[int, within(1, 10**6)] = 8
    """passes over the training data (with --bert: enough for 300 updates, but at least 3 and
    at most 20)"""
    patience: Annotated[int, within(at_least=0)] = 0
    """early stopping after this many evaluations without improvement; 0 = never"""


@dataclasses.dataclass(frozen=True)
class UpdateOptions:
    """Learning rate, weight decay and clipping."""

    learning_rate: Annotated[float, within(above=0)] = 5e-4
    """peak learning rate (classifiers with --bert: 2e-5; below hidden size 768: 1e-4 or 3e-4)"""
    warmup: Annotated[float, within(0, 1)] = 0.1
    """share of all updates during which the learning rate rises to its peak"""
    weight_decay: Annotated[float, within(at_least=0)] = 0.01
    """decoupled weight decay; not applied to layer norms and biases"""
    clip_norm: Annotated[float, within(at_least=0)] = 1.0
    """clip the unscaled gradients to this global norm; 0 = no clipping"""


@dataclasses.dataclass(frozen=True)
class MemoryOptions:
    """Options that save memory for activations."""

    recompute: Annotated[bool, MAY_CHANGE] = False
    """gradient checkpointing: recompute layers in the backward pass; less memory, slower steps"""


@dataclasses.dataclass(frozen=True)
class TrickOptions:
    """Tricks for fine-tuning."""

    fgm: Annotated[float, within(at_least=0)] = 0.0
    """adversarial training (FGM): norm of the perturbation of a text's word embeddings, e.g. 1;
    0 = none"""
    r_drop: Annotated[float, within(at_least=0)] = 0.0
    """R-Drop: weight of the divergence between the predictions under two dropout masks, e.g. 4;
    0 = none"""
    ema: Annotated[float, within(at_least=0, below=1)] = 0.0
    """decay of a moving average of the weights, which evaluation and prediction use, e.g. 0.99;
    0 = none"""
    layer_decay: Annotated[float, within(above=0, at_most=1)] = 1.0
    """learning rate of a layer relative to the layer above it, e.g. 0.9; 1 = equal rates"""
    freeze: Annotated[Optional[int], within(at_least=0)] = None
    """freeze the embeddings and this number of layers, counted from the lowest; none = train all"""


@dataclasses.dataclass(frozen=True)
class Intervals:
    """Logging and evaluation intervals."""

    evaluate_every: Annotated[int, within(at_least=0)] = 0
    """steps between evaluations; 0 = once per epoch"""
    log_every: Annotated[int, within(at_least=1), MAY_CHANGE] = 20
    """steps between lines of metrics.jsonl"""

    def loop(self, **rest: Any) -> LoopOptions:
        """Return ``LoopOptions`` with these intervals and the values in ``rest``."""
        return LoopOptions(self.evaluate_every, self.log_every, **rest)


@dataclasses.dataclass(frozen=True)
class LoopOptions(Intervals):
    """Length, intervals and early stopping of training, which ends with an evaluation.

    Attributes:
      monitor: dev metric that decides which checkpoint is best.
      higher_is_better: whether a higher value of ``monitor`` is better.
      patience: evaluations without improvement before early stopping; 0 = never.
      nonfinite_limit: skipped steps in a row before the run rolls back. A dynamic loss scale
        skips 15 steps on its way from 2**15 down to 1.
    """

    epochs: int = 1
    monitor: str = "accuracy"
    higher_is_better: bool = True
    patience: int = 0
    nonfinite_limit: int = 20
