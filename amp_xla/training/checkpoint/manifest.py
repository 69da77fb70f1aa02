"""What makes a checkpoint whole: a list of its files with their SHA-256, and pointers to it.

No TensorFlow here, so that ``amp-xla verify`` answers at once.

A manifest's first line is the SHA-256 of everything below it; below is JSON. A pointer (``LAST``,
``BEST``) is one line: a checkpoint's name and the SHA-256 of that name.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from amp_xla.process import durable
from amp_xla.training import documents

MANIFEST, LAST, BEST = "MANIFEST", "LAST", "BEST"
_NAME = re.compile(r"step-(\d+)(?:\.(\d+))?")


def sha256(path: Path) -> str:
    """Hex digest of a file's content."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def write(folder: Path, name: str) -> None:
    """Writes the manifest of all files below ``folder``, which is to be published as ``name``."""
    files = {
        file: {"bytes": (folder / file).stat().st_size, "sha256": sha256(folder / file)}
        for file in contents(folder)
        if not (folder / file).is_dir()
    }
    body = documents.encode({"checkpoint": name, "files": files})
    head = hashlib.sha256(body).hexdigest().encode() + b"\n"
    durable.write(folder / MANIFEST, head + body)


def contents(folder: Path) -> List[str]:
    """What lies below a folder, by its path in it: files, links (not followed), empty folders."""
    found = []
    for path in sorted(folder.iterdir()):
        inner = contents(path) if path.is_dir() and not path.is_symlink() else []
        found += [f"{path.name}/{name}" for name in inner] or [path.name]
    return found


def read(folder: Path) -> Dict[str, Any]:
    """The manifest of a checkpoint.

    Raises:
      ValueError: it is missing or damaged; the message says which.
    """
    try:
        data = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise ValueError(f"{MANIFEST}: {error.strerror}") from error
    head, newline, body = data.partition(b"\n")
    if not newline or head != hashlib.sha256(body).hexdigest().encode():
        raise ValueError(f"{MANIFEST}: damaged ({len(data)} bytes do not match their own SHA-256)")
    try:
        found = documents.decode(MANIFEST, body)
    except ValueError as error:
        raise ValueError(f"{MANIFEST}: {error}") from error
    for file in found["files"]:
        if not all(Path(part).name == part for part in file.split("/")):
            raise ValueError(f"{MANIFEST}: names {file!r}, which is no file beside it")
    return found


def problems(folder: Path, only: Optional[str] = None) -> List[str]:
    """What is wrong with a checkpoint, one line a file; empty = whole.

    Every byte is read. Files that the manifest does not list count as wrong: whoever put them
    there may have replaced others too.

    Args:
      folder: the checkpoint.
      only: look at this file, and at no other; one that is not listed is wrong.
    """
    try:
        listed = read(folder)
        present = set(contents(folder))
    except (ValueError, OSError) as error:
        return [str(error)]
    found = []
    if listed["checkpoint"] != folder.name:
        found.append(f"{MANIFEST}: belongs to {listed['checkpoint']}, not to {folder.name}")
    if only is not None:
        if only not in listed["files"]:
            return [*found, f"{only}: not in the manifest"]
        listed["files"] = {only: listed["files"][only]}
        present = set()
    for name, expected in sorted(listed["files"].items()):
        path = folder / name
        try:
            status = path.stat()
            size = status.st_size
            if not stat.S_ISREG(status.st_mode):
                found.append(f"{name}: not a file")
            elif size != expected["bytes"]:
                found.append(f"{name}: {size} bytes instead of {expected['bytes']}")
            elif sha256(path) != expected["sha256"]:
                found.append(f"{name}: content differs from its SHA-256")
        except OSError as error:
            missing = not os.path.lexists(str(path))
            found.append(f"{name}: {'missing' if missing else error.strerror}")
    if len(found) > 1:
        found.append(f"{MANIFEST}: or else this is another checkpoint's")
    extra = present - set(listed["files"]) - {MANIFEST}
    return found + [f"{name}: foreign, not in the manifest" for name in sorted(extra)]


def size(folder: Path) -> int:
    """Bytes of all files of a checkpoint."""
    files = (folder / name for name in contents(folder))
    return sum(path.stat().st_size for path in files if path.is_file())


def order(name: str) -> Optional[Tuple[int, int]]:
    """(step, revision) of a step checkpoint's name; None for other names."""
    match = _NAME.fullmatch(name)
    return (int(match.group(1)), int(match.group(2) or 0)) if match else None


def steps(folder: Path) -> List[Path]:
    """The step checkpoints in ``folder``, oldest first, whole or not."""
    try:
        found = [path for path in folder.iterdir() if order(path.name) and path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found, key=lambda path: order(path.name) or (0, 0))


def point(folder: Path, pointer: str, name: str) -> None:
    """Swaps ``pointer`` (``LAST`` or ``BEST``) to the checkpoint ``name``."""
    durable.replace(folder / pointer, _pointer_line(name))


def pointed(folder: Path, pointer: str) -> Optional[str]:
    """The name a pointer holds; None where there is no such pointer.

    Raises:
      ValueError: it is damaged.
    """
    try:
        data = (folder / pointer).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{pointer}: {error.strerror}") from error
    name = data.split(b" ")[0].decode("ascii", "replace")
    if order(name) is None or data != _pointer_line(name):
        raise ValueError(f"{pointer}: damaged ({data[:80]!r})")
    return name


def _pointer_line(name: str) -> bytes:
    return f"{name} {hashlib.sha256(name.encode()).hexdigest()}\n".encode()
