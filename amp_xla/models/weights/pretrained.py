"""A folder of pretrained weights (``--bert``): its configuration, and tensors that fit a model.

Google's and bert4keras' checkpoints and Hugging Face folders are read in one way: tensors get
Google's names, and a line is printed about tensors that are not used.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple

import numpy as np

from amp_xla.config import Range
from amp_xla.data.text import vocabulary
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.data.text.vocabulary import json_file
from amp_xla.errors import DataError
from amp_xla.models.weights import Shape, Stored, Tensors, damaged, hugging_face
from amp_xla.precision.arrays import is_finite
from amp_xla.process import regular
from amp_xla.process.progress import note

CONFIGS = ("bert_config.json", "config.json", "albert_config.json")
FAMILIES = ("bert", "albert", "electra", "nezha", "roformer", "roformer_v2")
TAGGER = "_tagger"  # behind the family in exported taggers, which transformers loads as code
FLOATS = ("float32", "float16", "bfloat16", "float64")
_POSITIONS = ("bert", "albert", "electra")  # families with a table of positions
_SMALL = 1 << 24  # bytes; differences up to here are found, and named, by tensor
TOKENS = "bert/embeddings/word_embeddings"
SEGMENTS = "bert/embeddings/token_type_embeddings"
TASKS = "bert/embeddings/task_type_embeddings"
_REQUIRED = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"
)  # fmt: skip
# As in bert4keras
_DEFAULTS = {"max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12}
# hidden_act -> its name in bert4keras
_ACTIVATIONS = {
    "gelu": "gelu", "gelu_python": "gelu", "gelu_tanh": "gelu_tanh", "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "tanh": "tanh",
    "silu": "swish", "swish": "swish",
}  # fmt: skip
# Key -> maximum of a whole number, range of a number, types, or list of values
_ALLOWED: Dict[str, Any] = {
    "model_type": [*FAMILIES, "ernie"], "hidden_act": [*_ACTIVATIONS],
    **dict(zip(_REQUIRED, (2**24, 2**16, 64, 2**12, 2**18))),
    "max_position_embeddings": 2**20, "type_vocab_size": 2**10, "task_type_vocab_size": 2**10,
    "embedding_size": 2**16, "attention_head_size": 2**12, "attention_key_size": 2**12,
    "layer_norm_eps": Range(above=0, at_most=0.1), "initializer_range": Range(above=0, at_most=10),
    "hidden_dropout_prob": Range(at_least=0, below=1), "hierarchical_position": (bool, float),
    "attention_probs_dropout_prob": Range(at_least=0, below=1),
    "residual_attention_scores": (bool,), "shared_segment_embeddings": (bool,),
    # The only values that bert4keras can build
    "position_embedding_type": ["absolute"], "num_hidden_groups": [1], "inner_group_num": [1],
    "rotary_value": [False], "max_relative_position": [64], "is_decoder": [False],
}  # fmt: skip
_NULL = ("hidden_act", "position_embedding_type")  # null is not transformers' default of these
_FILES = re.compile(r"(.*\.(json|txt|bin|safetensors|index)|.*\.data-\d+-of-\d+)")
_WEIGHTS = re.compile(r".*\.(bin|safetensors|data-\d+-of-\d+)")
_POINTER = b"version https://git-lfs"
CONSTANTS = r"\.(position_ids|embed_positions\.weight|positions_encoding)$"
OPTIMIZER = r"(^|/)(adam_[mv]|lamb_[mv]|Adam(_1)?|AdamWeight\w+|global_step|beta\d_power)$"


class Pretrained:
    """A folder of pretrained weights.

    Args:
      folder: value of ``--bert``.
      checkpoint: function that reads a TensorFlow checkpoint: prefix -> tensors by name.

    Attributes:
      path: path of the configuration file.
      tasks: number of ERNIE's task embeddings; 0 = the model has none.
      config: content of ``path``; missing sizes have defaults, ``model_type`` is a known one.

    Raises:
      DataError: a file is missing, is not JSON, or has an impossible value or too few weights.
    """

    def __init__(self, folder: str, checkpoint: Callable[[Path], Tensors]) -> None:
        self._folder = Path(folder)
        self._checkpoint = checkpoint
        self._stored: Optional[Tensors] = None
        self._hugging_face = False
        self.path, self.config, size = _configuration(self._folder)
        self.config["model_type"] = self._family()
        # ERNIE's task 0 is part of every input, so `take` adds its row to those of the segments.
        tasks = self.config.pop("use_task_id", False)
        self.tasks = (self.config.get("task_type_vocab_size") or 3) if tasks else 0
        _complete(self.config, self.path)
        if size and 2 * _numbers(self.config) > size + _SMALL:
            raise DataError(
                f"{self.path}: a model of the sizes in this file has more than "
                f"{_numbers(self.config):,} parameters, but the folder's weights have only "
                f"{size:,} bytes"
            )

    def check_sizes(self, vocab_size: Optional[int], length: Optional[int]) -> None:
        """Check that the model has enough embeddings for a vocabulary and a sequence length.

        Args:
          vocab_size: number of tokens in the vocabulary; None = do not check it.
          length: maximum number of tokens per sequence; None = do not check it.

        Raises:
          DataError: there are too few embeddings; or the files have too few layers or no weights.
        """
        layers, needed = _layers(self.stored()), self.config["num_hidden_layers"]
        if 0 < layers < needed:
            raise DataError(
                f"{self._source} has no tensor of encoder/layer_{layers}/; it has {layers} layers, "
                f"but {self.path} has num_hidden_layers {needed}"
            )
        most, rows = self.config["max_position_embeddings"], self.config["vocab_size"]
        if self.config["model_type"] in _POSITIONS and length is not None and most < length:
            raise DataError(
                f"{self.path} has max_position_embeddings {most}, too few for sequences of "
                f"{length} tokens; allowed: up to {most} (--max-length, or --length of prepare and "
                "evaluate)"
            )
        if vocab_size is not None and rows < vocab_size:
            raise DataError(
                f"{self.path} has vocab_size {rows:,}, but the vocabulary has {vocab_size:,} "
                f"tokens; use the vocabulary that came with these weights"
            )
        if vocab_size is not None and rows > vocab_size:
            note(
                f"the vocabulary has {vocab_size:,} tokens, and {self._folder} has embeddings for "
                f"{rows:,}: is it the vocabulary that came with these weights?"
            )

    def take(self, needed: Mapping[str, Shape], report: bool = True) -> Dict[str, np.ndarray]:
        """Read tensors, and print a line that lists unused tensors of the files.

        Args:
          needed: Google's name -> shape; kernels are [in, out]. If the files have no pooler, a
            line is printed, and the result has none either.
          report: False = do not print the line about unused tensors.

        Returns:
          Google's name -> float32.

        Raises:
          DataError: a tensor is missing, damaged, not finite, or has another shape or dtype.
        """
        stored, source = self.stored(), self._source
        if self.tasks:
            needed = {**needed, TASKS: (self.tasks, needed[SEGMENTS][1])}
        names = self.names(needed)
        pooler = [name for name in needed if "/pooler/" in name]
        if any(names[name] not in stored for name in pooler):
            note(f"{source} has no {names[pooler[0]]}: the pooler starts with random weights")
            needed = {name: shape for name, shape in needed.items() if name not in pooler}
            names = {name: names[name] for name in needed}
        unused = sorted(set(stored) - set(names.values()))
        turned = {n for n in needed if self._hugging_face and n.endswith("/kernel")}
        shapes = {names[n]: s[::-1] if n in turned else s for n, s in needed.items()}
        self._check(shapes, unused)  # first, because it reads no numbers
        values = {name: _finite(names[name], stored[names[name]]) for name in needed}
        values.update({name: values[name].T for name in turned})
        if self.tasks:
            values[SEGMENTS] = values[SEGMENTS] + values.pop(TASKS)[0]
        if report:
            _report(unused, source)
        return values

    def names(self, needed: Iterable[str]) -> Dict[str, str]:
        """Return a mapping from Google's names of tensors to their names in the files."""
        stored = self.stored()
        if not self._hugging_face:
            return {name: name for name in needed}
        spelled = hugging_face.spelling(stored, self.config["model_type"], self._source)
        return {name: spelled(name) for name in needed}

    def has_head(self) -> bool:
        """Return whether the files have a head that predicts tokens."""
        return any(re.search(r"(^|\.)(cls[./])?predictions[./]", name) for name in self.stored())

    def stored(self) -> Tensors:
        """Return all tensors by their names in the files."""
        if self._stored is None:
            self._stored = hugging_face.tensors(self._folder)
            self._hugging_face = self._stored is not None
        if self._stored is None:
            self._stored = self._checkpoint(_checkpoint_prefix(self._folder))
        return self._stored

    @property
    def _source(self) -> str:
        return next((tensor.source for tensor in self.stored().values()), str(self._folder))

    def _family(self) -> str:
        kind, norm = self.config.get("model_type"), self.config.get("norm_type", "layer_norm")
        if kind == "roformer" and (norm != "layer_norm" or self.config.get("use_bias") is False):
            return "roformer_v2"
        if kind is not None:
            return "bert" if kind == "ernie" else str(kind)
        names = "\n".join(self.stored())
        if re.search(r"(^|\.)electra[/.]", names, re.MULTILINE):
            return "electra"
        if "group_0/inner_group_0" in names or "albert_layer_groups" in names:
            return "albert"
        if "position_embeddings" in names:
            return "bert"
        if "LayerNorm" not in names:
            return "roformer_v2"
        if self.config.get("use_relative_position"):
            return "nezha"
        raise DataError(
            f"{self._folder} has no position embeddings: is it NEZHA or RoFormer? Add "
            f'"model_type": "nezha" or "roformer" to {self.path}'
        )

    def _check(self, shapes: Mapping[str, Shape], unused: List[str]) -> None:
        """Raise DataError if a tensor is missing, or has another shape or dtype."""
        stored, needed = self.stored(), self.config["num_hidden_layers"]
        missing = [name for name in shapes if name not in stored]
        if missing:
            others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
            similar = difflib.get_close_matches(missing[0], unused, 1)
            hint = "is it a complete model of this family?"
            if similar:
                hint = f"its unused tensor {similar[0]} has a similar name"
            raise DataError(f"{self._source} has no tensor {missing[0]}{others}; {hint}")
        if _layers(stored) > needed:
            note(f"{self._source} has {_layers(stored)} layers; the model uses the first {needed}")
        for name, shape in shapes.items():
            tensor, problem = stored[name], ""
            if tensor.shape != tuple(shape):
                problem = f"{list(tensor.shape)}, but {self.path.name} needs {list(shape)}"
            elif tensor.dtype not in FLOATS:
                problem = f"{tensor.dtype}; required: {FLOATS[0]}"
            if problem:
                raise DataError(f"{tensor.source}: tensor {name} is {problem}")


