"""The built-in corpora: docstrings of the standard library and of installed packages."""

from __future__ import annotations

import ast
import collections
import functools
import hashlib
import math
import os
import re
import sysconfig
import warnings
from typing import Dict, Iterator, List, Optional, Set, Tuple

import numpy as np

from amp_xla.data.text.lines import text_problem
from amp_xla.data.text.readers import Dataset
from amp_xla.errors import DataError

PACKAGES = 12  # labels: the packages with most docstrings
DEV_SHARE = 0.15
MIN_WORDS = 3  # shorter texts, such as "See also", occur in every package
# Tests document nothing; the others are not the standard library.
SKIPPED = frozenset("test tests testing idle_test site-packages dist-packages __pycache__".split())
PACKAGE_BYTES = 2_000_000  # about a tenth of it are docstrings
GROUP = 50  # files per task of a worker process
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@functools.lru_cache(maxsize=None)
def pydoc() -> Tuple[Dataset, Dataset]:
    """Return training and dev texts: docstrings, labelled with one of 12 packages.

    About 3,300 English texts, the same in every run of one Python version. A package's name is
    removed from its texts, and white space becomes single spaces. The SHA-256 of a text decides
    whether it is a dev text, so copies are never in both parts. Copies within a package count once.
    Texts that occur in several packages are left out.
    """
    root = sysconfig.get_paths()["stdlib"]
    by_package: Dict[str, List[str]] = {}
    for name in sorted(os.listdir(root)):
        folder = os.path.join(root, name)
        if name not in SKIPPED and os.path.isfile(os.path.join(folder, "__init__.py")):
            trees = filter(None, map(parsed, python_files(folder)))
            texts = {text for tree in trees for text in _public(tree)}
            by_package[name] = sorted(text for text in texts if not text_problem(text))
    largest = sorted(by_package, key=lambda name: (-len(by_package[name]), name))[:PACKAGES]
    labels = sorted(name for name in largest if by_package[name])
    if len(labels) < 2:
        raise DataError(
            f"{root}: only these packages have docstrings: {', '.join(labels) or 'none'}. The "
            "built-in corpus needs a Python with the .py files of its standard library; or give "
            "--train FILE and --dev FILE"
        )

    owners: Dict[str, Set[str]] = collections.defaultdict(set)
    for label in labels:
        package_name = re.compile(re.escape(label), re.IGNORECASE)
        for text in by_package[label]:
            text = " ".join(package_name.sub(" ", text).split())
            if len(text.split()) >= MIN_WORDS:
                owners[text].add(label)
    train, dev = (Dataset(texts, labels=names) for texts, names in sides(owners))
    return train, dev


def sides(values: Dict[str, Set[str]]) -> List[Tuple[List[str], List[str]]]:
    """Split texts into training and dev texts, and leave out texts with several values.

    Args:
      values: text -> its values, such as labels.

    Returns:
      (texts, value of each text) of the training part and of the dev part.
    """
    samples = sorted((text, min(each)) for text, each in values.items() if len(each) == 1)
    parts = [[s for s in samples if is_dev(s[0]) == dev] for dev in (False, True)]
    return [([text for text, _ in part], [value for _, value in part]) for part in parts]


@functools.lru_cache(maxsize=None)
def pydoc_pairs() -> Tuple[Dataset, Dataset]:
    """Return training and dev pairs: do two docstrings of ``pydoc`` come from one package?

    Each text comes first in two pairs. In one, label 1, the second text is from the same package;
    in the other, label 0, from another package. Training pairs consist of ``pydoc``'s training
    texts, dev pairs of its dev texts. The pairs are the same in every run.
    """
    train, dev = pydoc()
    return _pairs(train), _pairs(dev)


def _pairs(data: Dataset) -> Dataset:
    draw = np.random.RandomState(0)
    packages = np.array(data.labels)
    texts, pairs, labels = [], [], []
    for i, package in enumerate(packages):
        same = packages == package
        for label, others in (("1", np.flatnonzero(same)), ("0", np.flatnonzero(~same))):
            others = others[others != i]
            if len(others):
                texts.append(data.texts[i])
                pairs.append(data.texts[others[draw.randint(len(others))]])
                labels.append(label)
    return Dataset(texts, pairs, labels)


def is_dev(text: str) -> bool:
    """Return whether a text is a dev text; this depends on the text alone."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") < DEV_SHARE * 2**64


def python_files(folder: str) -> Iterator[str]:
    """Yield the paths of a folder's .py files, except tests."""
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - SKIPPED)
        yield from (os.path.join(here, name) for name in sorted(files) if name.endswith(".py"))


def parsed(path: str) -> Optional[ast.Module]:
    """Return the syntax tree of a file, or None if it is not Python 3.

    The file is only parsed, so no code runs and missing modules do not matter.
    """
    try:
        with open(path, "rb") as handle, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in old files
            return ast.parse(handle.read())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _public(node: ast.AST) -> Iterator[str]:
    """Yield the docstrings of modules, public classes, functions and methods, as pydoc does."""
    if isinstance(node, DOCUMENTED):
        name = getattr(node, "name", "")
        if name.startswith("_") and not name.endswith("__"):
            return
        text = ast.get_docstring(node)
        if text:
            yield text
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return  # definitions inside a function are not public
    for child in ast.iter_child_nodes(node):
        yield from _public(child)


def package_files() -> List[List[Tuple[str, str]]]:
    """Return groups of (package, path of a .py file): the standard library, then other packages.

    If a package has more than ``PACKAGE_BYTES``, only every n-th file is taken. Otherwise half of
    the text would be TensorFlow's documentation.
    """
    packages: Dict[str, List[str]] = {}
    paths = sysconfig.get_paths()
    for root in dict.fromkeys((paths["stdlib"], paths["purelib"], paths["platlib"])):
        for path in python_files(root):
            if not os.path.basename(path).startswith("test_"):
                package = os.path.relpath(path, root).split(os.sep)[0]
                package = package[:-3] if package.endswith(".py") else package
                packages.setdefault(package, []).append(path)
    chosen: List[Tuple[str, str]] = []
    for package, files in packages.items():
        every = max(1, math.ceil(sum(map(os.path.getsize, files)) / PACKAGE_BYTES))
        chosen += [(package, path) for path in files[::every]]
    return [chosen[i : i + GROUP] for i in range(0, len(chosen), GROUP)]


def docstrings(group: List[Tuple[str, str]]) -> List[str]:
    """Return docstrings, one line each; leave out short ones and dev texts of ``pydoc``.

    Args:
      group: (package, path) of each .py file.
    """
    texts: List[str] = []
    for package, path in group:
        package_name = re.compile(re.escape(package), re.IGNORECASE)
        for text in _all(parsed(path)):
            text = " ".join(text.split())
            # ``pydoc`` removes the package's name before it chooses the dev texts.
            without_name = " ".join(package_name.sub(" ", text).split())
            if len(text.split()) >= MIN_WORDS and not is_dev(without_name):
                texts.append(text)
    return texts


def _all(node: Optional[ast.AST]) -> Iterator[str]:
    """Yield the docstrings of modules, classes, functions and methods."""
    if isinstance(node, DOCUMENTED):
        text = ast.get_docstring(node)
        if text and not text_problem(text):
            yield text
        for child in node.body:
            yield from _all(child)
