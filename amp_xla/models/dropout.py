"""Dropout whose masks are a function of (seed, step, layer, rank).

Keras' dropout keeps its state inside stateful kernels, which die with the process, so a resumed
run cannot repeat the masks of the run it continues. Here ``keras.layers.Dropout`` draws from
TensorFlow's stateless generator, and the number of the step is fed to the graph. If XLA compiles
the graph, an integer hash replaces the generator. XLA would write the generator's numbers to memory
and read them twice. The hash is so cheap that XLA computes it again in the backward pass instead.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import warnings
import zlib
from typing import Any, Dict, Iterator, NamedTuple, Optional

import numpy as np

from amp_xla import backend
from amp_xla.backend import K, configuring, keras, tf
from amp_xla.graph.training_graph import DROPOUT_STEP
from amp_xla.process.world import world

MASKS, HASH, RANDOM = "dropout masks", "hash", "random"  # name in checkpoints, and its values
_training = True  # False inside ``inference()``


class _Stream(NamedTuple):
    """State of a graph's masks: what ``install`` sets, and how often each layer was called."""

    seed: int
    step: Any
    hashed: Optional[bool]
    calls: Dict[str, int]


def install(seed: int, hashed: Optional[bool] = None) -> Any:
    """Prepare the current graph for training with stateless dropout masks.

    Args:
      hashed: True = masks from the hash, False = from the generator; None = True if XLA is on.

    Returns:
      int64 scalar placeholder for the number of the micro-batch.
    """
    step = tf.placeholder(tf.int64, [], name=DROPOUT_STEP)
    tf.get_default_graph()._amp_xla_dropout = _Stream(seed, step, hashed, {})
    make_repeatable()
    _set_learning_phase(1)
    return step


def _set_learning_phase(value: int) -> None:
    """Set Keras' learning phase without tf-keras' warning, which concerns eager execution only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        K.set_learning_phase(value)


@contextlib.contextmanager
def inference() -> Iterator[None]:
    """Call layers in inference mode within the block, and in the previous mode after it.

    The learning phase becomes 0, so the graph gets no conditionals, which hinder XLA's fusion.
    """
    global _training
    before, _training = _training, False
    _set_learning_phase(0)
    try:
        yield
    finally:
        _training = before
        _set_learning_phase(int(before))


def without(model: Any, inputs: Optional[Any] = None) -> Any:
    """Build a model's output in inference mode; ``inputs``: None = the model's own inputs."""
    with inference():
        return model(model.inputs if inputs is None else inputs)


@functools.lru_cache(maxsize=None)
def make_repeatable() -> None:
    """Make ``keras.layers.Dropout`` use stateless masks; as before, it drops only in training."""

    # Keras inspects the names of the arguments.
    def call(self: Any, inputs: Any, training: Any = None) -> Any:
        training = K.learning_phase() if training is None else training
        if not self.rate or (isinstance(training, int) and not training):
            return tf.identity(inputs)

        def dropped(always: Any = True) -> Any:
            shape = self._get_noise_shape(inputs)
            keep = keep_mask(self.name, tf.shape(inputs) if shape is None else shape, self.rate)
            factor: Any = tf.constant(1.0 / (1.0 - self.rate), inputs.dtype)
            if always is not True:
                keep = tf.logical_or(keep, ~always)
                factor = tf.where(always, factor, tf.ones_like(factor))
            return inputs * (tf.cast(keep, inputs.dtype) * factor)

        if configuring.compiles() and tf.is_tensor(training):
            # XLA fuses operations around the choice of a mask, but not around a conditional.
            output = dropped(tf.cast(training, tf.bool))
        else:
            output = K.in_train_phase(dropped, lambda: tf.identity(inputs), training)
        output.set_shape(inputs.shape)
        return output

    keras.layers.Dropout.call = call


def step_input() -> Any:
    """Return the placeholder of the step number on which the graph's masks depend, int64 scalar.

    Without ``install``, it has a default: a new random number whenever the session runs.
    """
    return _stream().step


def keep_mask(name: str, shape: Any, rate: float) -> Any:
    """Return a bool mask, True for elements to keep; each call for a layer gives another mask.

    Args:
      shape: shape of the mask, int32 [number of dimensions].
      rate: share of elements to drop, 0 < rate < 1.
    """
    hashed = kind() == HASH
    # The first mask decides for all: ``--xla auto`` may choose after a recipe has built its model.
    tf.get_default_graph()._amp_xla_dropout = _stream()._replace(hashed=hashed)
    return (_hashed if hashed else _random)(shape, _seed(name), rate)


def kind() -> str:
    """Return how the current graph makes its masks; a resumed run must make them the same way."""
    hashed = _stream().hashed
    return HASH if (configuring.compiles() if hashed is None else hashed) else RANDOM


def _stream() -> _Stream:
    graph = tf.get_default_graph()
    if not hasattr(graph, "_amp_xla_dropout"):
        with graph.as_default(), tf.control_dependencies(None), tf.name_scope(None):
            default = tf.random.uniform([], maxval=2**62, dtype=tf.int64, name=f"{DROPOUT_STEP}s")
            step = tf.placeholder_with_default(default, [], name=DROPOUT_STEP)
            graph._amp_xla_dropout = _Stream(0, step, None, {})
    stream: _Stream = graph._amp_xla_dropout
    return stream


def _seed(name: str) -> bytes:
    """Count a call of a layer on this rank; return the seed of the call's masks."""
    stream = _stream()
    call = stream.calls[name] = stream.calls.get(name, -1) + 1
    rank = f"/rank {world().rank}" if world().rank else ""
    return f"{stream.seed}/{name}/{call}{rank}".encode()


