"""The built-in corpora: docstrings and signatures of the standard library and installed packages.

The SHA-256 of a text decides whether it is a dev text, so all copies of a text are in one part.
"""

from __future__ import annotations

import ast
import builtins
import collections
import functools
import hashlib
import json
import math
import os
import re
import sysconfig
import warnings
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import numpy as np

from amp_xla.data.text.entities import Entity, pack
from amp_xla.data.text.lines import text_problem
from amp_xla.data.text.readers import Dataset
from amp_xla.errors import DataError

LIBRARY = sysconfig.get_paths()["stdlib"]
PACKAGES = 12  # labels: the packages with most docstrings
DEV_SHARE = 0.15
MIN_WORDS = 3  # shorter texts, such as "See also", occur in every package
# Tests document nothing; the others are not the standard library.
SKIPPED = frozenset("test tests testing idle_test site-packages dist-packages __pycache__".split())
PACKAGE_BYTES = 2_000_000  # about a tenth of it are docstrings
GROUP = 50  # files per task of a worker process
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITION = (ast.ClassDef, *FUNCTION)
DOCUMENTED = (ast.Module, *DEFINITION)
WORDS_OF_HEADS = 40  # most words of a text with triples
DESCRIPTION = range(4, 41)  # allowed numbers of words of a text with a name
SENTENCES = range(6, 61)  # allowed numbers of words of a passage or a text with entities
SENTENCE = re.compile(r"([^.;: ].*?)(?=[.;:](?: |$)|$)")
RETURNED = re.compile(r"[Rr]eturns? " + SENTENCE.pattern)
MARKUP = re.compile(r":[a-z:]+:(?=`)|[`*]+")
WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
NAME = re.compile(WORD.pattern + r"(\(\))?")
WORD_OF_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
NO_NAMES = frozenset("self cls a A I".split())  # the last three are English words
PARAGRAPHS = re.compile(r"\n\s*\n")
Parts = Tuple[Dataset, Dataset]


@functools.lru_cache(maxsize=None)
def pydoc() -> Parts:
    """Return docstrings as training and dev texts; a text's label is its package, one of 12.

    About 3,300 English texts, the same in every run of one Python version. A package's name is
    removed from its texts, and white space becomes single spaces. Copies within a package count
    once. Texts that occur in several packages are left out.
    """
    by_package: Dict[str, List[str]] = {}
    for name in sorted(os.listdir(LIBRARY)):
        folder = os.path.join(LIBRARY, name)
        if name not in SKIPPED and os.path.isfile(os.path.join(folder, "__init__.py")):
            by_package[name] = sorted({t for tree in trees(folder) for t in _documents(tree, True)})
    largest = sorted(by_package, key=lambda name: (-len(by_package[name]), name))[:PACKAGES]
    owners: Dict[str, Set[str]] = collections.defaultdict(set)
    for label in largest:
        package_name = re.compile(re.escape(label), re.IGNORECASE)
        for text in by_package[label]:
            text = " ".join(package_name.sub(" ", text).split())
            if len(text.split()) >= MIN_WORDS:
                owners[text].add(label)
    return _sides(owners)


def _sides(values: Dict[str, Set[str]], column: str = "labels") -> Parts:
    """Split texts into training and dev texts; leave out texts with several values.

    ``values``: text -> its values. ``column``: the attribute of ``Dataset`` that holds the values.
    """
    samples = sorted((text, *each) for text, each in values.items() if len(each) == 1)
    return _parts([{"texts": text, column: value} for text, value in samples], "texts")


def _parts(samples: Sequence[Dict[str, str]], decides: str) -> Parts:
    """Split samples into training and dev texts, by the text in the field ``decides``."""
    if not samples:
        raise DataError(
            f"{LIBRARY}: no .py files with docstrings, which the built-in texts are made of; give "
            "--train FILE and --dev FILE"
        )
    parts = ([s for s in samples if is_dev(s[decides]) == dev] for dev in (False, True))
    columns: Any = ({field: [s[field] for s in part] for field in samples[0]} for part in parts)
    train, dev = (Dataset(**each) for each in columns)
    return train, dev


