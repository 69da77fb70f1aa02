"""Defaults of a classifier that starts from pretrained weights (``--bert``).

The number of epochs depends on the number of texts: after 15 updates a good BERT has learned
nothing, so small data sets get up to 20 epochs (Mosbach et al., "On the Stability of Fine-tuning
BERT", arXiv 2006.04884). Weights of a short pretraining run, such as minutes on a laptop, have
learned little. They get the defaults of training from scratch (docs/results/pretraining.md).
"""

from __future__ import annotations

import os
from typing import Any, Dict, Mapping, Optional, Tuple

from amp_xla.data.text.vocabulary import json_file
from amp_xla.models.weights.pretrained import CONFIGS

UPDATES = 300  # minimum number of updates, unless it takes more epochs than the maximum
EPOCHS = (3, 20)  # minimum and maximum
BATCH_SIZES = (16, 32)  # BERT's paper, appendix A.3; the smaller one makes more updates
SHORT_RUN = 10_000_000  # sequences of pretraining; BERT saw 256 million
FEW = 1000  # texts, below which smaller BERTs learn best with their highest rate
# (minimum hidden size, learning rate, that with few texts, highest usual learning rate). BERT's
# paper: 2e-5 to 5e-5. Google's smaller BERTs (google-research/bert, March 2020): 3e-5 to 3e-4, of
# which the highest was best for a hidden size of 384 with few texts, and up to 3 points worse than
# 5e-5 and 1e-4 with 2,000 (docs/results/classification.md).
RATES = ((768, 2e-5, 2e-5, 5e-5), (0, 1e-4, 3e-4, 3e-4))


def defaults(bert: Optional[str], texts: int) -> Dict[str, Any]:
    """Return the defaults of fine-tuning, by option; ``texts``: number of texts, 0 = unknown.

    Return an empty dictionary if ``bert`` is None or has the weights of a short pretraining run.
    """
    if bert is None or _is_short_run(bert):
        return {}
    small, large = BATCH_SIZES
    batch_size = small if texts and texts * EPOCHS[0] < UPDATES * large else large
    steps = -(-texts // batch_size)
    epochs = min(max(EPOCHS[0], -(-UPDATES // max(steps, 1))), EPOCHS[1]) if texts else EPOCHS[0]
    _, rate, rate_of_few, _ = _rates(bert)
    return dict(
        learning_rate=rate_of_few if 0 < texts < FEW else rate, epochs=epochs,
        batch_size=batch_size, token_dropout=0.0, label_smoothing=0.0,
    )  # fmt: skip


def describe(config: Mapping[str, Any], replaced: Mapping[str, Any], steps: int) -> str:
    """Return a line for the start of a run: which defaults are used, and warnings.

    ``replaced`` is the result of ``defaults``, ``steps`` the number of updates in the whole run.
    """
    bert, rate = config["bert"], config["learning_rate"]
    highest, values = float("inf"), f"learning_rate {rate:g}, epochs {config['epochs']}"
    if bert is None:
        line = f"training from random weights: {values}"
    elif _is_short_run(bert):
        line = f"fine-tuning a short pretraining run (defaults of training from scratch): {values}"
    else:
        width = _width(bert) or "unknown"
        highest = _rates(bert)[-1]
        names = [name for name in ("learning_rate", "epochs", "batch_size") if name in replaced]
        values = ", ".join(f"{name} {replaced[name]}" for name in names)
        line = f"fine-tuning defaults for hidden size {width}: {values}"
    changed = [name for name in sorted(replaced) if config[name] != replaced[name]]
    if changed:
        line += ", but " + ", ".join(f"{name} {config[name]}" for name in changed)
    if rate > highest:
        line += (
            f"; warning: --learning-rate {rate:g} makes pretrained weights forget or diverge: "
            f"at most {highest:g} is usual"
        )
    epochs = config["epochs"]
    enough = min(EPOCHS[1], -(-UPDATES * epochs // steps))
    if 1 < epochs < enough:  # one epoch is a trial
        line += f"; only {steps} updates; try --epochs {enough}"
    return line


def _rates(bert: str) -> Tuple[float, float, float, float]:
    """Return a folder's row of ``RATES``; the first row if the size of its weights is unknown."""
    width = _width(bert)
    return next(row for row in RATES if width >= row[0]) if width else RATES[0]


def _width(bert: str) -> Optional[int]:
    """Return the hidden size of a folder's weights; None if it has no configuration."""
    width = configuration(bert).get("hidden_size")
    return width if isinstance(width, int) else None


def configuration(bert: str) -> Mapping[str, Any]:
    """Return the configuration of a folder's weights; empty if it has none."""
    return next(filter(None, (json_file(os.path.join(bert, name)) for name in CONFIGS)), {})


def _is_short_run(bert: str) -> bool:
    """Return whether the folder is a run of ``pretraining`` on fewer sequences than SHORT_RUN."""
    config = json_file(os.path.join(bert, "config.json"))
    steps, size = config.get("steps"), config.get("global_batch")
    return isinstance(steps, int) and isinstance(size, int) and steps * size < SHORT_RUN
