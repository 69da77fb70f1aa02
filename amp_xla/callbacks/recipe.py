"""``Run`` for a recipe that trains with Keras' ``fit``."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, Mapping

import numpy as np

from amp_xla.backend import configuring
from amp_xla.callbacks.data import Batches, Source
from amp_xla.callbacks.run import Run
from amp_xla.callbacks.step import FitJob, FitStep
from amp_xla.data.batches.protocol import Batch, BatchSource
from amp_xla.training.options import LoopOptions
from amp_xla.training.run import RunFolder

Convert = Callable[[Batch], Any]


class RecipeRun(Run):
    """The ``Run`` of a recipe, which also provides the batches of ``model.fit``.

    Args:
      folder: the run folder.
      config: the recipe's configuration, which is saved, and compared on resume.
      options: number of epochs, intervals and early stopping.
      batches: the training batches.
      convert: turns a batch into inputs, labels and weights for ``fit``.
      step_input: placeholder of the step number, see ``dropout.install``.
      evaluate: returns dev metrics by name.
      assets: file name -> content of the files needed for prediction.
      identity: hashes of the data, compared on resume.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: Any,
        options: LoopOptions,
        batches: BatchSource,
        convert: Convert,
        step_input: Any,
        evaluate: Callable[[], Mapping[str, float]],
        assets: Mapping[str, bytes],
        identity: Dict[str, str],
    ) -> None:
        super().__init__(folder)
        self._config, self._options, self._batches = config, options, batches
        self._convert, self.step_input, self.evaluate = convert, step_input, evaluate
        self._assets, self._identity = assets, identity

    def source(self, model: Any, given: Mapping[str, Any]) -> Source:
        return _Converted(self._batches, self._convert)

    def options(self, given: Mapping[str, Any]) -> LoopOptions:
        return self._options

    def job(self, step: FitStep, source: Source) -> FitJob:
        assert self.evaluate is not None
        return FitJob(
            step.model, step, self._batches, self.evaluate, self._assets,  # type: ignore[arg-type]
            configuring.current(), self._identity,
        )  # fmt: skip

    def samples(self, rows: int) -> int:
        return int(np.count_nonzero(self._feed.batch[2]))

    def script(self, model: Any, given: Mapping[str, Any]) -> Dict[str, Any]:
        return {}


class _Converted(Batches):
    """A recipe's batches, converted for ``fit``."""

    def __init__(self, batches: BatchSource, convert: Convert) -> None:
        self._batches, self._convert = batches, convert
        self.steps = batches.steps_per_epoch()

    def batches(self, seed: int, position: int) -> Iterator[Any]:
        while True:
            epoch, start = divmod(position, self.steps)
            for batch in self._batches.epoch(epoch, start=start):
                yield self._convert(batch)
            position = (epoch + 1) * self.steps
