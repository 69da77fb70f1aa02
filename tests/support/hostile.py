"""Hostile folders: files changed at random, the same from the same seed."""

import json
import os
import shutil

from amp_xla.process import durable
from amp_xla.training.manifest import MANIFEST, manifest_of

SECRET = "do-not-show"
# Before a command. Private memory, from what the process that forks has: a limit of all would count
# what is mapped. The alarm ends a process that hangs.
LIMITS = """
import resource, signal
with open("/proc/self/status") as file:
    (used,) = [int(line.split()[1]) for line in file if line.startswith("VmData")]
resource.setrlimit(resource.RLIMIT_DATA, ((used << 10) + (2 << 30),) * 2)
signal.alarm(60)
"""
VALUES = (
    None, True, -1, 0, 3, 10**6, 10**12, 10**18, 10**30, 10**400, 0.5, 1e308, float("inf"), "", "x",
    "nan", "../x", "/etc/passwd", "\u202e\x1b[31m", "\ud800", "x" * 3000, "y" * 10**6, [], {},
    [[[[]]]], {"a": {"b": [{}]}}, ["x", 1, None], [[1e999]] * 9, list(range(10**5)),
)  # fmt: skip
CONTENTS = (
    b"", b"\xff", b"\0", b"null", b"[1]", b"{}", b'"x"', b"{]", b"[" * 10**6, b'{"a":' * 10**6,
    b"[" + b"1," * 10**6 + b"1]", b'{"a": ' + b"9" * 10**7 + b"}", b" " * (17 << 20) + b"{}",
    b'{"step": 1, "plan": ' + b"[" * 300 + b"]" * 300 + b"}\n",
    b"".join(b'{"step": %d, "loss": 1}\n' % i for i in range(500_000)),
)  # fmt: skip


def signed_again(path):
    """Write a manifest for the current content of a checkpoint, as an attacker would."""
    (path / MANIFEST).unlink()
    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": durable.sha256(file)}
        for file in path.iterdir()
        if file.is_file() and not file.is_symlink() and file.stat().st_size < 1 << 30
    }
    (path / MANIFEST).write_bytes(manifest_of(path.name, files))


def _places(value):
    """Yield each container inside a JSON value with each of its keys."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(pairs):
        yield value, key
        if isinstance(inner, (dict, list)):
            yield from _places(inner)


def _field(path, chance):
    """Give a field of a JSON file, or of one of its lines, another value."""
    try:
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        number = chance.randrange(len(lines))
        content = json.loads(lines[number])
        container, key = chance.choice(list(_places(content)) or [({"a": 0}, "a")])
    except (ValueError, TypeError, RecursionError):  # spoiled before
        return "unchanged"
    value = chance.choice(VALUES)
    if chance.random() < 0.1:
        del container[key]
    else:
        container[key] = value
    lines[number] = json.dumps(content)
    path.write_text("\n".join([*lines, ""]))
    return f"{key} = {value!r:.40}"


def _other(path, outside, chance):
    """Put something else in place of a file or folder."""
    target, size = outside / path.name.lstrip("."), path.stat().st_size
    kind = chance.choice(("link", "zero", "pipe", "hard link", "folder", "content"))
    if path.is_file() and (size > 1 << 30 or chance.random() < 0.3):
        kind = chance.choice(("sparse", "flips"))
        with path.open("r+b") as file:
            for _ in range(8 if kind == "flips" else 0):
                file.seek(chance.randrange(min(size, 4096) + 1))
                file.write(bytes([chance.randrange(256)]))
            file.truncate(1 << 40 if kind == "sparse" else size)
        return kind
    if kind == "link" and path.is_dir():
        shutil.move(str(path), str(target))
    else:
        text = path.read_bytes() if path.is_file() else b""
        target.write_bytes(text if kind == "hard link" else SECRET.encode() + text)
        shutil.rmtree(str(path)) if path.is_dir() else path.unlink()
    if kind == "pipe":
        os.mkfifo(str(path))
    elif kind == "folder":
        path.mkdir()
    elif kind == "hard link":
        os.link(str(target), str(path))
    elif kind in ("link", "zero"):
        path.symlink_to(target if kind == "link" else "/dev/zero")
    else:
        path.write_bytes(chance.choice(CONTENTS))
    return kind


def spoil(folder, outside, chance):
    """Change a file of a folder, and often the manifest of its checkpoint.

    Returns:
      What was done, for messages.
    """
    paths = sorted(p for p in folder.rglob("*") if not p.is_symlink())
    texts = [
        p for p in paths
        if p.suffix in (".json", ".jsonl") and p.is_file() and 0 < p.stat().st_size < 1 << 20
    ]  # fmt: skip
    path = chance.choice(texts if texts and chance.random() < 0.7 else paths)
    what = (
        _field(path, chance)
        if path in texts and chance.random() < 0.7
        else _other(path, outside, chance)
    )
    if path.parent.parent.name == "checkpoints" and path.name != MANIFEST and chance.random() < 0.7:
        signed_again(path.parent)
        what += ", signed again"
    return f"{path.relative_to(folder)}: {what}"
