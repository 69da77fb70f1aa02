"""Real text that every machine has: the docstrings of the running Python's standard library."""

from __future__ import annotations

import ast
import collections
import functools
import hashlib
import os
import platform
import re
import sysconfig
import warnings
from typing import Dict, Iterator, List, Optional, Set, Tuple

from amp_xla.data.text.dataset import Dataset
from amp_xla.errors import DataError

PACKAGES = 12  # classes: the packages with most docstrings
DEV_SHARE = 0.15
MIN_WORDS = 3  # "See also" and the like belong to every package
# `test` is by far the largest and documents nothing; the others are not the standard library.
SKIPPED = frozenset(["test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"])


@functools.lru_cache(maxsize=None)
def pydoc(stdlib: Optional[str] = None) -> Tuple[Dataset, Dataset]:
    """(train, dev): which of the 12 most documented packages does a docstring belong to?

    About 3,300 documents in English, the same ones on every run of one Python version. A
    package's own name is taken out of its texts. White space is made single spaces. A text goes
    to dev by its SHA-256 alone, so copies of it can't stand on both sides; copies within a package
    count once, texts that several packages share are left out.
    """
    root = stdlib or sysconfig.get_paths()["stdlib"]
    found: Dict[str, List[str]] = {}
    for name in sorted(os.listdir(root)):
        folder = os.path.join(root, name)
        if name not in SKIPPED and os.path.isfile(os.path.join(folder, "__init__.py")):
            found[name] = sorted(set(_docstrings(folder)))
    largest = sorted(found, key=lambda name: (-len(found[name]), name))[:PACKAGES]
    labels = sorted(name for name in largest if found[name])
    if len(labels) < 2:
        raise DataError(
            f"{root}: no standard library with docstrings (found: {', '.join(labels) or 'none'}); "
            "a Python that keeps its .py files is needed, or --train FILE and --dev FILE"
        )

    owners: Dict[str, Set[str]] = collections.defaultdict(set)
    for label in labels:
        own_name = re.compile(re.escape(label), re.IGNORECASE)
        for text in found[label]:
            text = " ".join(own_name.sub(" ", text).split())
            if len(text.split()) >= MIN_WORDS:
                owners[text].add(label)
    samples = sorted((text, min(label)) for text, label in owners.items() if len(label) == 1)
    source = f"pydoc (Python {platform.python_version()})"
    sides = []
    for dev in (False, True):
        side = [(text, label) for text, label in samples if _is_dev(text) == dev]
        sides.append(
            Dataset(
                texts=[text for text, _ in side],
                labels=[label for _, label in side],
                source=f"{source}, {'dev' if dev else 'train'}",
            )
        )
    return sides[0], sides[1]


def _is_dev(text: str) -> bool:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") < DEV_SHARE * 2**64


def _docstrings(folder: str) -> Iterator[str]:
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - SKIPPED)
        for name in sorted(files):
            if name.endswith(".py"):
                yield from _docstrings_of(os.path.join(here, name))


def _docstrings_of(path: str) -> Iterator[str]:
    # Parsed, not imported: nothing runs, and a platform's missing module does not matter.
    try:
        with open(path, "rb") as handle, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in lib2to3's own sources
            tree = ast.parse(handle.read())
    except (OSError, SyntaxError, ValueError):  # lib2to3 keeps files in Python 2 on purpose
        return
    for text in _public(tree):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            continue
        yield text


def _public(node: ast.AST) -> Iterator[str]:
    """Docstrings that pydoc would show: of modules, public classes, functions and methods."""
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        name = getattr(node, "name", "")
        if name.startswith("_") and not name.endswith("__"):
            return
        text = ast.get_docstring(node)
        if text:
            yield text
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return  # what is defined inside a function is nobody's interface
    for child in ast.iter_child_nodes(node):
        yield from _public(child)
