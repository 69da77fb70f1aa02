"""Pretrained weights for JAX; TensorFlow's checkpoints are read without TensorFlow.

The format is TensorFlow's ``tensor_bundle``. ``*.index`` is a sorted table as in LevelDB, from the
name of a tensor to a protocol buffer with dtype, shape, offset and CRC-32C. The file
``*.data-00000-of-00001`` has the bytes. Source:
tensorflow/core/util/tensor_bundle and tensorflow/core/lib/io/format.cc.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Dict, Iterator, NamedTuple, Tuple

import google_crc32c
import jax
import jax.numpy as jnp
import numpy as np

from amp_xla.errors import DataError
from amp_xla.jax.bert import Bert, Norm
from amp_xla.models.weights.pretrained import Pretrained
from amp_xla.models.weights.stored import Stored, Tensors, damaged, decoded, piece
from amp_xla.process import regular

_MAGIC = 0xDB4775248B80FB57
# TensorFlow's numbers of dtypes
_DTYPES = {1: "float32", 2: "float64", 3: "int32", 9: "int64", 14: "bfloat16", 19: "float16"}
_TRAILER = 5  # bytes after each block: kind of compression, CRC-32C


class Entry(NamedTuple):
    """Index entry of a tensor: number of its dtype, shape, shard, offset, size, masked CRC-32C."""

    dtype: int
    shape: Tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int


def pretrained(folder: str) -> Pretrained:
    """Return the ``Pretrained`` of a folder, if it is a BERT that the JAX recipe supports.

    Raises:
      DataError: see ``Pretrained``; or the model is not a BERT with GELU.
    """
    opened = Pretrained(folder, tensors)
    config = opened.config
    if config["hidden_act"] != "gelu" or config["model_type"] != "bert":
        raise DataError(
            f"{opened.path}: the JAX recipe supports only model_type bert with hidden_act gelu; "
            f"found: {config['model_type']} with {config['hidden_act']}"
        )
    return opened


def load(model: Bert, folder: str) -> Bert:
    """Return ``model`` with the weights in ``folder``.

    Raises:
      DataError: a file or tensor is missing, damaged or has another shape.
    """
    initial = named(model)
    arrays = pretrained(folder).take({name: leaf.shape for name, leaf in initial.items()})
    values = {id(leaf): jnp.asarray(arrays[name]) for name, leaf in initial.items()}
    return jax.tree_util.tree_map(lambda leaf: values[id(leaf)], model)


def named(model: Bert) -> Dict[str, Any]:
    """Return the arrays of a model by Google's names."""
    embeddings = "bert/embeddings"
    arrays = {
        f"{embeddings}/word_embeddings": model.tokens,
        f"{embeddings}/token_type_embeddings": model.segments,
        f"{embeddings}/position_embeddings": model.positions,
    }
    parts: Dict[str, Any] = {embeddings: model.norm}
    for number, layer in enumerate(model.layers):
        place = f"bert/encoder/layer_{number}"
        parts.update({
            f"{place}/attention/self/query": layer.query,
            f"{place}/attention/self/key": layer.key,
            f"{place}/attention/self/value": layer.value,
            f"{place}/attention/output/dense": layer.output,
            f"{place}/attention/output": layer.attention_norm,
            f"{place}/intermediate/dense": layer.up,
            f"{place}/output/dense": layer.down,
            f"{place}/output": layer.norm,
        })  # fmt: skip
    for name, part in parts.items():
        if isinstance(part, Norm):
            arrays[f"{name}/LayerNorm/gamma"] = part.gamma
            arrays[f"{name}/LayerNorm/beta"] = part.beta
        else:
            arrays[f"{name}/kernel"], arrays[f"{name}/bias"] = part.kernel, part.bias
    return arrays


def tensors(prefix: Path) -> Tensors:
    """Return the tensors of a TensorFlow checkpoint; reading a tensor verifies its checksum.

    Raises:
      DataError: its index is damaged.
    """
    index = prefix.with_name(f"{prefix.name}.index")
    try:
        table = dict(_table(regular.read(index, links=True)))
        shards = dict(_fields(table.pop(b""))).get(1, 1)
        entries = {name.decode(): _entry(value) for name, value in table.items()}
    except (OSError, ValueError, TypeError, KeyError, IndexError, struct.error) as error:
        raise damaged(str(index), error) from None

    def stored(name: str, entry: Entry) -> Stored:
        path = prefix.with_name(f"{prefix.name}.data-{entry.shard:05d}-of-{shards:05d}")

        def read() -> np.ndarray:
            data = piece(path, entry.offset, entry.size)
            if _masked(data) != entry.crc:
                raise ValueError("its bytes do not match their checksum")
            return decoded(data, _DTYPES[entry.dtype]).reshape(entry.shape)

        dtype = _DTYPES.get(entry.dtype, f"dtype number {entry.dtype}")
        return Stored(entry.shape, dtype, str(prefix), read)

    return {name: stored(name, entry) for name, entry in entries.items()}


def _table(data: bytes) -> Iterator[Tuple[bytes, bytes]]:
    """Yield (key, value) of a sorted table, in order."""
    footer = data[-48:]
    if len(footer) < 48 or struct.unpack("<Q", footer[40:])[0] != _MAGIC:
        raise ValueError("not a TensorFlow checkpoint, or truncated")
    _, at = _handle(footer, 0)
    index, _ = _handle(footer, at)
    for _, value in _block(data, index):
        handle, _ = _handle(value, 0)
        yield from _block(data, handle)


def _block(data: bytes, handle: Tuple[int, int]) -> Iterator[Tuple[bytes, bytes]]:
    offset, size = handle
    block = data[offset : offset + size]
    kind = data[offset + size]
    if kind != 0:
        raise ValueError("its index is compressed")
    (crc,) = struct.unpack("<I", data[offset + size + 1 : offset + size + _TRAILER])
    if _masked(block + bytes([kind])) != crc:
        raise ValueError("its index does not match its checksum")
    (restarts,) = struct.unpack("<I", block[-4:])
    end, at, key = len(block) - 4 - 4 * restarts, 0, b""
    while at < end:
        shared, at = _varint(block, at)
        rest, at = _varint(block, at)
        length, at = _varint(block, at)
        key = key[:shared] + block[at : at + rest]
        yield key, block[at + rest : at + rest + length]
        at += rest + length


def _handle(data: bytes, at: int) -> Tuple[Any, int]:
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return (offset, size), at


def _varint(data: bytes, at: int) -> Tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _fields(data: bytes) -> Iterator[Tuple[int, Any]]:
    """Yield (number, value) of a protocol buffer's fields; nested messages as bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        value: Any
        if kind == 0:
            value, at = _varint(data, at)
        elif kind == 2:
            length, at = _varint(data, at)
            value, at = data[at : at + length], at + length
        elif kind == 5:
            (value,), at = struct.unpack("<I", data[at : at + 4]), at + 4
        else:
            raise ValueError(f"field kind {kind} is unknown")
        yield number, value


def _entry(data: bytes) -> Entry:
    fields = dict(_fields(data))
    sizes = (dict(_fields(d)).get(1, 0) for n, d in _fields(fields.get(2, b"")) if n == 2)
    return Entry(fields.get(1, 0), tuple(sizes), *(fields.get(n, 0) for n in (3, 4, 5, 6)))


def _masked(data: bytes) -> int:
    """Return TensorFlow's masked CRC-32C: the CRC rotated, plus a constant."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
