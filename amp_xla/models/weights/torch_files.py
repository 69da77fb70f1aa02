"""PyTorch's files of tensors, read without PyTorch and without running code from the pickle.

There are two formats. Since PyTorch 1.6: a ZIP archive with ``data.pkl`` and a member per storage.
Before: several pickles, followed by the storages. Source: torch/serialization.py.
"""

from __future__ import annotations

import collections
import io
import pickle
import re
import struct
import zipfile
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, NamedTuple, Tuple

import numpy as np

from amp_xla.errors import DataError
from amp_xla.models.weights import Stored, Tensors, damaged, decoded, itemsize, piece
from amp_xla.process import regular

_MAGIC = 0x1950A86A20F9469CFC6C
_DTYPES = {
    "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "DoubleStorage": "float64", "LongStorage": "int64", "IntStorage": "int32",
    "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool",
}  # fmt: skip


class _Storage(NamedTuple):
    key: str
    dtype: str
    numel: int


class _View(NamedTuple):
    """A tensor: part of a storage; ``offset`` and ``stride`` count numbers, not bytes."""

    storage: _Storage
    offset: int
    size: Tuple[int, ...]
    stride: Tuple[int, ...]


def _rebuild_tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> _View:
    if not isinstance(storage, _Storage) or len(size) != len(stride):
        raise ValueError("a tensor without a storage")
    numbers = (offset, *size, *stride)
    if not all(isinstance(n, int) and n >= 0 for n in numbers):
        raise ValueError("a tensor with an impossible shape")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride))
    if 0 not in size and last >= storage.numel:
        raise ValueError("a tensor larger than its storage")
    return _View(storage, offset, tuple(size), tuple(stride))


class _Unpickler(pickle.Unpickler):
    """Unpickler of dictionaries of tensors, which refuses all other classes and functions.

    Args:
      file: open file, positioned at the pickle.
      path: path of the file, for messages.
      storages: storages by key; the unpickler adds those that it reads.
    """

    def __init__(self, file: BinaryIO, path: Path, storages: Dict[str, _Storage]) -> None:
        super().__init__(file, encoding="utf-8")
        self._path, self._storages = path, storages

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        allowed: Dict[Tuple[str, str], Any] = {
            ("collections", "OrderedDict"): collections.OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): lambda *args: _rebuild_tensor(*args),
            ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
        }
        if (module, name) not in allowed:
            raise DataError(
                f"{self._path}: its pickle uses {module}.{name}; allowed: nothing but tensors. "
                "Save the state_dict alone, or as model.safetensors"
            )
        return allowed[module, name]

    def persistent_load(self, saved: Any) -> _Storage:
        kind, dtype, key, _, numel, *view = saved
        if kind != "storage" or dtype not in _DTYPES.values() or any(view):
            raise ValueError("a storage of an unknown kind")
        return self._storages.setdefault(str(key), _Storage(str(key), dtype, int(numel)))


def tensors(path: Path) -> Tensors:
    """Return the tensors of a ``pytorch_model.bin``.

    Raises:
      DataError: the file is damaged, or contains something other than tensors.
    """
    try:
        with regular.opened(path, links=True) as file:
            zipped = file.read(4) == b"PK\x03\x04"
        state, storage = _zipped(path) if zipped else _sequence(path)
        if not isinstance(state, dict) or not all(isinstance(v, _View) for v in state.values()):
            raise DataError(f"{path} does not contain a dictionary of tensors (a state_dict)")
        return {
            str(name): Stored(v.size, v.storage.dtype, str(path), _reader(v, storage))
            for name, v in state.items()
        }
    except DataError:
        raise
    except Exception as error:
        raise damaged(str(path), error) from None


def _reader(view: _View, storage: Callable[[_Storage], bytes]) -> Callable[[], np.ndarray]:
    def read() -> np.ndarray:
        numbers = decoded(storage(view.storage), view.storage.dtype)[view.offset :]
        steps = [step * numbers.itemsize for step in view.stride]
        return np.lib.stride_tricks.as_strided(numbers, view.size, steps, writeable=False)

    return read


def _zipped(path: Path) -> Tuple[Any, Callable[[_Storage], bytes]]:
    with zipfile.ZipFile(str(path)) as archive:
        (pickled,) = [n for n in archive.namelist() if re.fullmatch(r"([^/]+/)?data\.pkl", n)]
        root = pickled[: -len("data.pkl")]
        state = _Unpickler(io.BytesIO(_member(archive, pickled)), path, {}).load()

    def storage(entry: _Storage) -> bytes:
        with zipfile.ZipFile(str(path)) as archive:
            data = _member(archive, f"{root}data/{entry.key}")
        if len(data) != entry.numel * itemsize(entry.dtype):
            raise ValueError(f"{root}data/{entry.key} and its tensor differ in size")
        return data

    return state, storage


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return a member, which PyTorch never compresses; its CRC-32 is verified."""
    if archive.getinfo(name).compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed")
    return archive.read(name)


def _sequence(path: Path) -> Tuple[Any, Callable[[_Storage], bytes]]:
    with open(str(path), "rb") as file:
        storages: Dict[str, _Storage] = {}
        if _Unpickler(file, path, storages).load() != _MAGIC:
            raise DataError(f"{path} is not a PyTorch file; required: a saved state_dict")
        _, _, state, keys = [_Unpickler(file, path, storages).load() for _ in range(4)]
        places: Dict[str, int] = {}
        for key in keys:
            size = storages[key].numel * itemsize(storages[key].dtype)
            (numel,) = struct.unpack("<q", file.read(8))
            if numel != storages[key].numel:
                raise ValueError(f"storage {key} and its tensor differ in size")
            places[key] = file.tell()
            file.seek(size, 1)
        if file.tell() > path.stat().st_size:
            raise ValueError("it is truncated")

    def storage(entry: _Storage) -> bytes:
        return piece(path, places[entry.key], entry.numel * itemsize(entry.dtype))

    return state, storage
