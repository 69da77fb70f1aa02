"""The manifest of a checkpoint: size and SHA-256 of its files; comparison with the files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

from amp_xla.errors import AmpXlaError
from amp_xla.process import durable, json_files, regular
from amp_xla.training.state import STATE

TENSORS, MANIFEST = "tensors.safetensors", "manifest.json"


class CheckpointError(AmpXlaError):
    """A checkpoint is missing, damaged, cannot be written or does not fit the model."""


def _is_whole(path: Path, entry: Any) -> bool:
    """Return whether a file has an entry's size and SHA-256; a file of another size is not read."""
    with regular.opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        same_size = isinstance(entry, dict) and entry.get("bytes") == size
        return same_size and entry == {"bytes": size, "sha256": durable.sha256(file)}


def manifest_of(name: str, files: Mapping[str, Any]) -> bytes:
    """Return the manifest of the checkpoint ``name``; its last field is the SHA-256 of the rest."""
    listed = {"checkpoint": name, "files": files}
    digest = hashlib.sha256(json_files.encode(listed)).hexdigest()
    return json_files.encode({**listed, "sha256": digest})


def write_manifest(folder: Path, name: str) -> None:
    """Write the manifest of the files in ``folder``, which becomes the checkpoint ``name``."""
    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": durable.sha256(file)}
        for file in sorted(folder.iterdir())
    }
    durable.write(folder / MANIFEST, manifest_of(name, files))


def read_manifest(path: Path) -> Dict[str, Any]:
    """Return file name -> ``bytes`` and ``sha256`` of each file of a checkpoint.

    Raises:
      ValueError: the manifest is missing or damaged; the message names it.
      OSError: the manifest cannot be read.
    """
    try:
        data = regular.read(path / MANIFEST)
        manifest = json_files.decode(data)
        json_files.require(manifest, {"checkpoint": str, "files": dict})
        if data != manifest_of(manifest["checkpoint"], manifest["files"]):
            raise ValueError("content differs from the SHA-256 in it")
        if manifest["checkpoint"] != path.name:
            raise ValueError(f"belongs to {manifest['checkpoint']}, not to {path.name}")
    except (FileNotFoundError, regular.NotAFile) as error:
        raise ValueError(f"{MANIFEST}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{MANIFEST}: {error}") from error
    return manifest["files"]


def problems(path: Path, only: Sequence[str] = ()) -> List[str]:
    """Return what is wrong with a checkpoint, one line per file; empty if it is whole.

    The whole content is read. A link counts as damage, and so does a file that is not in the
    manifest.

    Args:
      only: names of the files to check; empty = all.

    Raises:
      CheckpointError: a file cannot be read, e.g. without permission; the checkpoint may be whole.
    """
    try:
        return _problems(path, only)
    except OSError as error:
        raise CheckpointError(
            f"cannot read {error.filename or path}: {error.strerror}; the checkpoint may be whole, "
            f"so no older one is used"
        ) from error


def _problems(path: Path, only: Sequence[str]) -> List[str]:
    present = set(os.listdir(str(path))) - {MANIFEST}
    try:
        listed = read_manifest(path)
    except ValueError as error:
        return [str(error)]
    wrong = []
    for name in sorted(only or {*listed, *present, STATE, TENSORS}):
        file = path / name
        try:
            if name not in present:  # also for a name outside this folder, e.g. ../x
                wrong.append(f"{name}: missing")
            elif name not in listed:
                wrong.append(f"{name}: not in the manifest")
            elif not _is_whole(file, listed[name]):
                wrong.append(f"{name}: content differs from its SHA-256")
        except regular.NotAFile:
            wrong.append(f"{name}: not a regular file")
    if len(wrong) > 1:
        wrong.append(f"{MANIFEST}: may belong to another checkpoint")
    return wrong
