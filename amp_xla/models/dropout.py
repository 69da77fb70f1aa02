"""Dropout whose masks are a function of (seed, step, layer, rank).

Keras' dropout keeps its state inside stateful kernels, which die with the process, so a resumed
run cannot repeat the masks of the run it continues. Here ``keras.layers.Dropout`` draws from
TensorFlow's stateless generator, and the number of the step is fed to the graph.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
import zlib
from typing import Any, Dict, Iterator, NamedTuple, Optional

from amp_xla import backend
from amp_xla.backend import K, keras, tf
from amp_xla.graph.training_graph import DROPOUT_STEP
from amp_xla.process.world import world

_training = True  # False inside ``inference()``


class _Stream(NamedTuple):
    """State of a graph's masks: seed, step, and the number of calls of each layer."""

    seed: int
    step: Any
    calls: Dict[str, int]


def install(seed: int) -> Any:
    """Prepare the current graph for training with stateless dropout masks.

    Returns:
      int64 scalar placeholder for the number of the micro-batch.
    """
    step = tf.placeholder(tf.int64, [], name=DROPOUT_STEP)
    tf.get_default_graph()._amp_xla_dropout = _Stream(seed, step, {})
    make_repeatable()
    _set_learning_phase(1)
    return step


def _set_learning_phase(value: int) -> None:
    """Set Keras' flag without tf-keras' warning, which concerns eager execution only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        K.set_learning_phase(value)


@contextlib.contextmanager
def inference() -> Iterator[None]:
    """Call layers in inference mode within the block, and in the previous mode after it.

    The mode adds no conditional to the graph, which would keep XLA and AMP from fusing.
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
    """Build the output of a model in inference mode; ``inputs``: None = its own placeholders."""
    with inference():
        return model(model.inputs if inputs is None else inputs)


@functools.lru_cache(maxsize=None)
def make_repeatable() -> None:
    """Replace the method ``call`` of ``keras.layers.Dropout`` with one that draws stateless masks.

    A mask is a function of the layer and ``step_input``. Keras' learning phase turns dropout on.
    """

    # Keras inspects the names of the arguments.
    def call(self: Any, inputs: Any, training: Any = None) -> Any:
        training = K.learning_phase() if training is None else training
        if not self.rate or (isinstance(training, int) and not training):
            return tf.identity(inputs)
        seed = _seed(self.name)

        def dropped() -> Any:
            shape = self._get_noise_shape(inputs)
            keep = _mask(tf.shape(inputs) if shape is None else shape, seed, self.rate)
            return inputs * (tf.cast(keep, inputs.dtype) * (1.0 / (1.0 - self.rate)))

        output = K.in_train_phase(dropped, lambda: tf.identity(inputs), training)
        output.set_shape(inputs.shape)
        return output

    keras.layers.Dropout.call = call


def step_input() -> Any:
    """Return the placeholder of the step that the graph's masks depend on, an int64 scalar.

    Without ``install`` its default is a random number in each run of the session.
    """
    return _stream().step


def keep_mask(name: str, shape: Any, rate: float) -> Any:
    """Return a bool mask, True for elements to keep; two calls for a layer give different ones.

    Args:
      name: name of the layer.
      shape: shape of the mask, int32 [rank].
      rate: share of elements to drop, 0 < rate < 1.
    """
    return _mask(shape, _seed(name), rate)


def _stream() -> _Stream:
    graph = tf.get_default_graph()
    if not hasattr(graph, "_amp_xla_dropout"):
        with graph.as_default(), tf.control_dependencies(None), tf.name_scope(None):
            default = tf.random.uniform([], maxval=2**62, dtype=tf.int64, name=f"{DROPOUT_STEP}s")
            step = tf.placeholder_with_default(default, [], name=DROPOUT_STEP)
            graph._amp_xla_dropout = _Stream(0, step, {})
    stream: _Stream = graph._amp_xla_dropout
    return stream


def _seed(name: str) -> Any:
    """Count a call of a layer on this rank; return the seed of its masks, int64 [2]."""
    stream = _stream()
    call = stream.calls[name] = stream.calls.get(name, -1) + 1
    rank = f"/rank {world().rank}" if world().rank else ""
    number = zlib.crc32(f"{stream.seed}/{name}/{call}{rank}".encode())
    return tf.stack([tf.constant(number, tf.int64), stream.step])


def _mask(shape: Any, seed: Any, rate: float) -> Any:
    """Return bool of ``shape``, False with probability ``rate`` (rounded on TensorFlow 2).

    Random bits take a tenth of a step on a CPU. TensorFlow 2 draws a 32-bit integer for two
    elements, so ``rate`` is rounded to 16 bits; 1.15 can only draw a float per element.
    """
    if backend.kind() == "tf1":
        return tf.random.stateless_uniform(shape, seed=seed, dtype=tf.float32) >= rate
    count = tf.reduce_prod(shape)
    bits = tf.random.stateless_uniform(
        [(count + 1) // 2], seed=seed, minval=None, maxval=None, dtype=tf.int32
    )
    numbers = tf.reshape(tf.bitcast(bits, tf.int16), [-1])[:count]
    return tf.reshape(numbers, shape) >= tf.constant(round(rate * 2**16) - 2**15, tf.int16)
