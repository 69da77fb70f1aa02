"""One decision for all ranks and replicas, and sums of gradients over ranks.

An agreement (``agreement=`` of ``LossScaleOptimizer``) is a function. It takes a boolean scalar
tensor, true if this rank's gradients are finite, and returns a tensor that is true if the gradients
of all ranks are finite. It runs on every rank in every step. Its optional attribute ``total`` is a
function that sums a float32 scalar over ranks. Clipping model-parallel variables by a global norm
needs this function.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
from typing import Any, Callable, List, Mapping, Optional, Sequence, Union

from amp_xla import backend
from amp_xla.errors import AmpXlaError
from amp_xla.graph.executed import BETWEEN_RANKS
from amp_xla.precision import arrays
from amp_xla.precision.tensorflow import Pairs, distinct_rows, in_v1_graph, tf
from amp_xla.process.checkout import horovod_from
from amp_xla.process.world import World, meet

Agreement = Callable[[Any], Any]
# Strategies in which each replica has its own copy of a variable, by the names of their classes.
SUPPORTED = ("MirroredStrategy", "CollectiveAllReduceStrategy", "OneDeviceStrategy")
# Size of a group of gradients that is sent at once. Horovod's own fusion depends on timing, so with
# three ranks or more it would add the same numbers in another order in each run.
GROUP_BYTES = 32 << 20


def start_horovod(place: World) -> Any:
    """Initialize Horovod for the ranks that a launcher started; return Horovod's module.

    Choose this rank's GPU, unless a script has initialized Horovod and chosen a GPU itself.

    Raises:
      AmpXlaError: Horovod is missing, its ranks differ from the launcher's or have not all started,
        this host has fewer GPUs than ranks, or other hosts cannot reach it by its name.
    """
    _check_name(place, os.environ)
    try:
        hvd = importlib.import_module("horovod.tensorflow")
    except ImportError as error:
        raise AmpXlaError(
            f"{place.size} ranks were started, and Horovod cannot be imported ({error}); "
            f"{horovod_from()}"
        ) from error
    # A script that has initialized Horovod may have chosen the GPU.
    chosen = hvd.is_initialized() and len(backend.gpus()) == 1
    if not hvd.is_initialized():
        meet(place)
        hvd.init()
    if (hvd.rank(), hvd.size()) != (place.rank, place.size):
        raise AmpXlaError(
            f"the launcher started rank {place.rank} of {place.size}, but Horovod is rank "
            f"{hvd.rank()} of {hvd.size()}: it was built for another launcher; see `horovodrun "
            f"--check-build`"
        )
    if backend.gpus() and not chosen:
        backend.use_gpu(hvd.local_rank())
    return hvd


def _check_name(place: World, environ: Mapping[str, str]) -> None:
    """Raise AmpXlaError if there are other hosts, and they cannot reach this host by its name.

    The name then has no address or a loopback address: Debian's installer sets 127.0.1.1 in
    /etc/hosts. Gloo listens on the name's address, so other hosts would wait for minutes.
    """
    several = int(environ.get("HOROVOD_CROSS_SIZE") or 1) > 1
    if not several or environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.").startswith("127."):
        return
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        address = f"nothing ({error})"
    if address.startswith(("127.", "nothing")):
        raise AmpXlaError(
            f"{place.name} resolves its own name {name} to {address}, which no other host reaches; "
            f"in its /etc/hosts or DNS, give {name} the address of its network card"
        )


def choose(agreement: Union[Agreement, str, None]) -> Optional[Agreement]:
    """Return the agreement function, or None if each rank decides alone.

    Args:
      agreement: a function or None, which is returned unchanged; or ``auto``: Horovod's agreement
        if Horovod has several ranks, else None.

    Raises:
      ValueError: a string other than ``auto``.
    """
    if not isinstance(agreement, str):
        return agreement
    if agreement != "auto":
        raise ValueError(f"agreement is {agreement!r}; allowed: 'auto', None or a function")
    hvd = joined()
    return None if hvd is None else horovod(hvd)


def joined() -> Optional[Any]:
    """Return ``horovod.tensorflow`` if it is initialized with several ranks, else None."""
    hvd = sys.modules.get("horovod.tensorflow")
    return hvd if hvd is not None and hvd.is_initialized() and hvd.size() > 1 else None


def horovod(hvd: Optional[Any] = None) -> Agreement:
    """Return an agreement function for all Horovod ranks, with the attribute ``total``.

    Args:
      hvd: ``horovod.tensorflow``, initialized; None imports it.
    """
    module = hvd or importlib.import_module("horovod.tensorflow")

    def agree(finite: Any) -> Any:
        # A sum of integers is exact for any number of ranks, and every version of Horovod has it.
        bad = tf.cast(tf.logical_not(finite), tf.int32)
        return tf.equal(module.allreduce(bad, op=module.Sum), 0)

    agree.total = lambda x: module.allreduce(x, op=module.Sum)  # type: ignore[attr-defined]
    return agree


def horovod_mean(hvd: Optional[Any] = None) -> Callable[[Any], Any]:
    """Return a function that averages a gradient, dense or sparse, over Horovod's ranks."""
    module = hvd or importlib.import_module("horovod.tensorflow")
    return lambda gradient: module.allreduce(gradient, op=module.Average)


