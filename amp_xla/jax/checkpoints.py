"""Checkpoints through Orbax, under the rules of ``training.checkpoint``: whole, or not there.

A checkpoint's folder holds what Orbax wrote, in ``arrays/``, the assets, ``state.json`` and the
manifest with the SHA-256 of every file; it gets its name last.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping

import jax
import numpy as np
import orbax.checkpoint as ocp

from amp_xla.jax import processes
from amp_xla.jax.bert import named
from amp_xla.process import durable
from amp_xla.training import documents
from amp_xla.training.checkpoint import STATE, CheckpointError, directory, manifest
from amp_xla.training.checkpoint.directory import Cost

ARRAYS = "arrays"


class Checkpoints:
    """Writes and reads the checkpoints of one run; the first process writes.

    Args:
      folder: ``runs/<recipe>/<name>/checkpoints``; exists when the first one is written.
      keep: how many of the newest stay, besides the best.
      assets: file name -> content.
      published: called once a checkpoint is on disk.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        assets: Mapping[str, bytes],
        published: Callable[[], None],
    ) -> None:
        self.folder, self._keep = folder, keep
        self._assets, self._published = dict(assets), published
        self._written, self._seconds, self._bytes = 0, 0.0, 0

    @property
    def cost(self) -> Cost:
        """What it has cost so far; all of it is held: nothing goes on beside it."""
        return Cost(self._written, self._seconds, self._seconds, self._bytes)

    def save(self, step: int, state: Any, document: Dict[str, Any], best: bool) -> None:
        """Writes one and returns when it is on disk.

        Args:
          step: names the checkpoint.
          state: the arrays, whole on every device.
          document: goes into ``state.json``.
          best: swap the pointer ``BEST`` to it.

        Raises:
          CheckpointError: it could not be written, or a number in it is not finite; the older
            ones are as they were.
        """
        if not processes.first():
            return
        began = time.monotonic()
        arrays = _host(state)
        for name, array in arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise CheckpointError(f"{name} is not finite, so step {step} was not written")
        name = directory.free_name(self.folder, step)
        temporary = self.folder / f"{durable.TEMPORARY}{name}"
        try:
            if temporary.exists():
                durable.remove(temporary)
            temporary.mkdir()
            _orbax().save((temporary / ARRAYS).absolute(), arrays)
            for asset, data in sorted(self._assets.items()):
                durable.write(temporary / asset, data)
            durable.write(temporary / STATE, documents.encode(document))
            for path in sorted(temporary.rglob("*")):
                (durable.sync_folder if path.is_dir() else durable.sync_file)(path)
            directory.publish(temporary, self.folder / name, best)
            self._published()
            directory.prune(self.folder, self._keep)
        except (OSError, ValueError) as error:
            shutil.rmtree(str(temporary), ignore_errors=True)
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CheckpointError(
                f"cannot write the checkpoint {self.folder / name}: {reason}"
            ) from error
        self._written += 1
        self._seconds += time.monotonic() - began
        self._bytes = manifest.size(self.folder / name)


def shapes(state: Any) -> Dict[str, str]:
    """Name -> ``float32[21128,768]`` of every array."""
    return {name: _described(leaf) for name, leaf in named(state)}


def _described(array: Any) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def restored(path: Path, like: Any, part: str = "") -> Any:
    """A tree like ``like`` with the arrays of a checkpoint, on all devices.

    Args:
      path: the checkpoint.
      like: a ``State``, or a part of one.
      part: where in the state it lies, e.g. ``.model``.

    Raises:
      CheckpointError: other arrays are in it, or it cannot be read.
    """
    try:
        found = _orbax().restore((path / ARRAYS).absolute())
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"cannot read {path}: {str(error).splitlines()[0]}") from error
    wanted = {part + name: shape for name, shape in shapes(like).items()}
    there = {name: _described(array) for name, array in found.items()}
    wrong = [
        f"array {name}: found {there.get(name, 'none')}, wanted {wanted[name]}"
        for name in wanted
        if there.get(name) != wanted[name]
    ]
    if wrong:
        raise CheckpointError(
            f"{path} holds another model, and cannot be used: {'; '.join(wrong[:3])}"
        )
    leaves: List[Any] = [np.asarray(found[name]) for name in wanted]
    tree = jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(like), leaves)
    return processes.put(tree)


def _host(state: Any) -> Dict[str, np.ndarray]:
    return {name: np.asarray(leaf.addressable_data(0)) for name, leaf in named(state)}


def _orbax() -> Any:
    """What writes and reads NumPy arrays in this process alone."""
    here = {jax.process_index()}
    options = ocp.options.MultiprocessingOptions(
        primary_host=jax.process_index(),
        active_processes=here if jax.process_count() > 1 else None,
        barrier_sync_key_prefix="amp_xla" if jax.process_count() > 1 else None,
    )
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=options)
    return ocp.Checkpointer(handler, multiprocessing_options=options)
