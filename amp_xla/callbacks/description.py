"""Descriptions of model and data, compared on resume; warnings of ``Run``; its monitored value."""

from __future__ import annotations

import dataclasses
import json
import re
import types
import warnings
from collections import Counter
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from amp_xla.backend import keras, tf
from amp_xla.callbacks import script_walk
from amp_xla.errors import AmpXlaError
from amp_xla.graph.training_graph import layers_of
from amp_xla.process.progress import note
from amp_xla.training.checkpoint import CheckpointError
from amp_xla.training.options import RunOptions
from amp_xla.training.run import write_status

IN_A_LOOP = (
    "this process has already ended a run in this folder; in a loop, such as over folds, give each "
    "run another folder"
)
# Parts of the names of values for which lower is better.
_LOWER = ("loss", "error", "entropy", "mae", "mse", "perplexity", "ppl")


@dataclasses.dataclass(frozen=True)
class Script:
    """Configuration of a run that a script started, without a recipe's flags."""

    run: RunOptions = RunOptions()


def with_inner(optimizer: Any) -> List[Any]:
    """Return an optimizer and the optimizers that it wraps, the outermost first."""
    inside = (getattr(optimizer, name, None) for name in ("inner", "_optimizer", "optimizer"))
    inner = next((each for each in inside if hasattr(each, "apply_gradients")), None)
    return [optimizer] if inner is None else [optimizer, *with_inner(inner)]


def objects(model: Any, step: Any, data: Iterable[Any]) -> List[Any]:
    """Return the objects that have state, except callbacks: data, model, layers, optimizers, ..."""
    kinds = (keras.utils.Sequence, types.FunctionType)
    parts = [each for each in (*data, step.whole) if isinstance(each, kinds)]
    return [*parts, model, *layers_of(model).values(), *with_inner(model.optimizer)]


