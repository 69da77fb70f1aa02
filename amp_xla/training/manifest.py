"""The manifest of a checkpoint: size and SHA-256 of each file. Imports no TensorFlow."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

from amp_xla.process import json_files, regular
from amp_xla.process.durable import sha256

TENSORS, STATE, MANIFEST = "tensors.safetensors", "state.json", "manifest.json"


def entry(path: Path) -> Dict[str, Any]:
    """Return a file's entry in a manifest."""
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def encode(name: str, files: Mapping[str, Any]) -> bytes:
    """Return a manifest for the checkpoint ``name``, with its own SHA-256."""
    listed = {"checkpoint": name, "files": files}
    digest = hashlib.sha256(json_files.encode(listed)).hexdigest()
    return json_files.encode({**listed, "sha256": digest})


def read_manifest(path: Path) -> Dict[str, Any]:
    """Return file name -> ``bytes`` and ``sha256`` of each file of a checkpoint.

    Raises:
      ValueError: the manifest is missing or damaged; the message names it.
    """
    try:
        data = regular.read(path / MANIFEST)
        manifest = json_files.decode(data)
        json_files.require(manifest, {"checkpoint": str, "files": dict})
        if data != encode(manifest["checkpoint"], manifest["files"]):
            raise ValueError("content differs from its own SHA-256")
        if manifest["checkpoint"] != path.name:
            raise ValueError(f"belongs to {manifest['checkpoint']}, not to {path.name}")
    except OSError as error:
        raise ValueError(f"{MANIFEST}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{MANIFEST}: {error}") from error
    files: Dict[str, Any] = manifest["files"]
    return files


def problems(path: Path, only: Sequence[str] = ()) -> List[str]:
    """Return what is wrong with a checkpoint, one line per file; empty if it is whole.

    The whole content is read. Links and files that are not in the manifest count as damage.

    Args:
      path: the checkpoint.
      only: names of the files to check; empty = all.
    """
    try:
        listed = read_manifest(path)
        present = set(os.listdir(str(path))) - {MANIFEST}
    except (ValueError, OSError) as error:
        return [str(error)]
    wrong = []
    for name in sorted(only or {*listed, *present, STATE, TENSORS}):
        file = path / name
        try:
            if name not in present:  # also for a name outside this folder, e.g. ../x
                wrong.append(f"{name}: missing")
            elif name not in listed:
                wrong.append(f"{name}: not in the manifest")
            elif file.is_symlink() or not file.is_file():
                wrong.append(f"{name}: not a regular file")
            elif not _fits(file, listed[name]):
                wrong.append(f"{name}: content differs from its SHA-256")
        except OSError as error:
            wrong.append(f"{name}: {error.strerror}")
    if len(wrong) > 1:
        wrong.append(f"{MANIFEST}: may belong to another checkpoint")
    return wrong


def _fits(file: Path, listed: Any) -> bool:
    size = listed.get("bytes") if isinstance(listed, dict) else None
    return size == file.stat().st_size and entry(file) == listed
