"""Dropout whose masks are a function of (seed, step, layer, rank).

Keras' dropout keeps its state inside stateful kernels, which die with the process, so a resumed
run cannot repeat the masks of the run it continues. Here the number of the micro-batch is fed to
the graph, and the mask comes from TensorFlow's stateless generator.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
import zlib
from typing import Any, Dict, Iterator, Optional

from amp_xla import backend
from amp_xla.backend import K, keras, tf
from amp_xla.graph.training_graph import DROPOUT_STEP
from amp_xla.process.world import world


class _Stream:
    """Source of masks for the graph under construction."""

    def __init__(self) -> None:
        self.seed = 0
        self.step: Optional[Any] = None
        self.training = True
        self.calls: Dict[str, int] = {}


_stream = _Stream()


def install(seed: int) -> Any:
    """Make bert4keras and this module's ``Dropout`` draw from the stateless stream.

    Args:
      seed: the run's seed.

    Returns:
      int64 scalar placeholder for the number of the micro-batch.
    """
    global _stream
    step = tf.placeholder(tf.int64, [], name="dropout_step")
    _stream = _Stream()
    _stream.seed, _stream.step = seed, step
    for name in ("layers", "models"):
        backend.bert4keras(name).Dropout = Dropout
    _set_learning_phase(1)
    return step


def _set_learning_phase(value: int) -> None:
    """Set Keras' flag, for other layers; tf-keras' warning concerns eager execution only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        K.set_learning_phase(value)


@contextlib.contextmanager
def inference() -> Iterator[None]:
    """Build the layers called within the block for inference."""
    was_training = _stream.training
    _stream.training = False
    _set_learning_phase(0)
    try:
        yield
    finally:
        _stream.training = was_training
        _set_learning_phase(1 if was_training else 0)


class Dropout(keras.layers.Dropout):
    """``keras.layers.Dropout`` with stateless masks; decided when the graph is built.

    Inside ``inference()`` it is the identity, so no conditional enters either graph (a
    conditional would keep XLA and the precision rewrite from fusing across it).
    """

    def call(self, inputs: Any, training: Optional[bool] = None) -> Any:
        """Return ``inputs``, a float tensor, with elements dropped."""
        shape = tf.shape(inputs)
        if self.noise_shape is not None:
            shape = tf.stack([s or shape[i] for i, s in enumerate(self.noise_shape)])
        keep = kept(self.name, shape, self.rate)
        if keep is None:
            return tf.identity(inputs)
        return inputs * (tf.cast(keep, inputs.dtype) * (1.0 / (1.0 - self.rate)))


@functools.lru_cache(maxsize=None)
def make_repeatable() -> None:
    """Let ``keras.layers.Dropout`` draw stateless masks in layers that are called from now on.

    The masks are a function of the layer and ``step_input``. It follows Keras' learning phase.
    """
    keras_call = keras.layers.Dropout.call

    def stateless(self: Any, inputs: Any, training: Any) -> Any:
        if not self.rate or installed():
            return keras_call(self, inputs, training)
        calls = _calls_in(tf.get_default_graph())
        seed = tf.stack([tf.constant(_layer(self.name, calls, 0), tf.int64), step_input()])

        def dropped() -> Any:
            shape = self._get_noise_shape(inputs)
            keep = _kept(tf.shape(inputs) if shape is None else shape, seed, self.rate)
            return inputs * (tf.cast(keep, inputs.dtype) * (1.0 / (1.0 - self.rate)))

        training = K.learning_phase() if training is None else training
        output = K.in_train_phase(dropped, lambda: tf.identity(inputs), training)
        output.set_shape(inputs.shape)
        return output

    # Keras looks at the names of the arguments.
    def call(self: Any, inputs: Any, training: Any = None) -> Any:
        return stateless(self, inputs, training)

    keras.layers.Dropout.call = call


def step_input() -> Any:
    """Return the graph's step for the masks of ``make_repeatable``.

    Returns:
      int64 scalar placeholder; it is random in a run of the session that does not feed it.
    """
    graph = tf.get_default_graph()
    if not hasattr(graph, "_amp_xla_dropout_step"):
        with graph.as_default(), tf.control_dependencies(None), tf.name_scope(None):
            default = tf.random.uniform([], maxval=2**62, dtype=tf.int64, name=f"{DROPOUT_STEP}s")
            graph._amp_xla_dropout_step = tf.placeholder_with_default(
                default, [], name=DROPOUT_STEP
            )
    return graph._amp_xla_dropout_step


def _calls_in(graph: Any) -> Dict[str, int]:
    """Return layer name -> calls so far."""
    if not hasattr(graph, "_amp_xla_dropout_calls"):
        graph._amp_xla_dropout_calls = {}
    calls: Dict[str, int] = graph._amp_xla_dropout_calls
    return calls


def _layer(name: str, calls: Dict[str, int], seed: int) -> int:
    """Count a call of a layer on this rank; return the number of its stream."""
    call = calls[name] = calls.get(name, -1) + 1
    rank = f"/rank {world().rank}" if world().rank else ""
    return zlib.crc32(f"{seed}/{name}/{call}{rank}".encode())


def installed() -> bool:
    """Return True if the graph under construction draws its masks from the stateless stream."""
    return _stream.step is not None or not _stream.training


def kept(name: str, shape: Any, rate: float) -> Optional[Any]:
    """Return a mask of elements to keep, a different one for each call of a shared layer.

    Args:
      name: name of the layer.
      shape: int32 [rank] of the tensor to drop from.
      rate: share to drop, 0 <= rate < 1.

    Returns:
      bool of ``shape``, or None if nothing is dropped: at inference, or with a rate of 0.

    Raises:
      RuntimeError: ``install`` was not called.
    """
    if not _stream.training or not rate:
        return None
    if _stream.step is None:
        raise RuntimeError("call amp_xla.models.dropout.install(seed) before building")
    layer = _layer(name, _stream.calls, _stream.seed)
    seed = tf.stack([tf.constant(layer, tf.int64), _stream.step])
    return _kept(shape, seed, rate)


def _kept(shape: Any, seed: Any, rate: float) -> Any:
    """Return bool of ``shape``, False with probability ``rate`` (to 1 in 65,536 on TensorFlow 2).

    Random bits cost a tenth of a step on a CPU. TensorFlow 2 returns integers, each of which serves
    two elements; 1.15 makes a float of every 32 bits.
    """
    if backend.kind() == "tf1":
        return tf.random.stateless_uniform(shape, seed=seed, dtype=tf.float32) >= rate
    count = tf.reduce_prod(shape)
    bits = tf.random.stateless_uniform(
        [(count + 1) // 2], seed=seed, minval=None, maxval=None, dtype=tf.int32
    )
    numbers = tf.reshape(tf.bitcast(bits, tf.int16), [-1])[:count]
    return tf.reshape(numbers, shape) >= tf.constant(round(rate * 2**16) - 2**15, tf.int16)