def describe(model: Any, data: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the settings of data, loss, optimizer and layers: name -> JSON value.

    The optimizer's settings are those at the start of its first ``fit`` with a ``Run`` in this
    process, because callbacks change learning rates.
    """
    optimizer = model.optimizer
    if "_amp_xla_config" not in vars(optimizer):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # functions that get_config leaves out
            configs = [_config(part) for part in with_inner(optimizer)]
            known = [each for each in configs if each.keys() != {"class"}]
            vars(optimizer)["_amp_xla_config"] = known[0] if known else configs[0]
    layers = {name: _config(layer) for name, layer in layers_of(model).items()}
    parts = {"data": data, "loss": model.loss, "optimizer": vars(optimizer)["_amp_xla_config"]}
    if model.loss_weights:
        parts["loss_weights"] = model.loss_weights
    return dict(_flat({**parts, "layer": layers}))


def _config(thing: Any) -> Dict[str, Any]:
    try:
        config = dict(thing.get_config())
    except (NotImplementedError, AttributeError, TypeError, ValueError):  # not every class has one
        config = {}
    if not isinstance(config.get("function", ""), str):
        del config["function"]  # a lambda's code has the number of its line in the script
    return {"class": type(thing).__name__, **config}


def _flat(value: Any, name: str = "") -> Iterator[Tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(item, f"{name} {key}".strip())
    elif hasattr(value, "get_config"):
        yield from _flat(_config(value), name)
    else:
        text = json.dumps(value, default=lambda x: getattr(x, "__name__", type(x).__name__))
        yield name, json.loads(text) if len(text) < 100 else text


def check_names(checkpoint: Optional[Any], model: Any) -> None:
    """Raise CheckpointError if weights' names differ from the checkpoint's only in numbers."""
    stored = {} if checkpoint is None else checkpoint.tensors()
    if checkpoint is None or not renumbered(stored, model):
        return
    new = next(weight.op.name for weight in model.weights if weight.op.name not in stored)
    old = next(name for name in stored if _plain(name) == _plain(new))
    raise CheckpointError(
        f"{checkpoint.path} has {old} where this model has {new}: this process, or the one that "
        f"wrote the checkpoint, built another model first; build the same models in the same "
        f"order, or call keras.backend.clear_session() before each"
    )


def renumbered(stored: Iterable[str], model: Any) -> bool:
    """Return whether the names of a model's weights differ from ``stored`` only in numbers.

    TensorFlow and Keras add numbers to repeated names, e.g. if a process builds several models.
    """
    names = {weight.op.name for weight in model.weights}
    missing = Counter(map(_plain, names)) - Counter(map(_plain, stored))
    return not names <= set(stored) and not missing


def _plain(name: str) -> str:
    """Return a variable's name without the numbers of its layers."""
    return re.sub(r"_\d+(?=/|$)", "", name)


def name_changed(before: Mapping[str, Any], now: Mapping[str, Any], when: str) -> None:
    """Print which variables differ between ``before`` and ``now``, and ``when`` they changed."""
    names = [name for name in before if now[name].tobytes() != before[name].tobytes()]
    if names:
        listed = f"{', '.join(names[:3])}{' ...' if names[3:] else ''}"
        note(f"{listed} changed {when}; the checkpoint's values replace them")


def name_late(known: int) -> int:
    """Warn about variables created after the first ``known`` ones; return the number of all."""
    every = [variable.op.name for variable in tf.global_variables()]
    if every[known:]:
        names = f"{', '.join(every[known:][:3])}{' ...' if every[known:][3:] else ''}"
        note(
            f"warning: checkpoints do not hold the variables {names}, because they were created "
            f"after fit began: a resume is not exact; create them before fit (train_on_batch "
            f"creates those of an optimizer)"
        )
    return len(every)


def name_emptied(callbacks: Iterable[Any]) -> None:
    """Warn about files that callbacks will empty on resume."""
    for each in callbacks:
        if isinstance(each, keras.callbacks.CSVLogger) and not each.append:
            note(f"warning: CSVLogger without append=True empties {each.filename} on resume")


def name_shortened(loop: Any, model: Any) -> None:
    """Warn if a callback ended an epoch early, but training continues."""
    if loop.state.step_in_epoch and not model.stop_training:
        note(
            f"warning: a callback ended epoch {loop.epoch_number} after "
            f"{loop.state.step_in_epoch} batches, and training goes on: a resume is not exact"
        )


def name_unfinished(loop: Any, ended: bool) -> None:
    """Print what is unfinished when ``fit`` ends: the run, or an accumulation window."""
    state, left, count = loop.state, loop.engine.in_window, loop.engine.micro_batches
    if not (ended or loop.over):
        note(
            f"a callback stopped the run within epoch {loop.epoch_number}; {loop.run.resume_by} "
            f"continues it after step {state.step}"
        )
    elif left:
        note(
            f"the last {left} micro-batches made no update, because {state.step} steps are not a "
            f"multiple of accumulate={count}; a longer fit that resumes this run uses them"
        )


def higher_is_better(name: str) -> bool:
    """Return whether a larger value of the metric ``name`` is better."""
    return not any(word in name.lower() for word in _LOWER)


def known_monitor(
    name: Optional[str], model: Any, given: Mapping[str, Any], run: Any
) -> Optional[str]:
    """Return the monitor's name in Keras' logs, e.g. ``acc`` for "accuracy" on TensorFlow 1.15.

    Raises:
      AmpXlaError: the logs of ``fit`` will not have the monitor.
    """
    validates = given["validation_data"] is not None or given.get("validation_split")
    values = [f"val_{metric}" for metric in model.metrics_names] if validates else []
    if name is None or name in values or f"val_{name}" in values:
        return name
    for one, other in (("accuracy", "acc"), ("acc", "accuracy")):
        written = f"{name[: -len(one)]}{other}"
        if name.endswith(one) and (written in values or f"val_{written}" in values):
            return written
    others = [callback for callback in given["callbacks"] if callback is not run]
    if not any(map(_writes, others)):
        raise AmpXlaError(
            f"Run(monitor={name!r}): fit has no such value; "
            + (f"allowed: {', '.join(values)}" if values else "pass validation_data to fit")
        )
    return name  # a callback may write it


def choose_monitor(
    loop: Any, name: Optional[str], values: Mapping[str, float], missing: Optional[str]
) -> Optional[str]:
    """If ``name`` is None and this epoch lacks ``loop``'s monitor, monitor the first of ``values``.

    Args:
      values: validation values of this epoch.
      missing: what this function returned for the epoch before; None for the first epoch.

    Returns:
      "" once an epoch had the monitor; before that, an error message, or None without ``name``.
    """
    if loop.options.monitor in values:
        return ""
    if name is None:
        first = next(iter(values))
        loop.options = dataclasses.replace(
            loop.options, monitor=first, higher_is_better=higher_is_better(first)
        )
        write_status(loop, "running")
    elif missing is None:
        missing = (
            f"Run(monitor={name!r}): the epoch logs have no such value; allowed: "
            f"{', '.join(f'val_{each}' for each in values)}"
        )
    return missing


def _writes(callback: Any) -> bool:
    """Return whether a callback runs code of the script, which may add values to the logs."""
    is_own = not script_walk.is_library(type(callback).__module__)
    return is_own or isinstance(callback, keras.callbacks.LambdaCallback)
