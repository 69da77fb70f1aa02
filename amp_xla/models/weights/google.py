"""Weights in Google's and bert4keras' format, TensorFlow checkpoints, read with TensorFlow."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Dict

import numpy as np

from amp_xla.backend import tf
from amp_xla.models.weights import Stored, Tensors, damaged
from amp_xla.models.weights.pretrained import Pretrained


def pretrained(folder: str) -> Pretrained:
    """Return the ``Pretrained`` of a folder, which may hold a TensorFlow checkpoint."""
    return Pretrained(folder, tensors)


def tensors(prefix: Path) -> Tensors:
    """Return the tensors of a TensorFlow checkpoint; reading a tensor also verifies it.

    Raises:
      DataError: the index is damaged.
    """
    # The readers raise various exceptions, IndexError for a truncated file.
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        shapes = reader.get_variable_to_shape_map()
        dtypes = reader.get_variable_to_dtype_map()
    except Exception as error:
        raise damaged(f"{prefix}.index", error) from None

    return {
        name: Stored(
            tuple(shape), dtypes[name].name, str(prefix), functools.partial(reader.get_tensor, name)
        )
        for name, shape in shapes.items()
    }  # fmt: skip


def write_tensors(prefix: str, values: Dict[str, np.ndarray]) -> None:
    """Write a TensorFlow checkpoint with the arrays ``values``, by name."""
    with tf.Graph().as_default(), tf.Session() as session:
        fed = {name: tf.placeholder(value.dtype, value.shape) for name, value in values.items()}
        save = tf.raw_ops.SaveV2(
            prefix=prefix, tensor_names=list(fed), shape_and_slices=[""] * len(fed),
            tensors=list(fed.values()),
        )  # fmt: skip
        session.run(save, {fed[name]: value for name, value in values.items()})
