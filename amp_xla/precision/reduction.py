"""Sums gradients over ranks, optionally in float16; sparse gradients as rows.

The gradient of each rank is its share of the mean over the global batch. So the sum over ranks
equals the gradient of a single process, and does not grow with the number of ranks.
"""

from __future__ import annotations

from typing import Any, Callable, List, Sequence, Tuple

from amp_xla.graph.executed import BETWEEN_RANKS
from amp_xla.precision import arrays
from amp_xla.precision.tensorflow import distinct_rows, tf

# Size of a group of gradients that is sent at once. Horovod's own fusion depends on timing, so with
# three ranks or more it would add the same numbers in another order in each run.
GROUP_BYTES = 32 << 20


class Reduction:
    """Sums of unscaled gradients over ranks, for ``reduce=`` of ``LossScaleOptimizer``.

    With ``fp16`` the ranks send scaled gradients, because a gradient of 1e-7 underflows; the sum is
    unscaled in float32.

    Args:
      hvd: ``horovod.tensorflow``, initialized.
      compression: ``none`` (float32) or ``fp16`` between ranks.
      mean: return means over ranks; for gradients that are means over each rank's batch.
    """

    def __init__(self, hvd: Any, compression: str = "none", mean: bool = False) -> None:
        self._hvd, self._compression, self._named = hvd, compression, 0
        self._share = 1.0 / hvd.size() if mean else None

    def __call__(self, gradients: Sequence[Any], scale: Any) -> List[Any]:
        """Return each gradient's sum (or mean) over ranks, in the order of ``gradients``.

        Args:
          gradients: unscaled float32 tensors or ``IndexedSlices``.
          scale: the loss scale of this step, a float32 scalar tensor.
        """
        with tf.name_scope(BETWEEN_RANKS):
            if self._share is not None:
                share = self._share
                gradients = [arrays.map_floats(lambda x: x * share, g) for g in gradients]
            sums = {
                i: self._rows(g) for i, g in enumerate(gradients) if isinstance(g, tf.IndexedSlices)
            }
            # In reverse order: the last layers' gradients are sent while the others are computed.
            rest = [i for i in range(len(gradients)) if i not in sums][::-1]
            for group in _groups(rest, gradients):
                sums.update(zip(group, self._sum([gradients[i] for i in group], scale)))
            return [sums[i] for i in range(len(gradients))]

    def _sum(self, gradients: List[Any], scale: Any) -> List[Any]:
        if self._compression == "none":
            return self._add(gradients)
        sums = self._add([tf.cast(gradient * scale, tf.float16) for gradient in gradients])
        return [tf.cast(total, tf.float32) / scale for total in sums]

    def _add(self, values: List[Any]) -> List[Any]:
        """Sum tensors in one message, so that the order of additions is fixed."""
        return list(self._hvd.grouped_allreduce(values, op=self._hvd.Sum, name=self._name()))

    def _name(self) -> str:
        """Return a new name; Horovod's own names are not unique within functions of branches."""
        self._named += 1
        return f"amp_xla_reduction_{self._named}"

    def _rows(self, gradient: Any) -> Any:
        """Gather an embedding's rows from all ranks, and sum rows with the same index."""
        once = distinct_rows(gradient)
        gather = self._hvd.allgather
        rows, ids = (gather(x, name=self._name()) for x in (once.values, once.indices))
        return distinct_rows(tf.IndexedSlices(rows, ids, gradient.dense_shape))


def over_ranks(
    pairs: Sequence[Tuple[Any, Any]],
    reduce: Callable[..., Any],
    local: Callable[[Any], bool],
    scale: Any,
) -> List[Tuple[Any, Any]]:
    """Reduce the gradients of pairs (gradient, variable), except None and those of local variables.

    Args:
      pairs: pairs of this rank.
      reduce: a ``Reduction``, which takes all gradients at once, or a function of one gradient.
      local: predicate that is true for a variable that exists on this rank only.
      scale: the loss scale of this step.
    """
    travel = [g for g, v in pairs if g is not None and not local(v)]
    sums = iter(reduce(travel, scale) if isinstance(reduce, Reduction) else map(reduce, travel))
    return [(g if g is None or local(v) else next(sums), v) for g, v in pairs]


def _groups(order: Sequence[int], gradients: Sequence[Any]) -> List[List[int]]:
    """Split ``order`` into groups of at most ``GROUP_BYTES``; a larger gradient forms a group."""
    groups: List[List[int]] = []
    size = 0
    for i in order:
        size_of_one = 4 * (gradients[i].shape.num_elements() or 0)
        if not groups or size + size_of_one > GROUP_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(i)
        size += size_of_one
    return groups