def _report(unused: Iterable[str], source: str) -> None:
    """Print a line with the unused tensors, grouped by the first two parts of their names."""
    groups: Dict[str, List[str]] = {}
    for name in unused:
        if not re.search(CONSTANTS, name):
            optimizer = re.search(OPTIMIZER, name)
            group = "an optimizer's" if optimizer else "".join(re.split("([./])", name)[:3])
            groups.setdefault(group, []).append(name)
    if groups:
        parts = (f"{g} ({len(n)})" if len(n) > 1 else n[0] for g, n in groups.items())
        note(f"{source}: not used: {', '.join(parts)}")


def _checkpoint_prefix(folder: Path) -> Path:
    """Return the prefix of the TensorFlow checkpoint in ``folder``, e.g. ``bert_model.ckpt``."""
    indexes = sorted(folder.glob("*.index"))
    if len(indexes) != 1:
        found = ", ".join(path.name for path in indexes) or "none"
        raise DataError(
            f"{folder} must hold one checkpoint (*.index), model.safetensors or pytorch_model.bin; "
            f"found: {found}"
        )
    prefix = indexes[0].with_suffix("")
    if not any(folder.glob(f"{prefix.name}.data-*")):
        raise DataError(f"{indexes[0]} exists, but not {prefix.name}.data-00000-of-00001")
    return prefix


