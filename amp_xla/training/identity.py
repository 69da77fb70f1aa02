"""Identity of a run: data, settings and versions that a resumed run must share."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, List, Mapping, NamedTuple

import numpy as np

from amp_xla.config import fields, flat
from amp_xla.data.batches.protocol import BatchSource
from amp_xla.data.batches.rank_shard import whole
from amp_xla.errors import AmpXlaError
from amp_xla.training.engine import Engine
from amp_xla.training.options import RunOptions

# How long a run is. More of it than before extends the run.
LENGTHS = ("epochs", "steps")
_PARTS = {  # part of an identity -> what a message calls one of its entries
    "variables": "model", "config": "setting", "settings": "setting", "data": "data",
    "assets": "file", "versions": "version",
}  # fmt: skip
_STEPS = "steps an epoch"


class Differences(NamedTuple):
    """One line per difference.

    Attributes:
      fatal: refused even with ``--force``.
      forcible: refused without ``--force``.
      longer: allowed, as the training only becomes longer.
    """

    fatal: List[str]
    forcible: List[str]
    longer: List[str]


def describe(engine: Engine, config: Any, files: Mapping[str, bytes]) -> Dict[str, Any]:
    """Return the JSON-able identity of a run, saved with each checkpoint."""
    return {
        "variables": engine.shapes(),
        "data": {**engine.job.identity, **_batches(whole(engine.job.batches))},
        "assets": digests(files),
        "config": settings_of(config),
        "may change": may_change(config),
        "settings": dict(engine.settings),
        "versions": dict(engine.versions),
    }


def same_on_all(ranks: Any, identity: Mapping[str, Any]) -> None:
    """Raise AmpXlaError that names the first rank with other data, settings or versions."""
    identities = ranks.gather([ranks.world.name, json.loads(json.dumps(identity))])
    for name, other in identities[1:]:
        apart = differences(identities[0][1], other)
        lines = apart.fatal + apart.forcible + apart.longer
        if lines:
            raise AmpXlaError(
                f"{name} has another job (now) than {identities[0][0]} (then): "
                f"{'; '.join(lines[:3])}"
            )


def settings_of(config: Any) -> Dict[str, Any]:
    """Return a recipe's settings by name, without ``RunOptions``."""
    return {name: value for name, value in flat(config).items() if name not in fields(RunOptions)}


def may_change(config: Any) -> List[str]:
    """Return names of the settings that may change on resume."""
    return [name for name, field in fields(type(config)).items() if field.may_change]


def digests(assets: Mapping[str, bytes]) -> Dict[str, str]:
    """Return file name -> SHA-256 (hex) of its content."""
    return {name: hashlib.sha256(data).hexdigest() for name, data in assets.items()}


def _batches(batches: BatchSource) -> Dict[str, Any]:
    """Return steps per epoch, and a hash of the first batch: its order, size and tokens."""
    digest = hashlib.sha256()
    for name, value in sorted(next(batches.epoch(0), {}).items()):
        digest.update(f"{name}{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return {_STEPS: batches.steps_per_epoch(0), "first batch": digest.hexdigest()}


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Differences:
    """Return the differences between a checkpoint's identity and that of the current job."""
    old_parts = {part: dict(then.get(part, {})) for part in _PARTS}
    new_parts = {part: dict(now[part]) for part in _PARTS}
    longer = []
    for key in LENGTHS:
        old, new = old_parts["config"].get(key), new_parts["config"].get(key)
        if isinstance(old, int) and isinstance(new, int) and old < new:
            longer.append(f"{key} {old} then, {new} now")
            del old_parts["config"][key], new_parts["config"][key]
            # If one pass is the whole run, it has other steps, too.
            for side in (old_parts, new_parts):
                side["data"].pop(_STEPS, None)
    for side in (old_parts, new_parts):
        for key in now["may change"]:
            side["config"].pop(key, None)
    fatal, *forcible = (_compare(k, old_parts[part], new_parts[part]) for part, k in _PARTS.items())
    if len(fatal) > 3:
        fatal[3:] = [f"... and {len(fatal) - 3} more variables"]
    return Differences(fatal, [line for lines in forcible for line in lines], longer)


def _compare(kind: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> List[str]:
    lines = []
    for key in sorted({*then, *now}):
        before, after = (side.get(key, "absent") for side in (then, now))
        # JSON made lists of tuples.
        if before != after and before != (list(after) if isinstance(after, tuple) else after):
            lines.append(f"{kind} {key}: {_short(before)} then, {_short(after)} now")
    return lines


def _short(value: Any) -> str:
    text = str(value)
    return f"{text[:8]}..." if len(text) == 64 else text
