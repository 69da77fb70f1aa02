"""A recipe's job: model, training step, batches, evaluation and files, before training."""

from __future__ import annotations

import dataclasses
import os
import random
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import numpy as np

from amp_xla.backend import keras, tf
from amp_xla.data.batches.protocol import BatchSource
from amp_xla.graph import executed, training_graph
from amp_xla.process.progress import note
from amp_xla.settings import Precision
from amp_xla.training.step import TrainStep
from amp_xla.training.tensorflow_engine import TensorFlowEngine


@dataclasses.dataclass(frozen=True)
class Job:
    """Parts of a recipe, to be trained, inspected, rehearsed or timed.

    Attributes:
      model: the Keras model in training mode.
      step: the training step.
      batches: the training batches.
      evaluate: returns dev metrics by name.
      assets: file name -> content of the files needed for prediction besides the weights.
      resolved: precision, XLA mode and loss scale of the model.
      identity: hashes of the data, e.g. ``{"train": dataset.fingerprint()}``, compared on resume.
      export: writes the weights for other programs into the folder given to it; called with the
        run folder after each evaluation that was the best so far.
      rates: name in the log -> function that returns, for a step, the units per sample; the loop
        multiplies them by samples per second.
      sharded: ``TableShards`` of which each rank has some rows; None = every rank has all
        variables.
    """

    model: Any
    step: TrainStep
    batches: BatchSource
    evaluate: Callable[[], Mapping[str, float]]
    assets: Mapping[str, bytes]
    resolved: Precision
    identity: Dict[str, str] = dataclasses.field(default_factory=dict)
    export: Optional[Callable[[str], None]] = None
    rates: Dict[str, Callable[[int], float]] = dataclasses.field(default_factory=dict)
    sharded: Optional[Any] = None

    def engine(self) -> TensorFlowEngine:
        """Print the settings; return the engine that trains the job."""
        note(f"settings: {self.resolved.describe()}")
        return TensorFlowEngine(self)

    @property
    def variables(self) -> List[Any]:
        """Variables of each rank: weights, optimizer slots, counters, loss scale."""
        return self.common(tf.global_variables())

    def common(self, variables: Sequence[Any]) -> List[Any]:
        """Return the ``variables`` that are the same on each rank: all but sharded tables."""
        sharded = {id(v) for v in self.sharded.variables()} if self.sharded else set()
        return [v for v in variables if id(v) not in sharded]

    def training_graph(self) -> training_graph.TrainingGraph:
        """Return the graph of the training step."""
        return training_graph.from_step(self.step, self.model)

    def verify(self, graph: executed.ExecutedGraph) -> None:
        """Raise NothingConvertedError or UnsupportedError if AMP or XLA did not take effect."""
        chosen, here = self.resolved.settings, self.resolved
        executed.verify(graph, chosen.precision, here.machine_half, here.reason, chosen.xla)


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy, TensorFlow's graph and, if it has one, Keras' generator."""
    os.environ.setdefault("PYTHONHASHSEED", str(seed))  # for worker processes
    random.seed(seed)
    np.random.seed(seed % 2**32)
    tf.set_random_seed(seed)
    setter = getattr(keras.utils, "set_random_seed", None)
    if setter is not None:
        setter(seed)
        tf.set_random_seed(seed)
