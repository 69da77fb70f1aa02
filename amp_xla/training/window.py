"""The sums of accumulated gradients, in checkpoints that any number of ranks can go on from.

While a window is open every rank has sums of its own. A checkpoint holds their total, which the
first rank takes up again and the others start from zero; and it counts micro-batches, not the
pieces that they came in. The run that writes it goes on from there as one that resumes will, so
that both add up in the same order.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.errors import AmpXlaError
from amp_xla.training.distributed import Ranks


class SharedWindow:
    """The window of an optimizer, seen from checkpoints.

    Args:
      optimizer: ``LossScaleOptimizer``.
      ranks: those that share the batches.
    """

    def __init__(self, optimizer: Any, ranks: Ranks) -> None:
        self._window = getattr(optimizer, "window", None)
        self._ranks = ranks
        self._totals: Optional[List[Any]] = None

    @property
    def transient(self) -> List[Any]:
        """Variables that are zero between two steps, and no part of a checkpoint."""
        if self._window is None or self._window.steps > 1:
            return []
        return list(self._window.state_variables)

    def collected(self, alone: bool = False) -> Dict[str, Any]:
        """Name of a variable -> what a checkpoint holds in its place.

        Args:
          alone: the other ranks have gone.

        Raises:
          AmpXlaError: what they had summed up has gone with them.
        """
        window, ranks = self._window, self._ranks
        if window is None or ranks.alone or window.steps == 1:
            return {}
        session = backend.session()
        count = session.run(window.micro_step)
        found = {window.micro_step.op.name: count // ranks.split}
        if not ranks.several or not count:
            return found
        if alone:
            raise AmpXlaError("the other ranks' part of an open window of gradients is gone")
        if self._totals is None:
            with session.graph.as_default():
                self._totals = self._added_up()
        try:
            totals = session.run(self._totals)
        except tf.errors.OpError as error:
            raise ranks.lost(error) from error
        found.update(zip([v.op.name for v in window.sums], totals))
        return found

    def _added_up(self) -> List[Any]:
        """Totals, once the first rank has them for its own and the others zero."""
        hvd, window, changed = self._ranks.hvd, self._window, []
        assert hvd is not None and window is not None  # there are several, with sums
        sums = window.sums
        totals = hvd.grouped_allreduce(
            [v.read_value() for v in sums], op=hvd.Sum, name="amp_xla_window"
        )
        for v, total in zip(sums, totals):
            now = total if self._ranks.first else tf.zeros_like(total)
            with tf.control_dependencies([v.assign(now, read_value=False)]):
                changed.append(tf.identity(total))
        return changed

    def is_open(self) -> bool:
        """True where ranks have begun a window and not ended it."""
        if self._window is None or not self._ranks.several or self._window.steps == 1:
            return False
        return bool(backend.session().run(self._window.micro_step))

    def resumed(self) -> None:
        """Makes of what a checkpoint held this rank's part."""
        window, ranks = self._window, self._ranks
        if window is None or ranks.alone or window.steps == 1:
            return
        session = backend.session()
        with session.graph.as_default():
            changes = [window.micro_step.assign(window.micro_step.read_value() * ranks.split)]
            if not ranks.first:
                changes += [v.assign(tf.zeros_like(v)) for v in window.sums]
            session.run(changes)
