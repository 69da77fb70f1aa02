"""Description of a compiled model and its data, which a resumed run compares and names."""

from __future__ import annotations

import json
import re
import warnings
from typing import Any, Dict, Mapping

from amp_xla.graph.training_graph import layers_of

IN_A_LOOP = (
    "this process has already ended a run there: in a loop, such as over folds, give each run "
    "another folder"
)


def describe(model: Any, data: Mapping[str, Any]) -> Dict[str, Any]:
    """Return ``data``, the loss, the optimizer and the layers' settings, name -> JSON of a value.

    Learning rates are those with which this process has first used the optimizer: callbacks change
    them later.
    """
    optimizer = model.optimizer
    if "_amp_xla_config" not in vars(optimizer):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # functions that get_config leaves out
            vars(optimizer)["_amp_xla_config"] = _config(optimizer)
    described: Dict[str, Any] = {}
    layers = {name: _config(layer) for name, layer in layers_of(model).items()}
    parts = {"data": data, "loss": model.loss, "optimizer": vars(optimizer)["_amp_xla_config"]}
    _flatten({**parts, "layer": layers}, "", described)
    return described


def _config(thing: Any) -> Dict[str, Any]:
    try:
        config = dict(thing.get_config())
    except (NotImplementedError, AttributeError, TypeError, ValueError):  # not every class has one
        config = {}
    if not isinstance(config.get("function", ""), str):
        del config["function"]  # a lambda's code has the number of its line in the script
    return {"class": type(thing).__name__, **config}


def _flatten(value: Any, name: str, into: Dict[str, Any]) -> None:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            _flatten(item, f"{name} {key}".strip(), into)
    elif hasattr(value, "get_config"):
        _flatten(_config(value), name, into)
    else:
        text = json.dumps(value, default=lambda x: getattr(x, "__name__", type(x).__name__))
        into[name] = json.loads(text) if len(text) < 100 else text


def reasons(checkpoint: Any, model: Any, ended: bool) -> str:
    """Return the end of a message: why a checkpoint may differ from the model.

    Args:
      checkpoint: the checkpoint.
      model: the model.
      ended: whether this process has already ended a run in its folder.
    """
    reason, numbers = "", re.compile(r"_\d+(?=/|$)")
    stored, names = set(checkpoint.tensors()), {weight.op.name for weight in model.weights}
    if names - stored and {numbers.sub("", name) for name in names} <= stored:
        reason = (
            "; this process has built a model before, so that layers have other names: call "
            "keras.backend.clear_session() before building it again"
        )
    return reason + (f"; {IN_A_LOOP}" if ended else "")
