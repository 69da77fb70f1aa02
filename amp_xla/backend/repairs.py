"""Repairs of tf-keras 2.17 in graph mode."""

from __future__ import annotations

import functools
from typing import Any, Optional


def repair(tf_keras: Any, public: Any, source: Any) -> None:
    """Replace functions of tf-keras; ``public``: ``tf.keras``; ``source``: tf-keras' backend."""
    _seed_each_variable(source)
    _keep_graph_layers()
    _write_outputs_once(source, tf_keras.backend, public.backend)
    _name_activations(tf_keras, public)


def _seed_each_variable(source: Any) -> None:
    """Make unseeded initializers return different numbers for each variable, as on TensorFlow 1.15.

    In tf-keras an unseeded initializer returns the same numbers at each call. bert4keras uses one
    initializer for the query, key and value kernels of an attention layer: they would start equal.
    """
    generator = source.RandomGenerator
    original = generator._set_rng_type

    def set_rng_type(self: Any, rng_type: Optional[str], **kwargs: Any) -> None:
        if rng_type == generator.RNG_STATELESS and self._seed is None:
            rng_type = generator.RNG_LEGACY_STATEFUL
        original(self, rng_type, **kwargs)

    generator._set_rng_type = set_rng_type
    from tf_keras.src.initializers import initializers

    initializers.Initializer._warn_reuse = lambda self: None


def _keep_graph_layers() -> None:
    """Keep new layers in graph mode, also while a SavedModel is written.

    While it is written, functions are traced, and tf-keras then believes that execution is eager.
    If bert4keras' attention creates a Dropout layer at that time, tf-keras changes the base class
    of all Dropout layers, and later calls of them fail.
    """
    from tf_keras.src.utils import version_utils

    version_utils.should_use_v2 = lambda: False


def _write_outputs_once(*backends: Any) -> None:
    """Repair the training of recurrent layers that return only their last output.

    For such layers, tf-keras writes the outputs of all steps to one index, which is an error in
    TensorFlow 1's control flow. The repair gives each output an index.
    """
    original = backends[0].rnn

    @functools.wraps(original)
    def rnn(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, "return_all_outputs": True})

    for backend in backends:
        backend.rnn = rnn


def _name_activations(tf_keras: Any, public: Any) -> None:
    """Make Keras save a registered activation, such as bert4keras' gelu, by its name.

    tf-keras saves a dictionary instead, which it cannot load from HDF5.
    """
    from tf_keras.src import activations as source

    original = source.serialize

    @functools.wraps(original)
    def serialize(activation: Any, use_legacy_format: bool = False) -> Any:
        name = getattr(activation, "__name__", None)
        if tf_keras.utils.get_custom_objects().get(name) is activation:
            return name
        return original(activation, use_legacy_format)

    for activations in (source, tf_keras.activations, public.activations):
        activations.serialize = serialize
