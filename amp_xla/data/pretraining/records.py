"""Shards of packed sequences: TFRecord files of ``tf.train.Example``s that all have one size.

Any TensorFlow program can read them (features ``token_ids`` and ``starts``, see ``FEATURES`` in
docs/pretraining.md). Because the size is fixed, record i lies at ``i * stride``: no index has to
be read, and numpy sees a whole file as an array. TFRecord's checksums (CRC-32C, masked) are
written and verified here, so that worker processes need no TensorFlow; it is imported only for
addresses such as ``gs://``.
"""

from __future__ import annotations

import contextlib
import glob as local_glob
import hashlib
import os
from typing import Any, Iterator, List, Tuple

import google_crc32c
import numpy as np

from amp_xla.errors import DataError

_CRC_MASK_DELTA = np.uint32(0xA282EAD8)


class DamagedShard(DataError):
    """A shard is not what was written; the message names file, record and what to do."""


def remote(path: str) -> bool:
    """True for addresses that only ``tf.io.gfile`` understands."""
    return "://" in str(path)


def _gfile() -> Any:
    from amp_xla import backend

    return backend.tensorflow().io.gfile


@contextlib.contextmanager
def opened(path: str, mode: str = "rb") -> Iterator[Any]:
    """A file, local or remote; ``DataError`` in place of the system's error."""
    try:
        if remote(path):
            with _gfile().GFile(path, mode) as file:
                yield file
        else:
            with open(path, mode) as file:
                yield file
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error


def exists(path: str) -> bool:
    """Whether a file or folder is there."""
    return bool(_gfile().exists(path)) if remote(path) else os.path.exists(path)


def is_folder(path: str) -> bool:
    """Whether ``path`` is a folder."""
    return bool(_gfile().isdir(path)) if remote(path) else os.path.isdir(path)


def size_of(path: str) -> int:
    """Bytes of a file."""
    return int(_gfile().stat(path).length) if remote(path) else os.path.getsize(path)


def sha256(path: str) -> str:
    """Of a file's content, in hexadecimal."""
    found = hashlib.sha256()
    with opened(path) as file:
        for data in iter(lambda: file.read(1 << 20), b""):
            found.update(data)
    return found.hexdigest()


def make_folder(path: str) -> None:
    """Makes a folder and those above it."""
    try:
        _gfile().makedirs(path) if remote(path) else os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error


def matching(pattern: str) -> List[str]:
    """Sorted paths that match a glob; ``**`` crosses folders, locally."""
    found = _gfile().glob(pattern) if remote(pattern) else local_glob.glob(pattern, recursive=True)
    return sorted(found)


def join(folder: str, name: str) -> str:
    """Path of ``name`` in ``folder``."""
    return f"{folder.rstrip('/')}/{name}" if remote(folder) else os.path.join(folder, name)


def write_whole(path: str, data: bytes) -> None:
    """Writes a file under its name only when all of it is on the disk.

    Raises:
      DataError: no room, no permission; nothing is left under ``path`` then.
    """
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        if remote(path):
            with _gfile().GFile(temporary, "wb") as file:
                file.write(data)
            _gfile().rename(temporary, path, overwrite=True)
            return
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except Exception as error:
        with contextlib.suppress(Exception):
            _gfile().remove(temporary) if remote(path) else os.remove(temporary)
        if isinstance(error, OSError):
            raise DataError(f"cannot write {path}: {error.strerror or error}") from error
        raise


