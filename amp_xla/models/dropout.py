"""Dropout whose masks are a function of (seed, step, layer, rank).

Keras' dropout keeps its state inside stateful kernels, which die with the process, so a resumed
run cannot repeat the masks of the run it continues. Here the number of the micro-batch is fed to
the graph, and the mask comes from TensorFlow's stateless generator.
"""

from __future__ import annotations

import contextlib
import warnings
import zlib
from typing import Any, Dict, Iterator, Optional

from amp_xla import backend
from amp_xla.backend import K, keras, tf
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


def installed() -> bool:
    """Return True if the graph under construction draws its masks from the stateless stream."""
    return _stream.step is not None or not _stream.training


def kept(name: str, shape: Any, rate: float) -> Optional[Any]:
    """Return a mask of elements to keep, another one per call of a layer (shared weights).

    Args:
      name: of the layer.
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
    call = _stream.calls[name] = _stream.calls.get(name, -1) + 1
    rank = f"/rank {world().rank}" if world().rank else ""
    layer = zlib.crc32(f"{_stream.seed}/{name}/{call}{rank}".encode())
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
