"""Dropout whose masks are a function of (seed, layer, step) and nothing else.

Keras' dropout keeps its state inside stateful kernels, which die with the process, so a resumed
run cannot repeat the masks of the run it continues. Here the step is fed to the graph, and the
mask comes from TensorFlow's stateless generator. Where ranks share a batch, each has the masks of
its samples' places in the whole batch.
"""

from __future__ import annotations

import contextlib
import warnings
import zlib
from typing import Any, Dict, Iterator, Optional, Tuple

from amp_xla import backend
from amp_xla.backend import K, keras, tf
from amp_xla.data.batches.pieces import Pieces


class _Stream:
    """Where the masks of the graph under construction come from."""

    def __init__(self) -> None:
        self.seed = 0
        self.step: Optional[Any] = None
        self.training = True
        self.calls: Dict[str, int] = {}
        self.pieces: Optional[Pieces] = None
        self.piece: Any = None  # which one: a number, or a placeholder where there are several


_stream = _Stream()


def install(seed: int, batches: Any = None) -> Any:
    """Makes bert4keras and this module's ``Dropout`` draw from the stateless stream.

    Args:
      seed: the run's seed.
      batches: what the model is trained on; needed where ranks share them.

    Returns:
      int64 scalar placeholder: feed it the number of the step at every training step.
    """
    global _stream
    step = tf.placeholder(tf.int64, [], name="dropout_step")
    _stream = _Stream()
    _stream.seed, _stream.step = seed, step
    if isinstance(batches, Pieces):
        _stream.pieces, _stream.piece = batches, batches.first
        if batches.several:
            _stream.piece = tf.placeholder(tf.int32, [], name="dropout_piece")
    for name in ("layers", "models"):
        backend.bert4keras(name).Dropout = Dropout
    _set_learning_phase(1)
    return step


def shares() -> Tuple[bool, Optional[Any]]:
    """(whether masks follow the places of pieces, placeholder of a piece's number or None)."""
    several = _stream.pieces is not None and _stream.pieces.several
    return _stream.pieces is not None, _stream.piece if several else None


def _set_learning_phase(value: int) -> None:
    """For other people's layers; tf-keras warns that eager users should not, and we are not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        K.set_learning_phase(value)


@contextlib.contextmanager
def inference() -> Iterator[None]:
    """Layers called inside leave dropout out and normalise as at inference."""
    before = _stream.training
    _stream.training = False
    _set_learning_phase(0)
    try:
        yield
    finally:
        _stream.training = before
        _set_learning_phase(1 if before else 0)


class Dropout(keras.layers.Dropout):
    """``keras.layers.Dropout`` with stateless masks; decided when the graph is built.

    Inside ``inference()`` it is the identity, so no conditional enters either graph (a
    conditional would keep XLA and the precision rewrite from fusing across it).
    """

    def call(self, inputs: Any, training: Optional[bool] = None) -> Any:
        """inputs: any float tensor; returns the same shape and dtype."""
        shape = tf.shape(inputs)
        if self.noise_shape is not None:
            shape = tf.stack([s or shape[i] for i, s in enumerate(self.noise_shape)])
        keep = kept(self.name, shape, self.rate)
        if keep is None:
            return tf.identity(inputs)
        return inputs * (tf.cast(keep, inputs.dtype) * (1.0 / (1.0 - self.rate)))


def installed() -> bool:
    """Whether the graph under construction draws its masks from the stateless stream."""
    return _stream.step is not None or not _stream.training


def kept(name: str, shape: Any, rate: float) -> Optional[Any]:
    """What dropout keeps at this step; another mask each time a name asks (shared weights).

    Args:
      name: the layer's.
      shape: int32 [rank], of the tensor to drop from.
      rate: share to drop, 0 <= rate < 1.

    Returns:
      bool of ``shape``, or None where nothing is dropped: at inference, or with a rate of 0.

    Raises:
      RuntimeError: ``install`` was not called.
    """
    if not _stream.training or not rate:
        return None
    if _stream.step is None:
        raise RuntimeError("call amp_xla.models.dropout.install(seed) before building")
    call = _stream.calls[name] = _stream.calls.get(name, -1) + 1
    layer = zlib.crc32(f"{_stream.seed}/{name}/{call}".encode())
    seed = tf.stack([tf.constant(layer, tf.int64), _stream.step])
    if _stream.pieces is None:
        return _kept(shape, seed, rate)
    return _of_whole(shape, seed, rate)


def _of_whole(shape: Any, seed: Any, rate: float) -> Any:
    """The part of the whole batch's mask that lies where this piece does.

    The whole is drawn: random bits are cheap beside what else a step does, and XLA makes only
    those that are used.
    """
    assert _stream.pieces is not None
    rows = _stream.pieces.rows
    places = tf.gather(tf.constant(rows.places), _stream.piece)
    return tf.gather(_kept(tf.concat([[rows.length], shape[1:]], 0), seed, rate), places)


def _kept(shape: Any, seed: Any, rate: float) -> Any:
    """bool of ``shape``, False with the probability ``rate`` (to 1 in 65,536 on TensorFlow 2).

    Random bits are a tenth of a step on a CPU. TensorFlow 2 has them as integers, which serve two
    elements each; 1.15 makes a float of every 32 bits.
    """
    if backend.kind() == "tf1":
        return tf.random.stateless_uniform(shape, seed=seed, dtype=tf.float32) >= rate
    count = tf.reduce_prod(shape)
    bits = tf.random.stateless_uniform(
        [(count + 1) // 2], seed=seed, minval=None, maxval=None, dtype=tf.int32
    )
    numbers = tf.reshape(tf.bitcast(bits, tf.int16), [-1])[:count]
    return tf.reshape(numbers, shape) >= tf.constant(round(rate * 2**16) - 2**15, tf.int16)