class RecordLayout:
    """How a sequence lies in a record.

    Args:
      length: L, tokens a sequence.
      vocab_size: ids below 65,536 take two bytes each, others four.

    Attributes:
      id_dtype: ``uint16`` or ``int32``, little-endian: what ``tf.io.decode_raw`` needs.
      stride: bytes from one record to the next.
    """

    def __init__(self, length: int, vocab_size: int) -> None:
        self.length = length
        self.id_dtype = np.dtype("<u2" if vocab_size <= 1 << 16 else "<i4")
        id_bytes, bit_bytes = length * self.id_dtype.itemsize, -(-length // 8)
        starts = _feature(b"starts", bit_bytes)
        ids = _feature(b"token_ids", id_bytes)
        features = starts + bytes(bit_bytes) + ids + bytes(id_bytes)
        prefix = b"\x0a" + _varint(len(features))
        example = prefix + features
        self._bits_at = len(prefix) + len(starts)
        self._ids_at = self._bits_at + bit_bytes + len(ids)
        self._bit_bytes, self._id_bytes = bit_bytes, id_bytes
        self._size = len(example)
        head = np.frombuffer(np.uint64(self._size).tobytes(), np.uint8)
        self._head = np.concatenate([head, _masked_crc(head[None])[0]])
        self._template = np.frombuffer(example, np.uint8)
        self.stride = len(self._head) + self._size + 4

    def encode(self, token_ids: np.ndarray, starts: np.ndarray) -> bytes:
        """int [N, L] ids and bool [N, L] word starts to the bytes of N records."""
        rows = len(token_ids)
        out = np.empty((rows, self.stride), np.uint8)
        begin = len(self._head)
        out[:, :begin] = self._head
        body = out[:, begin:-4]
        body[:] = self._template
        body[:, self._bits_at : self._bits_at + self._bit_bytes] = np.packbits(starts, axis=1)
        ids = np.ascontiguousarray(token_ids.astype(self.id_dtype)).view(np.uint8)
        body[:, self._ids_at : self._ids_at + self._id_bytes] = ids.reshape(rows, self._id_bytes)
        out[:, -4:] = _masked_crc(body)
        return out.tobytes()

    def decode(self, data: bytes, path: str, first: int) -> Tuple[np.ndarray, np.ndarray]:
        """Bytes of whole records to (int32 [N, L] ids, bool [N, L] word starts), verified.

        Args:
          data: from the shard ``path``, where its first record is number ``first``.

        Raises:
          DamagedShard: a checksum does not fit, or the records are not of this layout.
        """
        records = np.frombuffer(data, np.uint8).reshape(-1, self.stride)
        begin = len(self._head)
        body = records[:, begin:-4]
        wrong = (records[:, :begin] != self._head).any(1)
        wrong |= (records[:, -4:] != _masked_crc(body)).any(1)
        if wrong.any():
            number = first + int(np.flatnonzero(wrong)[0])
            raise DamagedShard(
                f"{path} is damaged: {int(wrong.sum())} of {len(wrong)} records read do not match "
                f"their checksums, the first is record {number}; delete the file and run prepare "
                f"again with the same settings: it writes only what is missing"
            )
        ids = np.ascontiguousarray(body[:, self._ids_at : self._ids_at + self._id_bytes])
        bits = body[:, self._bits_at : self._bits_at + self._bit_bytes]
        starts = np.unpackbits(bits, axis=1)[:, : self.length].astype(bool)
        return ids.view(self.id_dtype).astype(np.int32), starts

    def read(self, path: str, first: int, count: int) -> Tuple[np.ndarray, np.ndarray]:
        """Records ``first`` to ``first + count`` of a shard, verified; as ``decode``."""
        with opened(path) as file:
            file.seek(first * self.stride)
            data = file.read(count * self.stride)
        if len(data) != count * self.stride:
            raise DamagedShard(
                f"{path} is damaged: it ends inside record {first + len(data) // self.stride}; "
                f"delete the file and run prepare again with the same settings"
            )
        return self.decode(data, path, first)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _feature(name: bytes, size: int) -> bytes:
    """Protocol-buffer bytes of one entry of ``Features.feature`` up to its ``size`` raw bytes."""
    value = b"\x0a" + _varint(size)  # BytesList.value
    bytes_list = b"\x0a" + _varint(len(value) + size) + value  # Feature.bytes_list
    entry = b"\x0a" + _varint(len(name)) + name + b"\x12" + _varint(len(bytes_list) + size)
    return b"\x0a" + _varint(len(entry) + len(bytes_list) + size) + entry + bytes_list


def _masked_crc(data: np.ndarray) -> np.ndarray:
    """uint8 [N, bytes] to TFRecord's masked CRC-32C, uint8 [N, 4]."""
    rows, size = data.shape
    whole = data.tobytes()
    each = (google_crc32c.value(whole[i * size : (i + 1) * size]) for i in range(rows))
    crc = np.fromiter(each, np.uint32, rows)
    with np.errstate(over="ignore"):
        masked = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + _CRC_MASK_DELTA
    return masked.astype("<u4").view(np.uint8).reshape(rows, 4)
