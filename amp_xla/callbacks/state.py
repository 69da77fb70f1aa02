"""The part of ``Run`` that saves and restores what Keras and other callbacks hold."""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence

import numpy as np

from amp_xla import backend
from amp_xla.backend import keras
from amp_xla.callbacks.others import Others
from amp_xla.callbacks.step import metric_variables
from amp_xla.process.progress import note


class FitState(keras.callbacks.Callback):
    """State of ``fit`` besides the loop's, in a checkpoint."""

    _ended: bool
    _loop: Any
    _step: Any
    _arrays: Dict[str, np.ndarray]

    def _more_state(self) -> Dict[str, Any]:
        state = self._loop.state
        within = state.step_in_epoch > 0 or state.evaluate_due
        metrics = backend.K.batch_get_value(metric_variables(self._step.model)) if within else []
        return {
            "fit": {
                "seed": self._seed,
                "monitor": self._loop.options.monitor,
                "losses": self._losses if within else [0.0, 0],
                "metrics": [value.tolist() for value in metrics],
                "callbacks": self._others.state({}) if self._others else self._saved["callbacks"],
                "ended": self._ended,
            }
        }

    def _more_tensors(self) -> Dict[str, np.ndarray]:
        arrays: Dict[str, np.ndarray] = {} if self._others else self._arrays
        if self._others:
            self._others.state(arrays)
        return arrays

    _others: Optional[Others] = None

    def others_began(self, others: Sequence[Any]) -> None:
        """Restore the state of the other callbacks, after their ``on_train_begin``."""
        self._others = Others(others)
        self._others.restore(self._saved["callbacks"], self._arrays)
        if self._step.skip:
            self._others.silence()
        classes = [saved["class"] for saved in self._saved["callbacks"]]
        if self._ended and self._others.classes == classes:
            note("a callback has ended this run, e.g. EarlyStopping; without it the run continues")
            self.model.stop_training = True
        self._ended = self._ended and self.model.stop_training
        if self._loop.over:
            self.model.stop_training = True

    def _rejoin(self) -> None:
        """Undo what Keras and callbacks changed at the start of an epoch that is resumed."""
        backend.K.batch_set_value(self._within_epoch)
        assert self._others is not None
        self._others.rejoin(self._saved["callbacks"], self._arrays)


class Last(keras.callbacks.Callback):
    """The last callback: calls ``Run`` after all other callbacks."""

    def __init__(self, run: Any, others: Sequence[Any]) -> None:
        super().__init__()
        self._run, self._others = run, others

    def on_train_begin(self, logs: Any = None) -> None:
        self._run.others_began(self._others)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._run.after_batch(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._run.after_epoch(logs)