@functools.lru_cache(maxsize=None)
def pydoc_pairs() -> Parts:
    """Return training and dev pairs of texts of ``pydoc()``; label 1 = both from one package.

    Each text comes first in two pairs. In one, label 1, the second text is from the same package;
    in the other, label 0, from another package. The pairs are the same in every run.
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


@functools.lru_cache(maxsize=None)
def entities() -> Parts:
    """Return training and dev texts: paragraphs of docstrings of Python's standard library.

    The entities are names of parameters, classes, functions and constants. A word is a parameter if
    the function or class of the docstring has a parameter of this name. Other words are functions
    if "()" follows, else classes or constants if Python or its library has one of this name. Markup
    is removed. A text that occurs several times with different entities is left out.
    """
    names = vars(builtins).items()
    classes = {name for name, value in names if isinstance(value, type) and name[0].isupper()}
    constants = {"None", "True", "False"}
    paragraphs: List[Tuple[str, Set[str]]] = []  # not the trees, which Python's GC would search
    for node in _statements(LIBRARY):
        paragraphs += _paragraphs(node)
        if isinstance(node, ast.ClassDef) and re.match("_*[A-Z]", node.name):
            classes.add(node.name)
        elif isinstance(node, ast.Assign):
            targets = [t.id for t in node.targets if isinstance(t, ast.Name)]
            constants.update(filter(re.compile("[A-Z][A-Z_0-9]+").fullmatch, targets))
    labels: Dict[str, Set[str]] = {}
    for paragraph, parameters in paragraphs:
        text, marked = _marked(paragraph, parameters, classes, constants - classes)
        if len(text.split()) in SENTENCES and not text_problem(text):
            labels.setdefault(text, set()).add(pack(marked))
    return _sides(labels)


@functools.lru_cache(maxsize=None)
def relations() -> Parts:
    """Return training and dev texts; labels are lists of [subject, predicate, object] in JSON.

    A text has the signatures of a class or function of Python's standard library and of its inner
    definitions, up to 40 words. A class ``extends`` another, a function ``takes`` a parameter, and
    each ``defines`` what is inside it. A text is left out if a name of its triples occurs twice.
    """
    labels: Dict[str, Set[str]] = {}
    for tree in trees(LIBRARY):
        for node in tree.body:
            heads = ""
            triples: List[Any] = []
            for head, more in _heads(node, []) if isinstance(node, DEFINITION) else ():
                if len(f"{heads} {head}".split()) > WORDS_OF_HEADS:
                    break
                heads, triples = f"{heads} {head}".strip(), triples + more
            times = collections.Counter(WORD.findall(heads))
            if triples and max(times[name] for t in triples for name in t[::2]) == 1:
                labels.setdefault(heads, set()).add(json.dumps(sorted(triples)))
    return _sides(labels)


def _heads(node: Any, triples: List[Any]) -> Iterator[Tuple[str, List[Any]]]:
    """Yield (signature, triples) of the definition ``node``, then of each definition inside it.

    The triples of ``node`` are ``triples``, such as (class, "defines", function), and those that
    follow from its signature.
    """
    if isinstance(node, ast.ClassDef):
        word, verb, names = "class", "extends", [getattr(b, "id", "") for b in node.bases]
    else:
        word, verb, names = "def", "takes", _arguments(node)
    of_names = [(node.name, verb, name) for name in names if name and name not in NO_NAMES]
    yield f"{word} {node.name}({', '.join(filter(None, names))}):", triples + of_names
    for child in node.body:
        if isinstance(child, DEFINITION):
            yield from _heads(child, [(node.name, "defines", child.name)])


@functools.lru_cache(maxsize=None)
def names() -> Parts:
    """Return training and dev texts: descriptions of functions and classes; targets: their names.

    A text is the first paragraph of a docstring of Python's standard library; its target is the
    name in words: ``get_payload`` is "get payload". A text with several names is left out.
    """
    targets: Dict[str, Set[str]] = {}
    for node in _statements(LIBRARY):
        if isinstance(node, DEFINITION) and not node.name.startswith("__"):
            text = _first_paragraph(node)
            words = " ".join(WORD_OF_NAME.findall(node.name)).lower()
            if len(text.split()) in DESCRIPTION and words and not text_problem(text):
                targets.setdefault(text, set()).add(words)
    return _sides(targets, "pairs")


@functools.lru_cache(maxsize=None)
def questions() -> Parts:
    """Return training and dev questions on passages; labels are lists of [answer, start] in JSON.

    A passage has the signature of a function of Python's standard library and the first paragraph
    of its docstring. The questions are what the function takes, does and returns; some have no
    answer.
    """
    passages: Dict[str, Tuple[str, str]] = {}
    for node in _statements(LIBRARY):
        if isinstance(node, FUNCTION):
            text = _first_paragraph(node)
            taken = ", ".join(name for name in _arguments(node) if name not in NO_NAMES)
            if len(text.split()) in SENTENCES and not text_problem(text):
                passages[f"{node.name}({taken}): {text}"] = (node.name, taken)
    samples: List[Dict[str, str]] = []
    for passage, (name, taken) in sorted(passages.items()):
        begin = len(f"{name}({taken}): ")
        spans = {"take": (len(name) + 1, begin - 3)}
        for verb, pattern in (("do", SENTENCE), ("return", RETURNED)):
            match = pattern.search(passage, begin)
            spans[verb] = match.span(1) if match else (0, 0)
        for verb, (start, end) in spans.items():
            label = json.dumps([[passage[start:end], start]] * (start < end))
            if start < end or "eturn" not in passage:
                question = f"what does {name} {verb}?"
                samples.append({"texts": question, "pairs": passage, "labels": label})
    return _parts(samples, "pairs")


def _paragraphs(node: Any) -> Iterator[Tuple[str, Set[str]]]:
    """Yield a docstring's paragraphs without examples, and the function's or class's parameters."""
    if isinstance(node, DEFINITION):
        text = ast.get_docstring(node) or ""
        functions: List[Any] = [node]
        if isinstance(node, ast.ClassDef):
            functions = [n for n in node.body if getattr(n, "name", "") == "__init__"]
        children = (child for node in functions for child in ast.iter_child_nodes(node.args))
        names = {child.arg for child in children if isinstance(child, ast.arg)}
        for paragraph in PARAGRAPHS.split(text):
            if ">>>" not in paragraph:  # an example, not a text
                yield " ".join(paragraph.split()), names - NO_NAMES


