"""The manifest of a checkpoint: size and SHA-256 of each file. Imports no TensorFlow."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

from amp_xla.training import json_files

TENSORS, STATE, MANIFEST = "tensors.safetensors", "state.json", "manifest.json"


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def encode(name: str, files: Mapping[str, Any]) -> bytes:
    """Return a manifest for the checkpoint ``name``, with its own SHA-256."""
    listed = {"checkpoint": name, "files": files}
    digest = hashlib.sha256(json_files.encode(listed)).hexdigest()
    return json_files.encode({**listed, "sha256": digest})


def read_manifest(path: Path) -> Dict[str, Dict[str, Any]]:
    """Return file name -> ``bytes`` and ``sha256`` of each file of a checkpoint.

    Raises:
      ValueError: the manifest is missing or damaged; the message names it.
    """
    try:
        data = (path / MANIFEST).read_bytes()
        manifest = json_files.decode(data)
        json_files.require(manifest, {"checkpoint": str, "files": dict})
        for name, entry in manifest["files"].items():
            if Path(name).name != name or not isinstance(entry, dict):
                raise ValueError(f"{name!r} is not a file of the checkpoint")
            json_files.require(entry, {"bytes": int, "sha256": str}, f"{name}.")
    except OSError as error:
        raise ValueError(f"{MANIFEST}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{MANIFEST}: {error}") from error
    if data != encode(manifest["checkpoint"], manifest["files"]):
        raise ValueError(f"{MANIFEST}: content differs from its own SHA-256")
    if manifest["checkpoint"] != path.name:
        raise ValueError(f"{MANIFEST}: belongs to {manifest['checkpoint']}, not to {path.name}")
    files: Dict[str, Dict[str, Any]] = manifest["files"]
    return files


def problems(path: Path, only: Sequence[str] = ()) -> List[str]:
    """Return what is wrong with a checkpoint, one line per file; empty if it is whole.

    Each byte is read. Links are not followed, and files missing from the manifest are wrong.

    Args:
      path: the checkpoint.
      only: names of the files to check; empty = all.
    """
    try:
        listed = read_manifest(path)
        present = os.listdir(str(path))
    except (ValueError, OSError) as error:
        return [str(error)]
    wrong = []
    for name in sorted(only or {*listed, STATE, TENSORS}):
        try:
            status = os.lstat(str(path / name))
            if name not in listed:
                wrong.append(f"{name}: not in the manifest")
            elif not stat.S_ISREG(status.st_mode):
                wrong.append(f"{name}: not a regular file")
            elif status.st_size != listed[name]["bytes"]:
                wrong.append(f"{name}: {status.st_size} bytes instead of {listed[name]['bytes']}")
            elif sha256(path / name) != listed[name]["sha256"]:
                wrong.append(f"{name}: content differs from its SHA-256")
        except FileNotFoundError:
            wrong.append(f"{name}: missing")
        except OSError as error:
            wrong.append(f"{name}: {error.strerror}")
    if len(wrong) > 1:
        wrong.append(f"{MANIFEST}: unless it is another checkpoint's")
    extra = [] if only else sorted(set(present) - set(listed) - {MANIFEST, STATE, TENSORS})
    return wrong + [f"{name}: not in the manifest" for name in extra]
