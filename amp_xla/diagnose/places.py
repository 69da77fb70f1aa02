"""Where a node comes from: its Keras layer, its phase, its role, the source line that made it."""

from __future__ import annotations

import linecache
import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple

from amp_xla.graph.nodes import ancestors, cast_source
from amp_xla.graph.training_graph import TrainingGraph

OUTSIDE = "(outside layers)"  # losses and whatever a recipe computes around the model
_NOT_MODELS = re.compile(
    r"/(tensorflow|tensorflow_core|tensorflow_estimator|keras|tf_keras)/|<frozen|<string>"
)
_OURS = re.compile(r"/amp_xla/(rewrite|training/step|precision|optimizers)")
# Where a layer's formula is: bert4keras, and what stands in for formulas of its.
_FORMULAS = re.compile(r"/bert4keras/|/amp_xla/models/derivatives")
_MASKING = frozenset(
    ("sequence_masking", "lm_mask", "unilm_mask", "compute_attention_bias", "banned")
)


Frame = Tuple[str, int, str, str]  # file, line, function, code


class Place(NamedTuple):
    """``phase`` is ``forward``, ``backward`` or ``update``; ``layer`` a Keras layer's name."""

    layer: str
    phase: str


class Source(NamedTuple):
    """A line of Python: short path, line number, function, the code itself."""

    path: str
    line: int
    function: str
    code: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} in {self.function}: {self.code}"


class Places:
    """Answers for all nodes of a training graph and of its rewritten forms, by name."""

    def __init__(self, training: TrainingGraph) -> None:
        self._training = training
        self._operations = {op.name: op for op in training.graph.get_operations()}
        self.order = {name: position for position, name in enumerate(self._operations)}
        nodes = {n.name: n for n in training.graph.as_graph_def().node}
        self._forward: Set[str] = ancestors(nodes, [training.loss])
        ends = [tensor.split(":")[0] for _, tensor in training.gradients]
        self._backward: Set[str] = ancestors(nodes, ends) - self._forward
        self._layers: Mapping[str, Any] = training.layers
        self._sources: Dict[str, Optional[Source]] = {}

    def original(self, name: str) -> str:
        """The node of the training graph that a node of a rewritten graph stands for."""
        name = cast_source(name)
        for prefix in ("ConstantFolding/", "ArithmeticOptimizer/"):
            if name.startswith(prefix):
                name = name[len(prefix) :]
        while name and name not in self._operations:
            shorter = re.sub(r"(_recip|-folded-\d+|-bcastargs-\d+|_matshapes-\d+)$", "", name)
            name = shorter if shorter != name else name.rpartition("/")[0]
        return name

    def of(self, name: str) -> Place:
        """The layer and phase of a node."""
        original = self.original(name)
        parts = (original or name).split("/")
        if original in self._forward:
            phase = "forward"
        elif original in self._backward or any(p.startswith("gradients") for p in parts):
            phase = "backward"
        else:
            phase = "update"
        return Place(self._layer(parts), phase)

    def layer_of(self, variable: str) -> str:
        """The layer of a variable, by its name."""
        return self._layer(variable.split("/"))

    def _layer(self, parts: List[str]) -> str:
        for part in parts:
            if part in self._layers:
                return part
            # A layer that is called again works under its name with a number; Keras computes the
            # loss on a layer's output under its name with `_loss`, often by the layer's own method.
            bare = re.sub(r"(_\d+|_loss)$", "", part)
            if bare in self._layers:
                return bare
        return OUTSIDE

    def role(self, name: str, op: str) -> str:
        """``matmul``, ``softmax``, ``mask``, ``norm`` or ``other``."""
        if "MatMul" in op or "Einsum" in op:
            return "matmul"
        if op in ("Softmax", "LogSoftmax"):
            return "softmax"
        layer = self._layers.get(self.of(name).layer)
        kind = type(layer).__name__
        if "Normalization" in kind or "Norm" in kind:
            return "norm"
        operation = self._forward_operation(name)
        frames = [] if operation is None else _model_frames(_frames(operation))[-3:]
        if _MASKING.intersection(frame[2] for frame in frames):
            return "mask"
        return "other"

    def source(self, name: str) -> Optional[Source]:
        """The line of the model's code behind a node: bert4keras' own, else the nearest caller
        outside TensorFlow and Keras. A gradient's is that of the operation it belongs to."""
        original = self.original(name)
        if original not in self._sources:
            operation = self._forward_operation(name)
            frames = _frames(operation) if operation is not None else []
            self._sources[original] = _model_line(frames)
        return self._sources[original]

    def _forward_operation(self, name: str) -> Optional[Any]:
        operation = self._operations.get(self.original(name))
        # Gradients remember the operation they differentiate.
        forward = getattr(operation, "_original_op", None)
        return operation if forward is None else forward


def _frames(operation: Any) -> List[Frame]:
    """(file, line, function, code), outermost first; TensorFlow 1 has tuples, 2 has objects."""
    try:
        return [(f[0], f[1], f[2], f[3] or "") for f in operation.traceback or []]
    except (AttributeError, IndexError, TypeError):
        return []


def _model_line(frames: List[Frame]) -> Optional[Source]:
    mine = _model_frames(frames)
    library = [f for f in mine if _FORMULAS.search(f[0].replace(os.sep, "/"))]
    # bert4keras' models build every layer through one method called apply, which says nothing.
    chosen = [f for f in library if f[2] != "apply"] or library or mine
    if not chosen:
        return None
    path, line, function, code = chosen[-1]
    # TensorFlow 2 keeps no code in its frames.
    code = code or linecache.getline(path, line)
    return Source(_short(path), line, function, code.strip())


def _model_frames(frames: List[Frame]) -> List[Frame]:
    """Without the frames of TensorFlow, Keras and this package's training step."""
    return [
        f
        for f in frames
        if not _NOT_MODELS.search(f[0].replace(os.sep, "/")) and not _OURS.search(f[0])
    ]


def _short(path: str) -> str:
    parts = path.replace(os.sep, "/").split("/")
    if "site-packages" in parts:
        return "/".join(parts[parts.index("site-packages") + 1 :])
    if "bert4keras" in parts:
        return "/".join(parts[len(parts) - 1 - parts[::-1].index("bert4keras") :])
    relative = os.path.relpath(path)
    return os.path.basename(path) if relative.startswith("..") else relative
