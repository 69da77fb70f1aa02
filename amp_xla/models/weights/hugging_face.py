"""Tensors of Hugging Face folders, and their names in TensorFlow checkpoints.

Rules translate the names in Google's checkpoints, which bert4keras uses, to those in
``model.safetensors`` and ``pytorch_model.bin``; matrices of linear layers are transposed. PyTorch's
files are read without PyTorch and without running code from the pickle. They have two formats.
Since PyTorch 1.6: a ZIP archive with ``data.pkl`` and a member per storage. Before: several
pickles, followed by the storages. Source: torch/serialization.py.
"""

from __future__ import annotations

import collections
import functools
import io
import operator
import pickle
import re
import struct
import zipfile
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

import numpy as np

from amp_xla.data.text.vocabulary import json_file
from amp_xla.errors import DataError
from amp_xla.models.weights import Stored, Tensors, damaged, decoded, itemsize, piece
from amp_xla.process import json_files, regular

_DTYPES = {
    "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_MAGIC = 0x1950A86A20F9469CFC6C
_STORAGES = {
    "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "DoubleStorage": "float64", "LongStorage": "int64", "IntStorage": "int32",
    "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool",
}  # fmt: skip
OWN_HEAD = ("electra", "roformer", "roformer_v2")  # their classifiers have a dense layer, no pooler
EMBEDDINGS = "embeddings.word_embeddings.weight"
# Google's name -> Hugging Face's. All rules apply, in this order.
_ALBERT = "encoder/albert_layer_groups/0/albert_layers/0"
_RULES = (
    (r"^(bert|electra)/", ""),
    (r"^encoder/transformer/group_0/inner_group_0/", f"{_ALBERT}/"),
    (r"/attention_1/self/", "/attention/"),
    (r"/attention_1/output/dense/", "/attention/dense/"),
    (rf"^{_ALBERT}/LayerNorm/", f"{_ALBERT}/attention/LayerNorm/"),
    (r"/LayerNorm_1/", "/full_layer_layer_norm/"),
    (r"/ffn_1/intermediate/output/dense/", "/ffn_output/"),
    (r"/ffn_1/intermediate/dense/", "/ffn/"),
    (r"/layer_(\d+)/", r"/layer/\1/"),
    (r"^cls/predictions/output_bias$", "cls/predictions/bias"),
    (r"^cls/seq_relationship/output_(weight|bias)s?$", r"cls/seq_relationship/\1"),
    (r"^discriminator_predictions/dense_1/", "discriminator_predictions/dense_prediction/"),
    (r"_embeddings$", "_embeddings/weight"),
    (r"/(kernel|gamma)$", "/weight"),
    (r"/beta$", "/bias"),
    (r"/", "."),
)
# The same for the heads of an ALBERT; these apply first.
_ALBERT_HEADS = (
    (r"^cls/predictions/(transform/)?", "predictions/"),
    (r"^predictions/output_bias$", "predictions/bias"),
    (r"^cls/seq_relationship/output_(weight|bias)s?$", r"sop_classifier/classifier/\1"),
    (r"^bert/pooler/dense/", "bert/pooler/"),
)


def tensors(folder: Path) -> Optional[Tensors]:
    """Return the tensors in a folder by name; None if it has no file of weights.

    PyTorch's old names of LayerNorm's tensors, gamma and beta, become weight and bias.

    Raises:
      DataError: a file is damaged or missing, or contains something other than tensors.
    """
    for name, read in (
        ("model.safetensors", safetensors), ("pytorch_model.bin", pytorch)
    ):  # fmt: skip
        index = folder / f"{name}.index.json"
        if (folder / name).is_file() or index.is_file():
            parts = [name] if (folder / name).is_file() else _parts(index)
            return {
                re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", key)): tensor
                for part in parts
                for key, tensor in read(folder / part).items()
            }
    return None


def _parts(index: Path) -> List[str]:
    """Return the names of the files in an index of weights in several parts."""
    try:
        places = json_file(str(index))["weight_map"].values()
        parts = sorted({Path(place).name for place in places})
    except Exception as error:
        raise damaged(str(index), error) from None
    missing = [part for part in parts if not (index.parent / part).is_file()]
    if missing:
        raise DataError(f"{index} names {missing[0]}, which is not in {index.parent}")
    return parts


def spelling(names: Iterable[str], family: str, source: str) -> Callable[[str], str]:
    """Return a function from Google's name of a tensor to its name in ``names``.

    Raises:
      DataError: ``names`` do not belong to exactly one model.
    """
    models = sorted(n[: -len(EMBEDDINGS)] for n in names if n.endswith(EMBEDDINGS))
    if len(models) != 1:
        raise DataError(
            f"{source} must hold exactly one tensor {EMBEDDINGS}, with any prefix; found: "
            f"{', '.join(prefix + EMBEDDINGS for prefix in models) or 'none'}"
        )
    encoder = models[0]
    head = re.sub(r"[^.]+\.$", "", encoder)  # "" for "bert.", "module." for "module.bert."

    def spelled(name: str) -> str:
        prefix = head if re.match("(cls|discriminator_predictions)/", name) else encoder
        rules = (*_ALBERT_HEADS, *_RULES) if family == "albert" else _RULES
        if family != "albert":
            name = name.replace("encoder/embedding_hidden_mapping_in/", "embeddings_project/")
        if "/pooler/" in name and family in OWN_HEAD:  # a part of transformers' classifier
            prefix, name = head, name.replace("/pooler/", "/classifier/")
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        return prefix + name

    return spelled


def safetensors(path: Path) -> Tensors:
    """Return the tensors of a ``model.safetensors``. The library's NumPy reader has no bfloat16.

    The file begins with the size of its header and the header, a JSON object.

    Raises:
      DataError: the file is damaged or truncated.
    """

    def stored(entry: Dict[str, Any]) -> Stored:
        json_files.require(entry, {"shape": list, "dtype": str, "data_offsets": list})
        shape, dtype = tuple(entry["shape"]), _DTYPES.get(entry["dtype"], entry["dtype"])
        begin, end = (start + offset for offset in entry["data_offsets"])
        known = dtype in _DTYPES.values()
        numbers = functools.reduce(operator.mul, shape, itemsize(dtype) if known else 0)
        if not start <= begin <= end <= size or (known and end - begin != numbers):
            raise ValueError("a tensor outside the file, or of another size than its shape")
        return Stored(
            shape, dtype, str(path),
            lambda: decoded(piece(path, begin, end - begin), dtype).reshape(shape),
        )  # fmt: skip

    try:
        size, start = path.stat().st_size, 8 + int.from_bytes(piece(path, 0, 8), "little")
        if start > regular.LARGEST:
            raise ValueError("its header is too large")
        header = json_files.decode(piece(path, 8, start - 8))
        header.pop("__metadata__", None)
        return {name: stored(entry) for name, entry in header.items()}
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{path} is truncated or damaged ({error}); copy or download it again"
        ) from None


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
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
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
        if kind != "storage" or dtype not in _STORAGES.values() or any(view):
            raise ValueError("a storage of an unknown kind")
        return self._storages.setdefault(str(key), _Storage(str(key), dtype, int(numel)))


def pytorch(path: Path) -> Tensors:
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
