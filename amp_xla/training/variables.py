"""TensorFlow variables as NumPy arrays by name, for checkpoints."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import numpy as np

from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.optimizers.average import SLOT
from amp_xla.training.checkpoint import Checkpoint, fitting, shape_of


class Variables:
    """Group of variables of the current graph, read and assigned together."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self._variables: Dict[str, Any] = {v.op.name: v for v in variables}
        self._reads = [v.value() for v in variables]
        self._read: Optional[Callable[[], List[Any]]] = None
        self._assign: Optional[Callable[..., None]] = None

    def shapes(self) -> Dict[str, str]:
        """Return name -> dtype and shape, such as ``float32[21128,768]``."""
        return {name: shape_of(v) for name, v in self._variables.items()}

    def snapshot(self) -> Dict[str, np.ndarray]:
        """Return the current values in host memory.

        On a CPU the arrays may share memory with resource variables: TensorFlow never writes into
        a tensor that is still referenced. Old reference variables are copied.
        """
        if not self._variables:  # TensorFlow runs no empty list
            return {}
        if self._read is None:
            self._read = backend.session().make_callable(self._reads)
        return {
            name: np.array(value) if v.dtype._is_ref_dtype else np.asarray(value)
            for (name, v), value in zip(self._variables.items(), self._read())
        }

    def assign(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Set all variables; ``tensors`` has an array for each name."""
        session, variables = backend.session(), list(self._variables.values())
        if not variables:
            return
        if self._assign is None:
            with session.graph.as_default():
                feeds = [tf.placeholder(v.dtype.base_dtype, v.shape) for v in variables]
                updates = [v.assign(f, read_value=False) for v, f in zip(variables, feeds)]
                self._assign = session.make_callable(tf.group(*updates), feeds)
        self._assign(
            *(tensors[v.op.name].astype(v.dtype.base_dtype.as_numpy_dtype) for v in variables)
        )


def restore_weights(checkpoint: Checkpoint, weights: Sequence[Any]) -> None:
    """Set ``weights`` from a checkpoint.

    If the run averaged its weights (``--ema``), they are set to the averages.

    Raises:
      CheckpointError: a tensor is missing or of another shape.
    """
    variables = Variables(weights)
    slot = SLOT if checkpoint.loop.applied else ""
    variables.assign(fitting(checkpoint, variables.shapes(), exactly=False, slot=slot))