def check_clipping(
    agreement: Optional[Agreement],
    global_clipnorm: Optional[float],
    inner_clips: Sequence[Mapping[str, float]],
) -> None:
    """Raise ValueError if ranks would clip shared variables by different norms."""
    inner = any("global_clipnorm" in clips for clips in inner_clips)
    local = global_clipnorm is not None and not hasattr(agreement, "total")
    if agreement is not None and (inner or local):
        raise ValueError(
            "global_clipnorm with model_parallel variables needs a norm over all ranks: pass "
            "global_clipnorm to LossScaleOptimizer, not to the inner optimizer, and give the "
            "agreement a function `total` that sums a float32 scalar over ranks"
        )


def _replica() -> Optional[Any]:
    """Return the context of the current replica of a strategy; None outside replicas."""
    return tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None


def replica_index() -> int:
    """Return the number of the current replica; 0 outside replicas."""
    context = _replica()
    number = getattr(context, "replica_id_in_sync_group", 0)
    return number if isinstance(number, int) else 0


def replicas_agree(finite: Any) -> Any:
    """Return whether the gradients of all replicas are finite."""
    context = _replica()
    if context is None or context.num_replicas_in_sync == 1:
        return finite
    bad = tf.cast(tf.logical_not(finite), tf.float32)
    return tf.equal(context.all_reduce(tf.distribute.ReduceOp.SUM, bad), 0.0)


def check_strategy() -> None:
    """Raise ValueError if the current ``tf.distribute`` strategy is not one of ``SUPPORTED``.

    Under another strategy, gradients would be unscaled a wrong number of times.
    """
    if not tf.distribute.has_strategy():
        return
    strategy = type(tf.distribute.get_strategy())
    if not any(cls.__name__.strip("_").startswith(SUPPORTED) for cls in strategy.__mro__):
        raise ValueError(
            f"Loss scaling is not supported with the tf.distribute.Strategy: {strategy.__name__}. "
            f"Try using a different Strategy, e.g. a MirroredStrategy"
        )


def in_all_replicas(
    function: Callable[..., Any], gradients: Sequence[Any], scalars: Sequence[Any]
) -> Any:
    """Return ``function(each_replica, scalars)``; call ``function`` once for all replicas.

    ``function`` builds a branch (``tf.cond``) in which each replica applies its gradients. As in
    Keras, all replicas of a strategy share this branch. A replica cannot build its own, because
    optimizers call ``merge_call``, which TensorFlow forbids in the branch of a replica.

    Args:
      function: builds the branch. In it, ``each_replica(apply)`` calls ``apply(gradients)`` in
        every replica with that replica's gradients, and returns the operations.
      gradients: gradients of this replica.
      scalars: tensors with the same value in all replicas; ``function`` gets those of one replica.
    """
    context = _replica()
    if context is None:
        return function(lambda apply: apply(gradients), scalars)
    graph = in_v1_graph()  # elsewhere effects are in order without control dependencies

    def merged(strategy: Any, grads: Any, values: Any) -> Any:
        def each_replica(apply: Callable[[Any], Any]) -> List[Any]:
            results = strategy.extended.call_for_each_replica(apply, args=(grads,))
            if not graph:
                return []
            return [op for r in results for op in strategy.experimental_local_results(r)]

        ones = [strategy.experimental_local_results(value)[0] for value in values]
        return function(each_replica, ones)

    return context.merge_call(merged, args=(list(gradients), list(scalars)))


class Reduction:
    """Sums of unscaled gradients over ranks, for ``reduce=`` of ``LossScaleOptimizer``.

    The gradient of each rank is its share of the mean over the global batch. So the sum over ranks
    equals the gradient of a single process, for any number of ranks.

    With ``fp16`` the ranks send dense gradients scaled, because an unscaled gradient of 1e-8 would
    be 0 in float16; the sum is unscaled in float32.

    Args:
      hvd: ``horovod.tensorflow``, initialized.
      compression: ``none`` (float32) or ``fp16`` between ranks; sparse gradients stay float32.
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
        """Sum each tensor over ranks; all are sent at once, which fixes the order of additions."""
        half = self._compression == "fp16"
        if half:
            gradients = [tf.cast(gradient * scale, tf.float16) for gradient in gradients]
        sums = self._hvd.grouped_allreduce(gradients, op=self._hvd.Sum, name=self._name())
        return [tf.cast(total, tf.float32) / scale if half else total for total in sums]

    def _name(self) -> str:
        """Return a unique operation name; Horovod's default names can be equal in two branches."""
        self._named += 1
        return f"amp_xla_reduction_{self._named}"

    def _rows(self, gradient: Any) -> Any:
        """Gather an embedding's rows from all ranks, and sum rows with the same index."""
        once = distinct_rows(gradient)
        gather = self._hvd.allgather
        rows, ids = (gather(x, name=self._name()) for x in (once.values, once.indices))
        return distinct_rows(tf.IndexedSlices(rows, ids, gradient.dense_shape))


def over_ranks(
    pairs: Pairs,
    reduce: Callable[..., Any],
    local: Callable[[Any], bool],
    scale: Any,
) -> Pairs:
    """Reduce gradients over ranks, except None and the gradients of local variables.

    Args:
      pairs: pairs (gradient, variable) of this rank.
      reduce: a ``Reduction``, which takes all gradients at once, or a function of one gradient.
      local: predicate that is true for a variable that exists on this rank only.
      scale: the loss scale of this step.
    """
    travel = [g for g, v in pairs if g is not None and not local(v)]
    sums = iter(reduce(travel, scale) if isinstance(reduce, Reduction) else map(reduce, travel))
    return [(g if g is None or local(v) else next(sums), v) for g, v in pairs]


def _groups(order: Sequence[int], gradients: Sequence[Any]) -> List[List[int]]:
    """Split the gradient indices in ``order`` into groups of at most ``GROUP_BYTES``.

    A gradient that is larger has a group to itself.
    """
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
