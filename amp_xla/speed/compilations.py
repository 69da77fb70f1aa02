"""What XLA really compiled: read from the modules that it dumps, one file a compilation.

XLA has no counter that Python can read, on either TensorFlow. With ``--xla_dump_to`` it writes each
module before it compiles it; the file names the cluster and the shapes of its arguments.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Set, Tuple

XLA_FLAGS = "XLA_FLAGS"
_BEFORE = "before_optimizations.txt"
_MODULE = re.compile(r"^HloModule ([\w.\-]+)")
# XLA of 2.x says the shapes of the arguments in the first line, that of 1.15 at the entry.
_LAYOUT = re.compile(r"entry_computation_layout=\{\((.*?)\)->")
_ENTRY = re.compile(r"^ENTRY [^(]*\((.*)\) -> ", re.MULTILINE)
_SHAPE = re.compile(r"[a-z]+\d*\[[\d,]*\]")
_CLUSTER = re.compile(r"(cluster_\d+)")


@dataclasses.dataclass(frozen=True)
class Compilation:
    """One module that XLA compiled.

    Attributes:
      cluster: ``cluster_3``; the same cluster compiled for other shapes has the same name.
      shapes: of its arguments, in order, e.g. ``("s32[32,56]", "f32[128,128]")``.
      seconds: from the dump of the module to the last file that was dumped about it; a lower
        bound, code generation may come after.
    """

    cluster: str
    shapes: Tuple[str, ...]
    seconds: float


def flags(folder: Path, environ: Mapping[str, str]) -> Dict[str, str]:
    """The variables that make XLA dump into ``folder``; set them before TensorFlow starts."""
    words = [environ.get(XLA_FLAGS, ""), f"--xla_dump_to={folder}", "--xla_dump_hlo_as_text"]
    return {XLA_FLAGS: " ".join(word for word in words if word)}


class Dump:
    """Reads a folder of dumps as it grows.

    Args:
      folder: what ``flags`` was given; it may not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: Set[str] = set()
        self.compilations: List[Compilation] = []

    def poll(self) -> List[Compilation]:
        """What was compiled since the last call, oldest first; its files are removed."""
        files: Dict[str, List[Path]] = {}
        for path in sorted(self._folder.glob("module_*")):
            files.setdefault(path.name.split(".")[0], []).append(path)
        new = []
        for number in sorted(files):
            before = [p for p in files[number] if p.name.endswith(_BEFORE)]
            if before and number not in self._seen:
                self._seen.add(number)
                found = _read(before[0], files[number])
                if found is not None:
                    new.append(found)
            for path in files[number]:
                path.unlink()
        self.compilations += new
        return new

    def by_cluster(self) -> Dict[str, int]:
        """Cluster -> how often it was compiled."""
        return dict(Counter(c.cluster for c in self.compilations))

    def repeated(self) -> List[Compilation]:
        """Compilations of shapes that had been compiled for the same cluster before."""
        counts = Counter((c.cluster, c.shapes) for c in self.compilations)
        return [c for c in self.compilations if counts[(c.cluster, c.shapes)] > 1]

    @property
    def seconds(self) -> float:
        """All compilations together."""
        return sum(c.seconds for c in self.compilations)


def _read(before: Path, files: List[Path]) -> Optional[Compilation]:
    text = before.read_text(encoding="utf-8", errors="replace")
    module = _MODULE.search(text)
    name = _CLUSTER.search(module.group(1)) if module else None
    if name is None:  # constants that XLA folds by itself are modules too, of no cluster
        return None
    entry = _LAYOUT.search(text.partition("\n")[0]) or _ENTRY.search(text)
    shapes = tuple(_SHAPE.findall(entry.group(1))) if entry else ()
    times = [path.stat().st_mtime for path in files]
    return Compilation(name.group(1), shapes, max(times) - before.stat().st_mtime)


def changed(old: Compilation, new: Compilation) -> List[Tuple[str, str]]:
    """Arguments whose shapes differ, as (old, new), each pair once."""
    pairs = [(a, b) for a, b in zip(old.shapes, new.shapes) if a != b]
    return list(dict.fromkeys(pairs))
