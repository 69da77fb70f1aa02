"""A training job that is built and not yet started: what recipes hand to the loop."""

from __future__ import annotations

import dataclasses
import os
import random
from typing import Any, Callable, Dict, List, Mapping, Optional

import numpy as np

from amp_xla import backend, setup
from amp_xla.backend import keras, tf
from amp_xla.training.step import TrainStep


@dataclasses.dataclass(frozen=True)
class Job:
    """What it takes to train, inspect, rehearse or time a recipe.

    Attributes:
      model: the Keras model in training mode; owner of the weights.
      step: the training step.
      batches: order and assembly of training batches.
      evaluate: dev metrics by name.
      assets: file name -> function that writes it into a path: vocabulary, labels, whatever
        predicting needs besides the weights.
      identity: what the data are, e.g. ``{"train": dataset.fingerprint()}``; a run is resumed
        only on the same.
      export: folder -> writes the weights there for other programs; called with the run folder
        whenever they are the best so far.
      rates: name -> what to multiply samples a second by, to be logged beside them.
    """

    model: Any
    step: TrainStep
    batches: Any
    evaluate: Callable[[], Mapping[str, float]]
    assets: Mapping[str, Callable[[str], None]]
    identity: Dict[str, str] = dataclasses.field(default_factory=dict)
    export: Optional[Callable[[str], None]] = None
    rates: Dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def variables(self) -> List[Any]:
        """All that a checkpoint must hold: weights, optimizer slots, counters, loss scale."""
        return list(tf.global_variables())


def loss_scale() -> Any:
    """The loss scale that the settings in force mean on this machine: a number or ``dynamic``."""
    return setup.current().effective_loss_scale(backend.half_dtype()[0])


def seed_everything(seed: int) -> None:
    """Seeds Python, numpy, TensorFlow's graph and, where it has one, Keras' own generator."""
    os.environ.setdefault("PYTHONHASHSEED", str(seed))  # for worker processes
    random.seed(seed)
    np.random.seed(seed % 2**32)
    tf.set_random_seed(seed)
    setter = getattr(keras.utils, "set_random_seed", None)
    if setter is not None:
        setter(seed)
        tf.set_random_seed(seed)