def _first_paragraph(node: Any) -> str:
    """Return the first paragraph of a node's docstring, without markup."""
    return _without_markup(PARAGRAPHS.split(ast.get_docstring(node) or "")[0])


def _without_markup(text: str) -> str:
    return " ".join(MARKUP.sub("", text).split())


def _arguments(function: Any) -> List[str]:
    return [part.arg for part in ast.walk(function.args) if isinstance(part, ast.arg)]


def _marked(
    paragraph: str, parameters: Set[str], classes: Set[str], constants: Set[str]
) -> Tuple[str, List[Entity]]:
    """Return a paragraph without markup, and its entities."""
    plain = _without_markup(paragraph)
    text, end, entities = "", 0, []
    for match in NAME.finditer(plain):
        name = match.group().rstrip("()")
        text += plain[end : match.start()]
        groups = {"parameter": parameters, "class": classes, "constant": constants}
        label = next((label for label, names in groups.items() if name in names), None)
        if match.group(1) and label != "parameter":
            label = "function"
        if label:
            entities.append(Entity(len(text), len(text) + len(name), label))
        text += name
        end = match.end()
    return text + plain[end:], entities


def is_dev(text: str) -> bool:
    """Return whether a text is a dev text; this depends on the text alone."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") < DEV_SHARE * 2**64


def python_files(folder: str) -> Iterator[str]:
    """Yield the paths of a folder's .py files, except those in folders of ``SKIPPED``."""
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - SKIPPED)
        paths = (os.path.join(here, name) for name in sorted(files) if name.endswith(".py"))
        yield from filter(os.path.isfile, paths)  # Emacs marks open files by broken links


def trees(folder: str) -> Iterator[ast.Module]:
    """Yield the syntax trees of ``python_files``, except those that ``parsed`` cannot read."""
    return filter(None, map(parsed, python_files(folder)))


def _statements(folder: str) -> Iterator[Any]:
    for tree in trees(folder):
        found: List[Any] = [tree]
        for node in found:  # expressions contain none: skipping them takes half the time
            yield node
            for field in ("body", "orelse", "handlers", "finalbody", "cases"):
                found += getattr(node, field, ())


def parsed(path: str) -> Optional[ast.Module]:
    """Return the syntax tree of a file, or None if it is unreadable or not Python 3.

    The file is only parsed, so no code runs and missing modules do not matter.
    """
    try:
        with open(path, "rb") as handle, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in old files
            return ast.parse(handle.read())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


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
    """Return one line per docstring; skip short ones and dev texts of the corpus ``pydoc``."""
    texts: List[str] = []
    for package, path in group:
        package_name = re.compile(re.escape(package), re.IGNORECASE)
        for text in _documents(parsed(path)):
            text = " ".join(text.split())
            # ``pydoc`` removes the package's name before it chooses the dev texts.
            without_name = " ".join(package_name.sub(" ", text).split())
            if len(text.split()) >= MIN_WORDS and not is_dev(without_name):
                texts.append(text)
    return texts


def _documents(node: Optional[ast.AST], public: bool = False) -> Iterator[str]:
    """Yield the docstrings of modules, classes, functions and methods.

    ``public``: leave out private names, and definitions inside functions, as ``pydoc`` does.
    """
    if isinstance(node, DOCUMENTED):
        name = getattr(node, "name", "")
        if public and name.startswith("_") and not name.endswith("__"):
            return
        text = ast.get_docstring(node)
        if text and not text_problem(text):
            yield text
    if node is not None and not (public and isinstance(node, FUNCTION)):
        for child in ast.iter_child_nodes(node):
            if public or isinstance(child, DOCUMENTED):
                yield from _documents(child, public)
