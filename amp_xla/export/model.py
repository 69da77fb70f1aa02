"""A trained model to export, and its files. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

import numpy as np
import safetensors.numpy

from amp_xla.data.text.labels import Labels
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import AmpXlaError
from amp_xla.process import json_files

HEAD = "head.safetensors"
ANSWERS = "answers.json"
MEAN = "mean of the vectors of all tokens but padding"
LINEAR = " @ classifier.weight.T + classifier.bias"
MEAN_POOLING = f"softmax({MEAN}{LINEAR})"
FIRST = "vector of the first token"
LARGE = 1024  # elements; smaller weights and constants stay float32 in a graph of --dtype fp16
TOLERANCE = {"fp32": 1e-4, "fp16": 1e-2}  # allowed difference of outputs
NAMES = {"fp32": "float32", "fp16": "float16"}
# A model: token ids and segment ids, int32 [B, L] -> probabilities, float [B, ..., classes];
# similarities, float [B]; or vectors, float [B, hidden]
Run = Callable[..., np.ndarray]


@dataclasses.dataclass(frozen=True)
class Exportable:
    """A trained model, which computes in float32.

    Attributes:
      config: content of the encoder's ``bert_config.json``, with ``layer_norm_eps``.
      tensors: weights of the encoder by Google's names, float32; kernels are [in, out].
      run: function that computes the outputs.
      reload: function that loads a folder in Hugging Face's or Google's format, and returns the
        ``run`` of the loaded model.
      head: other weights by Hugging Face's names, float32; kernels are [out, in].
      kind: suffix of transformers' class for the model with its head, such as ``ForMaskedLM``;
        empty = no head; None = transformers has no such class, so only the encoder is exported.
      formula: how to compute the output from the encoder's vectors, for programs without the head;
        empty if there is no formula.
      graph: function that builds TensorFlow's graph (``amp_xla.export.graph.Serving``), with
        float16 constants if its argument is True; None in JAX.
      answers: numbers that turn the model's output into answers, such as ``threshold``.
      inputs: arrays on which outputs are compared; None = random tokens.
      call: line that describes the inputs.
      task: Hugging Face's name of the task (``pipeline_tag``); empty if there is none.
      load: Python code that loads the Hugging Face folder ``{}``; empty = by ``AutoModel``.
      settings: more entries of transformers' ``config.json``.
      files: more files of the Hugging Face folder: path -> content.
    """

    config: Dict[str, Any]
    tensors: Dict[str, np.ndarray]
    run: Run
    reload: Callable[[Path], Run]
    tokenizer: Tokenizer
    head: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    kind: Optional[str] = None
    formula: str = ""
    labels: Tuple[str, ...] = ()
    length: int = 0
    graph: Optional[Callable[[bool], Any]] = None
    answers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    inputs: Optional[Tuple[np.ndarray, ...]] = None
    call: str = (
        "call: token_ids and segment_ids, int32 [B, L], 0 = padding; text to ids: its vocab.txt"
    )
    task: str = ""
    load: str = ""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)

    def write_files(self, folder: Path) -> None:
        """Write vocabulary, tokenizer settings and labels, as in a checkpoint, and answers.json."""
        for name, content in (self.tokenizer.assets if self.tokenizer else {}).items():
            (folder / name).write_bytes(content)
        if self.labels:
            (folder / "labels.json").write_bytes(Labels(self.labels).encoded())
        if self.answers:
            (folder / ANSWERS).write_bytes(json_files.encode(self.answers))

    def samples(self) -> Tuple[np.ndarray, ...]:
        """Return ``inputs``; if None, token ids and segment ids of random texts, int32 [8, L]."""
        if self.inputs is not None:
            return self.inputs
        length, segments = min(self.length, 48), self.config.get("type_vocab_size", 2)
        return random_tokens(self.tokenizer.vocab_size, length, segments)


def random_tokens(
    vocab_size: int, length: int, segments: Optional[int]
) -> Tuple[np.ndarray, np.ndarray]:
    """Return token ids and segment ids of 8 texts with 3 to ``length`` tokens, int32 [8, L].

    ``segments``: number of different segment ids; None or below 2 = all segment ids are 0.
    """
    random = np.random.RandomState(0)
    ids, second = np.zeros((2, 8, max(3, length)), np.int32)
    for row, count in enumerate(np.linspace(3, ids.shape[1], len(ids)).astype(int)):
        ids[row, :count] = random.randint(1, vocab_size, count)
        if row % 2 and (segments or 0) > 1:
            second[row, count // 2 : count] = 1
    return ids, second


def compare(expected: np.ndarray, answers: np.ndarray, dtype: str) -> float:
    """Return the largest ``abs(answers - expected) / max(1, abs(expected))`` of all outputs.

    Raises:
      AmpXlaError: they differ by more than ``TOLERANCE``.
    """
    most = TOLERANCE[dtype]
    # Numbers above 1, such as logits, are rounded more; masked scores may be infinite.
    scale = np.maximum(1.0, np.where(np.isfinite(expected), np.abs(expected), 1.0))
    with np.errstate(invalid="ignore"):
        differences = np.where(answers == expected, 0, np.abs(answers - expected))
    difference = float(np.max(differences / scale))
    if not difference <= most:
        raise AmpXlaError(
            f"the exported model's outputs differ from the run's by {difference:.2g}; allowed with "
            f"--dtype {dtype}: {most:g}; nothing was written"
        )
    return difference


def comparable(outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return a model's outputs as one array; if it has only logits or scores, as probabilities."""
    if "probabilities" in outputs:
        return outputs["probabilities"]
    if len(outputs) > 1:
        return np.concatenate([np.ravel(outputs[name]) for name in sorted(outputs)])
    ((name, values),) = outputs.items()
    if name == "logits":
        powers = np.exp(values - values.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)
    return 0.5 + 0.5 * np.tanh(0.5 * values) if name == "scores" else values


def stored(values: Mapping[str, np.ndarray], dtype: str) -> Dict[str, np.ndarray]:
    """Return arrays in the dtype of an export's files: ``fp32`` or ``fp16``."""
    return {name: np.ascontiguousarray(value, NAMES[dtype]) for name, value in values.items()}


def write_head(model: Exportable, folder: Path, dtype: str) -> None:
    """Write the weights of the head, if there are any, to ``head.safetensors``."""
    if model.head:
        metadata = {"format": "pt", "formula": model.formula}
        safetensors.numpy.save_file(stored(model.head, dtype), str(folder / HEAD), metadata)


def describe_head(model: Exportable, folder: Path) -> str:
    """Return the line that says how to compute the head: its formula and the file of weights."""
    weights = f"; weights: {folder / HEAD}" if model.head else ""
    return f"compute from the encoder's output: {model.formula}{weights}"


def read_head(folder: Path) -> Dict[str, np.ndarray]:
    """Return the head's tensors, from ``head.safetensors`` or ``model.safetensors``, in float32."""
    path = folder / HEAD if (folder / HEAD).is_file() else folder / "model.safetensors"
    tensors = safetensors.numpy.load_file(str(path)) if path.is_file() else {}
    return {name: value.astype(np.float32) for name, value in tensors.items()}
