"""Identity of a run: data, settings and versions that must not change on resume."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

import numpy as np

from amp_xla.config import fields, flat
from amp_xla.data.batches.protocol import BatchSource
from amp_xla.data.batches.rank_shard import whole
from amp_xla.data.text.layout import LAYOUT
from amp_xla.errors import AmpXlaError
from amp_xla.settings import Settings
from amp_xla.training.engine import Engine
from amp_xla.training.options import RunOptions

# Settings for the length of a run. A larger value extends the run.
LENGTHS = ("epochs", "steps")
_PARTS = {  # part of an identity -> word for its entries in messages
    "script": "script's", "config": "setting", "settings": "setting", "data": "data",
    "assets": "file", "versions": "version",
}  # fmt: skip
_STEPS = "steps per epoch"


class Differences(NamedTuple):
    """Differences between two identities, one line each.

    Attributes:
      forcible: differences that only ``--force-resume`` allows.
      longer: differences that are allowed: they only make the run longer.
    """

    forcible: List[str]
    longer: List[str]


def describe(engine: Engine, config: Any, files: Mapping[str, bytes]) -> Dict[str, Any]:
    """Return the JSON-able identity of a run, saved with each checkpoint."""
    return {
        "data": {**engine.job.identity, **_batches(whole(engine.job.batches))},
        "script": getattr(engine.job, "script", {}),
        "assets": digests(files),
        # ``REMOVED`` has the settings of older versions, with the values that hold now.
        "config": {**getattr(config, "REMOVED", {}), **settings_of(config)},
        "may change": may_change(config),
        "defaults": {**dataclasses.asdict(Settings()), **settings_of(type(config)())},
        "settings": dict(engine.settings),
        "versions": dict(engine.versions),
    }


def same_on_all(ranks: Any, identity: Mapping[str, Any]) -> None:
    """Raise AmpXlaError if a rank has other data, settings or versions than rank 0."""
    identities = ranks.gather([ranks.world.name, json.loads(json.dumps(identity))])
    first, expected = identities[0]
    for rank, (name, other) in enumerate(identities[1:], 1):
        sides = "on rank 0", f"on rank {rank}"
        lines = [*itertools.chain(*differences(expected, other, sides))]
        if lines:
            raise AmpXlaError(f"{name} differs from {first}: {'; '.join(lines[:3])}")


def settings_of(config: Any) -> Dict[str, Any]:
    """Return a recipe's settings by name, without ``RunOptions``."""
    return {name: value for name, value in flat(config).items() if name not in fields(RunOptions)}


def may_change(config: Any) -> List[str]:
    """Return the names of settings that may change on resume."""
    return [name for name, field in fields(type(config)).items() if field.may_change]


def digests(assets: Mapping[str, bytes]) -> Dict[str, str]:
    """Return file name -> SHA-256 (hex) of its content, except of the texts' layout."""
    files = {name: data for name, data in assets.items() if name != LAYOUT}
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def _batches(batches: BatchSource) -> Dict[str, Any]:
    """Return steps per epoch, and a hash of all arrays of the first batch."""
    digest = hashlib.sha256()
    for name, value in sorted(next(batches.epoch(0), {}).items()):
        digest.update(f"{name}{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return {_STEPS: batches.steps_per_epoch(), "first batch": digest.hexdigest()}


def differences(
    saved: Mapping[str, Any],
    current: Mapping[str, Any],
    sides: Tuple[str, str] = ("in the checkpoint", "now"),
) -> Differences:
    """Return the differences between a checkpoint's identity and that of the current job.

    A setting that only one side has equals its default: it was added or removed since then.

    Args:
      sides: words for the origin of both values.
    """
    old_parts = {part: dict(saved.get(part, {})) for part in _PARTS}
    new_parts = {part: dict(current.get(part, {})) for part in _PARTS}
    for part in ("config", "settings"):
        sides_of = (old_parts[part], new_parts[part])
        for side, other, defaults in (
            (*sides_of, current["defaults"]), (*sides_of[::-1], saved.get("defaults", {}))
        ):  # fmt: skip
            side.update((key, defaults[key]) for key in {*other} - {*side} if key in defaults)
    if not saved.get("script"):  # a checkpoint from before this part, or before a recipe had it
        new_parts["script"] = {}
    longer = []
    for key in LENGTHS:
        old, new = old_parts["config"].get(key), new_parts["config"].get(key)
        if isinstance(old, int) and isinstance(new, int) and old < new:
            longer.append(f"{key} {old} {sides[0]}, {new} {sides[1]}")
            del old_parts["config"][key], new_parts["config"][key]
            # If an epoch is the whole run (pretraining), its number of steps differs, too.
            for side in (old_parts, new_parts):
                side["data"].pop(_STEPS, None)
    old_free, new_free = (
        {key: side["config"].pop(key) for key in current["may change"] if key in side["config"]}
        for side in (old_parts, new_parts)
    )
    forcible = [
        line
        for part, word in _PARTS.items()
        for line in _compare(word, old_parts[part], new_parts[part], sides)
    ]
    if old_parts["data"] != new_parts["data"]:  # a setting that may change can be the cause
        forcible = [*_compare("setting", old_free, new_free, sides), *forcible]
    return Differences(forcible, longer)


def _compare(
    word: str, saved: Mapping[str, Any], current: Mapping[str, Any], sides: Tuple[str, str]
) -> List[str]:
    lines = []
    for key in sorted({*saved, *current}):
        old, new = saved.get(key, "absent"), current.get(key, "absent")
        # A checkpoint is JSON, which turns tuples into lists.
        if old != new and old != (list(new) if isinstance(new, tuple) else new):
            lines.append(f"{word} {key}: {_short(old)} {sides[0]}, {_short(new)} {sides[1]}")
    return lines


def _short(value: Any) -> str:
    text = str(value)
    return f"{text[:8]}..." if len(text) == 64 else text
