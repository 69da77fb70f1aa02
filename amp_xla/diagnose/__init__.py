"""What mixed precision does to a graph: counted in real runs, rehearsed without a GPU.

``inspect`` and ``rehearse`` take a compiled Keras model, or what a recipe's ``build`` returns.
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
    """What TensorFlow's auto-mixed-precision pass would make of a model's training graph.

    Needs no GPU; nothing is executed.

    Args:
      model: a compiled Keras model, a ``Job`` or a ``TrainStep``.
      gpu: compute capability of the pretended GPU: 7.0, 8.0, 8.6, 9.0, ...
      lists: ``fork`` (NVIDIA's TensorFlow 1.15), ``stock``, or None for what this TensorFlow's
        users train with: fork on 1.15, stock on 2.x.
      batch: arrays, one per placeholder, whose shapes FLOPs and bytes are computed for.
      batch_size, length: without ``batch``, what a placeholder's first and further unknown
        dimensions are taken for.

    Returns:
      ``amp_xla.diagnose.inspection_report.Report``; ``print`` it for a table, ``to_json`` is
      amp.json.

    Raises:
      PassFailedError: the pass failed, was skipped or converted nothing; says why.
      UnsupportedError: the model is not compiled, or ``gpu`` or ``lists`` cannot be.
    """
    from amp_xla.diagnose import inspection

    return inspection.inspect(model, gpu, lists, batch, batch_size, length)


def rehearse(
    model: Any,
    batches: Iterable[Sequence[Any]],
    steps: int = 20,
    gpu: str = "8.0",
    lists: Optional[str] = None,
    exact: bool = False,
) -> Any:
    """Trains a copy of the model in float32 and one in mixed precision, on CPU, side by side.

    The model itself is not trained. Half precision is modelled as tensor cores compute it: half
    inputs and outputs, float32 in between.

    Args:
      model: a compiled Keras model, a ``Job`` or a ``TrainStep``; its weights initialised.
      batches: gives one list of arrays a step, in the order of the model's placeholders: inputs,
        then targets (and sample weights, where Keras has such a placeholder).
      steps: how many; ends early where mixed precision is not finite.
      gpu, lists: as for ``inspect``.
      exact: use Eigen's half kernels, about 100 times slower.

    Returns:
      ``amp_xla.diagnose.rehearsal_report.Rehearsal``; ``print`` it for tables.

    Raises:
      PassFailedError, UnsupportedError: as for ``inspect``.
    """
    from amp_xla.diagnose import rehearsal

    return rehearsal.rehearse(model, batches, steps, gpu, lists, exact)
