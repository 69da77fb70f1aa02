"""The built-in corpus to pretrain on: docstrings of the standard library and installed packages."""

from __future__ import annotations

import ast
import math
import os
import re
import sysconfig
from typing import Any, Dict, Iterable, Iterator, List, Tuple

from amp_xla.data.text import corpora

SKIPPED = frozenset(["test", "tests", "testing", "idle_test", "__pycache__", "site-packages"])
GROUP = 50  # files per task


def sources(most_bytes: int) -> List[List[Tuple[str, str]]]:
    """Return groups of (package, path of a .py file): the standard library, then other packages.

    Args:
      most_bytes: source text per package; of a larger one every n-th file is taken. Without a
        limit half of the text would be TensorFlow's documentation.
    """
    packages: Dict[str, List[Tuple[str, int]]] = {}
    paths = sysconfig.get_paths()
    for root in dict.fromkeys((paths["stdlib"], paths["purelib"], paths["platlib"])):
        for here, folders, names in os.walk(root):
            folders[:] = sorted(set(folders) - SKIPPED)
            for name in sorted(names):
                path = os.path.join(here, name)
                if name.endswith(".py") and not name.startswith("test_"):
                    package = os.path.relpath(path, root).split(os.sep)[0]
                    package = package[:-3] if package.endswith(".py") else package
                    packages.setdefault(package, []).append((path, os.path.getsize(path)))
    files_of_packages: List[Tuple[str, str]] = []
    for package, files in packages.items():
        every = max(1, math.ceil(sum(size for _, size in files) / most_bytes))
        files_of_packages += [(package, path) for path, _ in files[::every]]
    starts = range(0, len(files_of_packages), GROUP)
    return [files_of_packages[i : i + GROUP] for i in starts]


def documents(group: List[Tuple[str, str]]) -> List[str]:
    """Return docstrings of a few words or more, without the classification corpus' dev texts.

    White space becomes single spaces. Copies stay.
    """
    out: List[str] = []
    for package, path in group:
        package_name = re.compile(re.escape(package), re.IGNORECASE)
        for text in _docstrings(path):
            text = " ".join(text.split())
            if len(text.split()) < corpora.MIN_WORDS:
                continue
            # The classification corpus removes a package's name first.
            if not corpora.is_dev(" ".join(package_name.sub(" ", text).split())):
                out.append(text)
    return out


def distinct(groups: Iterable[List[str]]) -> List[str]:
    """Return the texts in order, each once."""
    return list(dict.fromkeys(text for group in groups for text in group))


def _docstrings(path: str) -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    todo: List[Any] = [corpora.parsed(path)]
    while todo:
        node = todo.pop()
        if node is not None:
            text = ast.get_docstring(node)
            if text and corpora.is_text(text):
                yield text
            todo += [child for child in reversed(node.body) if isinstance(child, kinds)]
