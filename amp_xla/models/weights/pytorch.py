"""PyTorch's files of tensors, read without PyTorch and without running code from the pickle.

They have two formats. Since PyTorch 1.6: a ZIP archive with ``data.pkl`` and a member per storage.
Before 1.6: several pickles, followed by the storages. Source: torch/serialization.py.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
import re
import struct
import zipfile
from pathlib import Path
from typing import Any, Callable, ClassVar, Dict, NamedTuple, Sequence, Tuple

import numpy as np

from amp_xla.errors import DataError
from amp_xla.models.weights import Stored, Tensors, damaged, decoded, product
from amp_xla.process import regular

_MAGIC = 0x1950A86A20F9469CFC6C
_STORAGES = {
    "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "DoubleStorage": "float64", "LongStorage": "int64", "IntStorage": "int32",
    "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool",
}  # fmt: skip
# The instructions in PyTorch's pickles
_INSTRUCTIONS = """PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT
BINUNICODE SHORT_BINUNICODE BINUNICODE8 EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND
APPENDS EMPTY_DICT SETITEM SETITEMS BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET GLOBAL
STACK_GLOBAL REDUCE BUILD BINPERSID"""
_LARGEST_PICKLE = 1 << 20  # bytes; that of a BERT-large has 40,000
_LARGEST_LIST = 4 << 20  # bytes of a ZIP archive's list of members
_SMALL, _MOST_UNUSED = 1 << 24, 16  # bytes allowed per storage, and more per tensor element
_MOST_ARGUMENTS = 8


class _Storage(NamedTuple):
    key: str
    dtype: str
    numel: int

    @property
    def bytes(self) -> int:
        return self.numel * (2 if self.dtype == "bfloat16" else np.dtype(self.dtype).itemsize)


class _View(NamedTuple):
    """A tensor: part of a storage; ``offset`` and ``stride`` count numbers, not bytes."""

    storage: _Storage
    offset: int
    size: Tuple[int, ...]
    stride: Tuple[int, ...]

    @property
    def span(self) -> int:
        """Number of elements in the storage from the tensor's first to its last, both included."""
        steps = ((n - 1) * step for n, step in zip(self.size, self.stride))
        return 0 if 0 in self.size else sum(steps) + 1


def _rebuild_tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> _View:
    if not isinstance(storage, _Storage) or len(size) != len(stride):
        raise ValueError("a tensor without a storage")
    numbers = product(size)
    if not all(type(n) is int and n >= 0 for n in (offset, *size, *stride)):
        raise ValueError("a tensor with an impossible shape")
    view = _View(storage, offset, tuple(size), tuple(stride))
    if max(offset + view.span, numbers) > storage.numel:
        raise ValueError("a tensor larger than its storage")
    return view


def _dictionary(keys: Sequence[Any], values: Sequence[Any]) -> Dict[Any, Any]:
    for key in keys:  # others, and large numbers with the same hash, may take for ever
        if type(key) is not str and not (type(key) is int and abs(key) < 2**32):
            raise ValueError("a key that is neither text nor a small number")
    return dict(zip(keys, values))


# Module and name of a function or class in PyTorch's pickles -> what is used in its place
_ALLOWED: Dict[Tuple[str, str], Any] = {
    **{("torch", name): dtype for name, dtype in _STORAGES.items()},
    ("collections", "OrderedDict"): dict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
}
_Interpreter: Any = pickle._Unpickler


class _Unpickler(_Interpreter):
    """Unpickler of dictionaries of tensors, which refuses all other classes and functions.

    It accepts only the instructions that PyTorch writes. This is why its base class is the
    standard library's unpickler written in Python. With the one written in C, a hostile file could
    make a list of any length or hash any object.

    The storages of the tensors are added to ``storages``, by key; ``path`` is for messages.
    """

    dispatch: ClassVar[Dict[int, Any]] = {
        code: function
        for code, function in _Interpreter.dispatch.items()
        if code in [getattr(pickle, name)[0] for name in _INSTRUCTIONS.split()]
    }

    def __init__(self, data: io.BytesIO, path: Path, storages: Dict[str, _Storage]) -> None:
        super().__init__(data)
        self._path, self._storages = path, storages

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise DataError(
                f"{self._path}: its pickle uses {module}.{name}; allowed: nothing but tensors. "
                "Save the state_dict alone, or as model.safetensors"
            )
        return _ALLOWED[module, name]

    def persistent_load(self, saved: Any) -> _Storage:
        kind, dtype, key, _, numel, *view = saved[:_MOST_ARGUMENTS]
        if kind != "storage" or dtype not in _STORAGES.values() or any(view):
            raise ValueError("a storage of an unknown kind")
        if type(key) not in (str, int) or type(numel) is not int or numel < 0:
            raise ValueError("a storage without a name or a size")
        storage = _Storage(str(key), dtype, numel)
        if self._storages.setdefault(storage.key, storage) != storage:
            raise ValueError(f"storage {key} has two types or sizes")
        return storage

    def _set_items(self) -> None:
        items = self.pop_mark()
        self.stack[-1].update(_dictionary(items[::2], items[1::2]))

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.stack[-1].update(_dictionary([key], [value]))

    def _call(self) -> None:
        arguments = self.stack.pop()
        if len(arguments) > _MOST_ARGUMENTS or (self.stack[-1] is dict and arguments):
            raise ValueError("a call with other arguments than PyTorch's")
        self.stack[-1] = self.stack[-1](*arguments)

    def _skip_state(self) -> None:  # versions of the modules
        self.stack.pop()

    dispatch[pickle.SETITEMS[0]] = _set_items
    dispatch[pickle.SETITEM[0]] = _set_item
    dispatch[pickle.REDUCE[0]] = _call
    dispatch[pickle.BUILD[0]] = _skip_state


