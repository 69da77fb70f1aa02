"""Tensors of Hugging Face folders, and their names in TensorFlow checkpoints.

Rules translate the names in Google's checkpoints, which bert4keras uses, to those in
``model.safetensors`` and ``pytorch_model.bin``; matrices of linear layers are transposed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Callable, Iterable, List, Optional

import numpy as np
from safetensors import SafetensorError, safe_open

from amp_xla.data.text.vocabulary import json_file
from amp_xla.errors import DataError
from amp_xla.models.weights import Shape, Stored, Tensors, damaged, decoded
from amp_xla.models.weights.pytorch import pytorch
from amp_xla.process import regular

_DTYPES = {
    "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
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
      DataError: a file is damaged, or contains something other than tensors; or a file of the index
        is missing.
    """
    for name, read in {"model.safetensors": safetensors, "pytorch_model.bin": pytorch}.items():
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
    """Return the names of the files that an index lists, for weights in several files."""
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
    """Return a function that translates Google's name of a tensor to its name in ``names``.

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
    """Return the tensors of a ``model.safetensors``; each is read when it is needed.

    Raises:
      DataError: the file is damaged or truncated.
      OSError: the file cannot be read.
    """

    def read(name: str, dtype: str, shape: Shape) -> np.ndarray:
        if dtype != "bfloat16":
            with safe_open(str(path), "np") as file:
                return file.get_tensor(name)
        # The library's NumPy reader has no bfloat16. The file begins with its header's size.
        with regular.opened(path, links=True) as stream:
            begin = 8 + int.from_bytes(stream.read(8), "little")
            first, last = json.loads(stream.read(begin - 8).decode())[name]["data_offsets"]
            stream.seek(begin + first)
            return decoded(stream.read(last - first), dtype).reshape(shape)

    def stored(name: str, part: Any) -> Stored:
        dtype, shape = part.get_dtype(), tuple(part.get_shape())
        dtype = _DTYPES.get(dtype, dtype)
        return Stored(shape, dtype, str(path), lambda: read(name, dtype, shape))

    regular.opened(path, links=True).close()  # the library calls any failure "No such file"
    try:
        with safe_open(str(path), "np") as file:
            names = file.keys()
            return {name: stored(name, file.get_slice(name)) for name in names}
    except SafetensorError as error:
        raise DataError(
            f"{path} is truncated or damaged, or has a dtype that the package safetensors does not "
            f"read ({error}); copy or download it again"
        ) from None
