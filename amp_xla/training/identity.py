"""What must be the same for a resumed run to be the same run."""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

import numpy as np

from amp_xla import backend, setup
from amp_xla.training import manifest

# Changing these changes no step: the data behind a path is compared by content. Run options
# (name, cadence of checkpoints) are left out altogether.
_FREE = ("log_every", "train", "dev", "bert", "vocab")


class Differences(NamedTuple):
    """One line each; ``fatal`` cannot be overridden."""

    fatal: List[str]
    forcible: List[str]


def describe(job: Any, config: Any, shapes: Mapping[str, str]) -> Dict[str, Any]:
    """JSON-able; saved with every checkpoint, compared by ``differences``.

    Args:
      job: ``Job``.
      config: the recipe's frozen dataclass.
      shapes: name -> dtype and shape of every variable saved.
    """
    settings = dataclasses.asdict(setup.current())
    settings["half precision"] = backend.half_dtype()[0]
    return {
        "variables": dict(shapes),
        "data": {**job.identity, **_batches(job.batches)},
        "assets": _assets(job.assets),
        "config": {k: v for k, v in dataclasses.asdict(config).items() if k != "run"},
        "settings": settings,
        "versions": {
            "TensorFlow": backend.tensorflow().__version__,
            "bert4keras": ".".join(map(str, backend.bert4keras_version())),
        },
    }


def _assets(assets: Mapping[str, Any]) -> Dict[str, str]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, save in sorted(assets.items()):
            path = Path(folder) / name
            save(str(path))
            found[name] = manifest.sha256(path)
    return found


def _batches(batches: Any) -> Dict[str, Any]:
    """How many steps an epoch has, and what its first, middle and last batch hold.

    That covers seed, order, batch size, lengths and tokenization at the price of three batches.
    """
    steps = batches.steps_per_epoch(0)
    digest = hashlib.sha256()
    for index in sorted({0, steps // 2, max(steps - 1, 0)}):
        for batch in batches.epoch(0, start=index):
            for name, value in sorted(vars(batch).items()):
                if isinstance(value, np.ndarray):
                    digest.update(f"{name}{value.dtype}{value.shape}".encode())
                    digest.update(np.ascontiguousarray(value).tobytes())
            break
    return {"steps an epoch": steps, "batches (order, size, tokens)": digest.hexdigest()}


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Differences:
    """What differs between a checkpoint's identity and that of the job at hand."""
    fatal = _compare("model", then["variables"], now["variables"])
    if len(fatal) > 3:
        fatal[3:] = [f"... and {len(fatal) - 3} more variables"]
    forcible = _compare("data", then["data"], now["data"])
    forcible += _compare("file", then["assets"], now["assets"])
    configs = [{k: v for k, v in c["config"].items() if k not in _FREE} for c in (then, now)]
    forcible += _compare("setting", *configs)
    forcible += _compare("setting", then["settings"], now["settings"])
    forcible += _compare("version", then["versions"], now["versions"])
    return Differences(fatal, forcible)


def _compare(kind: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> List[str]:
    found: List[Tuple[str, str, str]] = []
    for key in sorted(set(then) | set(now)):
        before, after = (side.get(key, "absent") for side in (then, now))
        # JSON made lists of tuples.
        if before != after and before != (list(after) if isinstance(after, tuple) else after):
            found.append((key, _short(before), _short(after)))
    return [f"{kind} {key}: {before} then, {after} now" for key, before, after in found]


def _short(value: Any) -> str:
    text = str(value)
    return f"{text[:8]}..." if len(text) == 64 else text