def pytorch(path: Path) -> Tensors:
    """Return the tensors of a ``pytorch_model.bin``.

    Raises:
      DataError: the file is damaged, or contains something other than tensors.
    """
    try:
        with regular.opened(path, links=True) as file:
            zipped = file.read(4) == b"PK\x03\x04"
        storages: Dict[str, _Storage] = {}
        state, content = (_zipped if zipped else _sequence)(path, storages)
        if not isinstance(state, dict) or not all(isinstance(v, _View) for v in state.values()):
            raise DataError(f"{path} does not contain a dictionary of tensors (a state_dict)")
        sizes = [storage.bytes for storage in storages.values()]
        most = _SMALL + _MOST_UNUSED * sum(product(view.size) for view in state.values())
        if sum(sizes) > path.stat().st_size or max(sizes, default=0) > most:
            raise ValueError("it is truncated, or far larger than its tensors")
        return {
            str(name): Stored(v.size, v.storage.dtype, str(path), _reader(v, content))
            for name, v in state.items()
        }
    except DataError:
        raise
    except Exception as error:
        raise damaged(str(path), error) from None


def _reader(view: _View, content: Callable[[str], bytes]) -> Callable[[], np.ndarray]:
    def read() -> np.ndarray:
        numbers = decoded(content(view.storage.key), view.storage.dtype)
        size = numbers.itemsize
        steps = [step * size for step in view.stride]
        # NumPy checks that the storage is as large as the tensor.
        return np.ndarray(view.size, numbers.dtype, numbers, view.offset * size, steps)

    return read


class _File(io.FileIO):
    """A ZIP archive; refuses a large list of members, which ``zipfile`` would load into memory."""

    def __init__(self, path: Path) -> None:
        super().__init__(regular.descriptor(str(path), os.O_RDONLY, links=True))

    def read(self, size: int = -1) -> bytes:  # type: ignore[override]
        if size > _LARGEST_LIST:
            raise ValueError("its list of archive members is too large")
        return super().read(size) or b""


def _zipped(path: Path, storages: Dict[str, _Storage]) -> Tuple[Any, Callable[[str], bytes]]:
    with _File(path) as file, zipfile.ZipFile(file) as archive:
        (pickled,) = [n for n in archive.namelist() if re.fullmatch(r"([^/]+/)?data\.pkl", n)]
        if archive.getinfo(pickled).file_size > _LARGEST_PICKLE:
            raise ValueError("its pickle is too large")
        state = _Unpickler(io.BytesIO(archive.read(pickled)), path, storages).load()
        root = pickled[: -len("data.pkl")]
        members = {key: archive.getinfo(f"{root}data/{key}") for key in storages}
    for key, member in members.items():
        if member.compress_type != zipfile.ZIP_STORED:  # PyTorch never compresses
            raise ValueError(f"{member.filename} is compressed")
        if member.file_size != storages[key].bytes:
            raise ValueError(f"{member.filename} and its tensor differ in size")

    @functools.lru_cache(maxsize=1)  # several tensors may share a storage
    def content(key: str) -> bytes:
        with _File(path) as file, zipfile.ZipFile(file) as archive:
            member = archive.open(members[key])  # verifies the CRC-32
            return b"".join(iter(lambda: member.read(_LARGEST_PICKLE), b""))

    return state, content


def _sequence(path: Path, storages: Dict[str, _Storage]) -> Tuple[Any, Callable[[str], bytes]]:
    with regular.opened(path, links=True) as file:
        pickles = io.BytesIO(file.read(_LARGEST_PICKLE))
        if _Unpickler(pickles, path, storages).load() != _MAGIC:
            raise DataError(f"{path} is not a PyTorch file; required: a saved state_dict")
        _, _, state, keys = [_Unpickler(pickles, path, storages).load() for _ in range(4)]
        places: Dict[str, int] = {}
        file.seek(pickles.tell())
        for key in _dictionary(keys, keys):
            (numel,) = struct.unpack("<q", file.read(8))
            if numel != storages[key].numel:
                raise ValueError(f"storage {key} and its tensor differ in size")
            places[key] = file.tell()
            file.seek(storages[key].bytes, 1)

    def content(key: str) -> bytes:
        with regular.opened(path, links=True) as file:
            file.seek(places[key])
            return file.read(storages[key].bytes)

    return state, content
