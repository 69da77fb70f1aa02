"""A BERT's weights from a checkpoint in Google's format, read without TensorFlow.

The format (TensorFlow's ``tensor_bundle``): ``*.index`` is a sorted table of LevelDB's kind, tensor
name -> a protocol buffer with dtype, shape, offset and CRC-32C; ``*.data-00000-of-00001`` holds the
bytes. Source: tensorflow/core/util/tensor_bundle and tensorflow/core/lib/io/format.cc.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

import google_crc32c
import jax
import jax.numpy as jnp
import numpy as np

from amp_xla.errors import AmpXlaError
from amp_xla.jax.bert import Bert, Shape

CONFIG = "bert_config.json"
_MAGIC = 0xDB4775248B80FB57
_FLOAT = 1  # TensorFlow's number of float32
_TRAILER = 5  # behind every block: kind of compression, CRC-32C


class WeightsError(AmpXlaError):
    """Weights that cannot be used; the message names file, tensor, what was found and needed."""


class Entry(NamedTuple):
    """Index entry of a tensor: number of its dtype, shape, shard, offset, size, masked CRC-32C."""

    dtype: int
    shape: Tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int


def read_config(folder: str) -> Dict[str, Any]:
    """Return ``bert_config.json`` of a folder.

    Raises:
      WeightsError: no such file, no JSON, a size is missing, or another activation than GELU.
    """
    path = Path(folder) / CONFIG
    try:
        config = json.loads(path.read_bytes().decode("utf-8-sig"))
        shape = Shape.of(config)
    except (OSError, ValueError, TypeError) as error:
        raise WeightsError(f"cannot use {path}: {error}") from None
    if shape.hidden_size % shape.num_attention_heads:
        raise WeightsError(
            f"{path}: num_attention_heads {shape.num_attention_heads} does not divide "
            f"hidden_size {shape.hidden_size}"
        )
    if config.get("hidden_act", "gelu") != "gelu" or config.get("embedding_size"):
        raise WeightsError(f"{path}: the JAX recipe has BERT with gelu, and no other kind")
    return dict(config)


def check_sizes(folder: str, config: Dict[str, Any], vocab_size: int, length: int) -> None:
    """Refuse a vocabulary or sequences for which a BERT has too few embeddings.

    Raises:
      WeightsError: naming what is too few.
    """
    shape, path = Shape.of(config), Path(folder) / CONFIG
    if shape.max_position_embeddings < length:
        raise WeightsError(
            f"{path} has max_position_embeddings {shape.max_position_embeddings}, too few for "
            f"--max-length {length}"
        )
    if shape.vocab_size < vocab_size:
        raise WeightsError(
            f"{path} has vocab_size {shape.vocab_size:,}, the vocabulary {vocab_size:,} tokens"
        )


def load(model: Bert, folder: str) -> Bert:
    """Return ``model`` with the weights of the checkpoint in ``folder``.

    Raises:
      WeightsError: a file or tensor is missing, damaged or has another shape.
    """
    tensors = Tensors(folder)

    def dense(name: str) -> List[Any]:
        return [f"{name}/kernel", f"{name}/bias"]

    def norm(name: str) -> List[Any]:
        return [f"{name}/LayerNorm/gamma", f"{name}/LayerNorm/beta"]

    embeddings = "bert/embeddings"
    names = [
        f"{embeddings}/{kind}_embeddings" for kind in ("word", "token_type", "position")
    ] + norm(embeddings)
    places = [model.tokens, model.segments, model.positions, model.norm.gamma, model.norm.beta]
    for number, layer in enumerate(model.layers):
        at = f"bert/encoder/layer_{number}"
        parts = [layer.query, layer.key, layer.value, layer.output, layer.up, layer.down]
        kinds = [f"attention/self/{kind}" for kind in ("query", "key", "value")]
        kinds += ["attention/output/dense", "intermediate/dense", "output/dense"]
        for part, kind in zip(parts, kinds):
            names += dense(f"{at}/{kind}")
            places += [part.kernel, part.bias]
        for part, kind in ((layer.attention_norm, "attention/output"), (layer.norm, "output")):
            names += norm(f"{at}/{kind}")
            places += [part.gamma, part.beta]
    values = {
        id(place): jnp.asarray(tensors.read(n, place.shape)) for n, place in zip(names, places)
    }
    return jax.tree_util.tree_map(lambda leaf: values[id(leaf)], model)


class Tensors:
    """The checkpoint in a folder.

    Raises:
      WeightsError: there is none, more than one, or its index is damaged.
    """

    def __init__(self, folder: str) -> None:
        indexes = sorted(Path(folder).glob("*.index"))
        if len(indexes) != 1:
            names = ", ".join(p.name for p in indexes) or "none"
            raise WeightsError(f"{folder} must hold one checkpoint (*.index); found: {names}")
        self._index = indexes[0]
        try:
            table = dict(_table(self._index.read_bytes()))
            self._shards = dict(_fields(table.pop(b""))).get(1, 1)
            self.entries = {name.decode(): _entry(value) for name, value in table.items()}
        except (OSError, ValueError, KeyError, IndexError, struct.error) as error:
            raise WeightsError(f"{self._index} is damaged: {error}") from None

    def read(self, name: str, shape: Tuple[int, ...]) -> np.ndarray:
        """Read a float32 tensor and verify its checksum.

        Raises:
          WeightsError: it is missing, damaged, or has another shape or dtype.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise WeightsError(f"{self._index} has no tensor {name}")
        if entry.shape != tuple(shape) or entry.dtype != _FLOAT:
            raise WeightsError(
                f"{self._index}: {name} is of shape {list(entry.shape)} and TensorFlow's dtype "
                f"number {entry.dtype}; wanted {list(shape)} in float32"
            )
        path = self._index.with_suffix(f".data-{entry.shard:05d}-of-{self._shards:05d}")
        try:
            with open(path, "rb") as file:
                file.seek(entry.offset)
                data = file.read(entry.size)
        except OSError as error:
            raise WeightsError(f"cannot read {path}: {error.strerror}") from None
        if len(data) != entry.size or _masked(data) != entry.crc:
            raise WeightsError(f"{path}: {name} is damaged: its bytes do not match their checksum")
        return np.frombuffer(data, "<f4").reshape(shape)


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
    sizes = [dict(_fields(d)).get(1, 0) for n, d in _fields(fields.get(2, b"")) if n == 2]
    dtype, *rest = (fields.get(n, 0) for n in (1, 3, 4, 5, 6))
    return Entry(dtype, tuple(sizes), *rest)


def _masked(data: bytes) -> int:
    """Return TensorFlow's masked CRC-32C: rotated, plus a constant."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