def _random(shape: Any, text: bytes, rate: float) -> Any:
    """Return a mask from TensorFlow's generator; ``rate`` is rounded on TensorFlow 2.

    Drawing takes a tenth of a step's time on a CPU. TensorFlow 2 draws one 32-bit integer per two
    elements, so ``rate`` is rounded to 16 bits; 1.15 can only draw a float per element.
    """
    seed = tf.stack([tf.constant(zlib.crc32(text), tf.int64), _stream().step])
    if backend.kind() == "tf1":
        return tf.random.stateless_uniform(shape, seed=seed, dtype=tf.float32) >= rate
    count = tf.reduce_prod(shape)
    bits = tf.random.stateless_uniform(
        [(count + 1) // 2], seed=seed, minval=None, maxval=None, dtype=tf.int32
    )
    numbers = tf.reshape(tf.bitcast(bits, tf.int16), [-1])[:count]
    return tf.reshape(numbers, shape) >= tf.constant(round(rate * 2**16) - 2**15, tf.int16)


def _hashed(shape: Any, text: bytes, rate: float) -> Any:
    """Return a mask: a hash of each element's number, with two keys that depend on layer and step.

    With one key, masks would be permutations of one another. int32 replaces uint32, which
    TensorFlow 1.15 cannot multiply. Source of the hash: Chris Wellons' triple32,
    https://nullprogram.com/blog/2018/07/31, without the last step, which changes low bits only.
    """
    step = tf.cast(_stream().step, tf.int32)
    constants = np.frombuffer(hashlib.sha256(text).digest()[:8], "<i4")
    keys = step * _int32([0x9E3779B9, 0xC2B2AE35]) + constants
    x = tf.bitwise.bitwise_xor(tf.reshape(tf.range(tf.reduce_prod(shape)), shape), keys[0])
    for shift, factor, key in ((17, 0xED5AD4BB, keys[1]), (11, 0xAC4C1B51, 0), (15, 0x31848BAB, 0)):
        high = tf.bitwise.bitwise_and(tf.bitwise.right_shift(x, shift), 2 ** (32 - shift) - 1)
        x = tf.bitwise.bitwise_xor(x, high) * _int32(factor) + key
    return x >= _int32(round(rate * 2**32) - 2**31)


def _int32(numbers: Any) -> Any:
    """Return the bits of unsigned numbers as int32."""
    return np.array(numbers, np.int64).astype(np.int32)
