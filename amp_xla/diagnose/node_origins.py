"""Finds a node's origin: Keras layer, phase and source line."""

from __future__ import annotations

import linecache
import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Set

from amp_xla.graph.nodes import ancestors, by_name, cast_source
from amp_xla.graph.training_graph import TrainingGraph

OUTSIDE = "(outside layers)"  # losses and other computations of a recipe around the model
_NOT_MODELS = re.compile(
    r"-packages/(tensorflow|tensorflow_core|tensorflow_estimator|keras|tf_keras)/|<frozen|<string>"
    r"|/amp_xla/(graph|diagnose|training|precision)/"
)
# Code of layers: bert4keras, and the derivatives that replace some of its formulas.
_FORMULAS = re.compile(r"/bert4keras/|/amp_xla/models/derivatives")


class Origin(NamedTuple):
    """``phase``: ``forward``, ``backward`` or ``update``; ``layer``: a Keras layer, or OUTSIDE."""

    layer: str
    phase: str


class NodeOrigins:
    """Origins, by name, of the nodes of a training graph or of a graph rewritten from it."""

    def __init__(self, training: TrainingGraph) -> None:
        self._operations = {op.name: op for op in training.graph.get_operations()}
        self._positions = {name: position for position, name in enumerate(self._operations)}
        nodes = by_name(training.graph.as_graph_def())
        self._forward: Set[str] = ancestors(nodes, [training.loss])
        self._backward: Set[str] = ancestors(nodes, training.ends) - self._forward
        self._layers: Mapping[str, Any] = training.layers

    def original(self, name: str) -> str:
        """Return the training graph's node that a rewritten node comes from; '' = unknown."""
        name = re.sub("^(ConstantFolding|ArithmeticOptimizer)/", "", cast_source(name))
        while name and name not in self._operations:
            shorter = re.sub(r"(_recip|-folded-\d+|-bcastargs-\d+|_matshapes-\d+)$", "", name)
            name = shorter if shorter != name else name.rpartition("/")[0]
        return name

    def position(self, name: str) -> int:
        """Return the node's position in the order of creation; unknown nodes come last."""
        return self._positions.get(self.original(name), 1 << 60)

    def of(self, name: str) -> Origin:
        """Return the layer and phase of a node or variable."""
        original = self.original(name)
        parts = (original or name).split("/")
        if original in self._forward:
            phase = "forward"
        elif original in self._backward or any(p.startswith("gradients") for p in parts):
            phase = "backward"
        else:
            phase = "update"
        return Origin(self._layer(parts), phase)

    def layer_positions(self) -> Dict[str, int]:
        """Return layer -> position in the order in which the model was built."""
        positions: Dict[str, int] = {}
        for name in self._operations:
            origin = self.of(name)
            if origin.phase == "forward" and origin.layer != OUTSIDE:
                positions.setdefault(origin.layer, len(positions))
        return positions

    def _layer(self, parts: List[str]) -> str:
        for part in parts:
            # Scopes of a layer: with a number for its second call, with `_loss` for its loss.
            for name in (part, re.sub(r"(_\d+|_loss)$", "", part)):
                if name in self._layers:
                    return name
        return OUTSIDE

    def source(self, name: str) -> str:
        """Return the line of the model's code that made a node; empty if unknown.

        It is a line of bert4keras or ``models/derivatives.py``, or else of the nearest caller
        outside TensorFlow and Keras, e.g. ``bert4keras/layers.py:734 in call: mean = ...``. For a
        gradient it is the line of the differentiated operation.
        """
        operation = self._operations.get(self.original(name))
        # Gradients refer to the operation that they differentiate.
        operation = getattr(operation, "_original_op", None) or operation
        # TensorFlow 1 has tuples, 2 has objects.
        frames = [(f[0], f[1], f[2], f[3]) for f in getattr(operation, "traceback", None) or []]
        frames = [f for f in frames if not _NOT_MODELS.search(f[0].replace(os.sep, "/"))]
        library = [f for f in frames if _FORMULAS.search(f[0].replace(os.sep, "/"))]
        # bert4keras' models build each layer through a method `apply`, whose line says nothing.
        chosen = [f for f in library if f[2] != "apply"] or library or frames
        if not chosen:
            return ""
        path, line, function, code = chosen[-1]
        # TensorFlow 2 has no code in its frames.
        code = code or linecache.getline(path, line)
        return f"{_short(path)}:{line} in {function}: {code.strip()}"


def _short(path: str) -> str:
    library = re.search(r"/site-packages/(.+)|.*/(bert4keras/.+)", path.replace(os.sep, "/"))
    if library:
        return library.group(1) or library.group(2)
    relative = os.path.relpath(path)
    return os.path.basename(path) if relative.startswith("..") else relative
