"""Shows what mixed precision does to a graph, without a GPU.

``inspect`` and ``rehearse`` take a compiled Keras model, or the job that a recipe's ``build``
returns.
"""

from __future__ import annotations

from typing import Any, Iterable, Optional, Sequence


def inspect(
    model: Any,
    gpu: str = "8.0",
    lists: Optional[str] = None,
    batch: Optional[Sequence[Any]] = None,
    batch_size: int = 32,
    length: int = 128,
) -> Any:
    """Run TensorFlow's auto-mixed-precision pass on a model's training graph and report.

    Args:
      model: a compiled Keras model, a ``Job`` or a ``TrainStep``.
      gpu: compute capability of the virtual GPU: 7.0, 8.0, 8.6, 9.0, ...
      lists: ``fork`` (NVIDIA's TensorFlow 1.15), ``stock``, or None = fork on 1.15, stock on 2.x.
      batch: arrays for the placeholders, or (inputs, targets) as for ``fit``; FLOPs and bytes are
        computed for their shapes.
      batch_size, length: without ``batch``, the first and the other unknown dimensions.

    Returns:
      ``inspection_report.Report``; ``print`` it for tables, ``to_json`` is amp.json.

    Raises:
      PassFailedError: the pass failed, was skipped or converted nothing; with its reason.
      UnsupportedError: the model is not compiled, or ``gpu`` or ``lists`` is not possible.
    """
    from amp_xla.diagnose import inspection

    return inspection.inspect(model, gpu, lists, batch, batch_size, length)


def rehearse(
    model: Any,
    batches: Iterable[Sequence[Any]],
    steps: int = 20,
    gpu: str = "8.0",
    lists: Optional[str] = None,
) -> Any:
    """Train a float32 copy and a mixed-precision copy of the model on a CPU, side by side.

    The model itself is not trained. Half precision is modelled as tensor cores compute it: half
    inputs and results, float32 in between.

    Args:
      model: a compiled Keras model, a ``Job`` or a ``TrainStep``; its weights initialised.
      batches: one batch per step, as for ``inspect``.
      steps: number of steps; ends early if mixed precision is not finite.
      gpu, lists: as for ``inspect``.

    Returns:
      ``rehearsal_report.Rehearsal``; ``print`` it for tables.

    Raises:
      PassFailedError, UnsupportedError: as for ``inspect``.
    """
    from amp_xla.diagnose import rehearsal

    return rehearsal.rehearse(model, batches, steps, gpu, lists)