def check(folder: Optional[str]) -> None:
    """Check configuration and vocabulary in a folder for ``--bert``; ignore a missing folder."""
    if folder is None or not Path(folder).is_dir():
        return
    source = vocabulary.path(folder)
    try:
        path, config, _ = _configuration(Path(folder))
        tokens = Tokenizer(vocabulary.tokens(folder), source=source).vocab_size
        rows = config["vocab_size"]
        if tokens > rows:
            raise DataError(f"{source} has {tokens:,} tokens, but {path} has vocab_size {rows:,}")
    except DataError as error:
        raise DataError(f"--bert {folder}: {error}") from None


def _configuration(folder: Path) -> Tuple[Path, Dict[str, Any], int]:
    """Return path and content of the configuration, and the size of the weights in bytes."""
    size = 0
    # Links are usual in Hugging Face's cache; run folders may come from others.
    links = not (folder / "run.json").is_file()
    for path in sorted(folder.iterdir()):
        if _FILES.fullmatch(path.name):
            try:
                with regular.opened(path, links) as file:
                    pointer = file.read(len(_POINTER)) == _POINTER
                    size += file.seek(0, os.SEEK_END) if _WEIGHTS.fullmatch(path.name) else 0
            except OSError as error:
                raise DataError(f"{path}: {error.strerror}") from None
            if pointer:
                raise DataError(
                    f"{path} is only a pointer of Git LFS, not the file: run `git lfs pull` there"
                )
    names = [name for name in CONFIGS if (folder / name).is_file()]
    if not names:
        raise DataError(f"{folder} has no {', '.join(CONFIGS[:-1])} or {CONFIGS[-1]}")
    path = folder / names[0]
    config = json_file(str(path))
    kind: Any = config.get("model_type")
    if str(kind).endswith(TAGGER):
        config["model_type"] = kind[: -len(TAGGER)]
    for key, allowed in _ALLOWED.items():
        value = config.get(key)
        missing = key not in config or (value is None and key not in _NULL)
        if missing and key not in _REQUIRED:
            continue
        if isinstance(allowed, int):
            fits, words = type(value) is int and 1 <= value <= allowed, f"1 to {allowed:,}"
        elif isinstance(allowed, Range):
            fits, words = value in allowed, str(allowed)
        elif isinstance(allowed, list):
            fits, words = value in allowed, ", ".join(map(str, allowed))
        else:
            fits, words = isinstance(value, allowed), " or ".join(k.__name__ for k in allowed)
        if not fits:
            problem = "is missing" if missing else f"is {json.dumps(value)[:40]}"
            raise DataError(f"{path}: {key} {problem}; allowed: {words}")
    return path, config, size


def _numbers(config: Mapping[str, Any]) -> int:
    """Return a lower bound of the number of weights."""
    hidden, family = config["hidden_size"], config["model_type"]
    heads, narrow = config["num_attention_heads"], config.get("embedding_size") or hidden
    width = heads * (config.get("attention_head_size") or hidden // heads)
    rows = config["vocab_size"] + config["type_vocab_size"]
    if family in _POSITIONS:
        rows += config["max_position_embeddings"]
    layer = 2 * hidden * (width + config["intermediate_size"])
    return int(rows * narrow + layer * (1 if family == "albert" else config["num_hidden_layers"]))


def _complete(config: Dict[str, Any], path: Path) -> None:
    """Fill in defaults, and refuse sizes that do not fit together."""
    config.update({k: v for k, v in _DEFAULTS.items() if config.get(k) is None})
    if config["model_type"] in ("bert", "nezha"):  # it has no meaning, as in transformers
        config.pop("embedding_size", None)
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    if hidden % heads and not config.get("attention_head_size"):
        raise DataError(f"{path}: num_attention_heads {heads} does not divide hidden_size {hidden}")
    config["hidden_act"] = _ACTIVATIONS[config.get("hidden_act", "gelu")]
    if config["model_type"] == "albert" and config.get("embedding_size", hidden) == hidden:
        raise DataError(f"{path}: an ALBERT needs an embedding_size that differs from hidden_size")


def _finite(name: str, tensor: Stored) -> np.ndarray:
    try:
        values = np.asarray(tensor.read(), np.float32)
    except Exception as error:
        raise damaged(f"{tensor.source}: tensor {name}", error) from None
    if not is_finite(values):
        raise DataError(f"{tensor.source}: tensor {name} holds NaN or infinity")
    return values


def _layers(names: Iterable[str]) -> int:
    return len(set(re.findall(r"encoder[./]layer[._](\d+)[./]", "\n".join(names))))


def encoded(config: Mapping[str, Any]) -> bytes:
    """Return the content of a ``bert_config.json``; a resumed run must have the same bytes."""
    return json.dumps(config, indent=2).encode() + b"\n"
