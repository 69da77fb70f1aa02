"""Built-in texts: docstrings with entities, heads of code with triples, descriptions with names.

The entities are names of parameters, classes, functions and constants. They come from the code that
a docstring documents, not from a list of words: "name" is a parameter if the function has a
parameter of this name, else it is a word. Markup is removed.
"""

from __future__ import annotations

import ast
import builtins
import collections
import functools
import json
import re
import sysconfig
from typing import Any, Dict, Iterator, List, Set, Tuple

from amp_xla.data.text.corpora import DOCUMENTED, parsed, python_files, sides
from amp_xla.data.text.entities import Entity, pack
from amp_xla.data.text.lines import text_problem
from amp_xla.data.text.readers import Dataset

WORDS = (6, 60)  # fewest and most words of a paragraph with entities
WORDS_OF_HEADS = 40  # most words of a text with triples
DESCRIPTION = range(4, 41)  # allowed numbers of words of a text with a name
MARKUP = re.compile(r":[a-z:]+:(?=`)|[`*]+")
WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
NAME = re.compile(WORD.pattern + r"(\(\))?")
WORD_OF_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
NO_NAMES = frozenset("self cls a A I".split())  # the last three are English words
Definition = DOCUMENTED[1:]


@functools.lru_cache(maxsize=None)
def texts() -> Tuple[Dataset, Dataset]:
    """Return training and dev texts: paragraphs of docstrings of Python's standard library.

    They are the same in every run of one Python version. The SHA-256 of a text decides whether it
    is a dev text. A text that occurs several times with different entities is left out.
    """
    trees = list(filter(None, map(parsed, python_files(sysconfig.get_paths()["stdlib"]))))
    classes = {name for name, value in vars(builtins).items() if isinstance(value, type)}
    classes = {name for name in classes if name[0].isupper()}
    constants = {"None", "True", "False"}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and re.match("_*[A-Z]", node.name):
                classes.add(node.name)
            elif isinstance(node, ast.Assign):
                names = [t.id for t in node.targets if isinstance(t, ast.Name)]
                constants.update(name for name in names if re.fullmatch("[A-Z][A-Z_0-9]+", name))
    labels: Dict[str, Set[str]] = {}
    for tree in trees:
        for paragraph, parameters in _paragraphs(tree):
            text, entities = _marked(paragraph, parameters, classes, constants - classes)
            if WORDS[0] <= len(text.split()) <= WORDS[1] and not text_problem(text):
                labels.setdefault(text, set()).add(pack(entities))
    train, dev = (Dataset(texts, labels=values) for texts, values in sides(labels))
    return train, dev


@functools.lru_cache(maxsize=None)
def relations() -> Tuple[Dataset, Dataset]:
    """Return training and dev texts; labels are lists of [subject, predicate, object] in JSON.

    A text is the heads of a class or function of Python's standard library and of those inside it,
    up to 40 words. A class ``extends`` another and ``defines`` a function, a function ``takes`` a
    parameter. The SHA-256 of a text decides whether it is a dev text. Texts are left out if a name
    of a triple occurs twice.
    """
    found: Dict[str, Set[str]] = {}
    for tree in filter(None, map(parsed, python_files(sysconfig.get_paths()["stdlib"]))):
        for node in tree.body:
            heads = ""
            triples: List[Any] = []
            for head, more in _heads(node, []) if isinstance(node, Definition) else ():
                if len(f"{heads} {head}".split()) > WORDS_OF_HEADS:
                    break
                heads, triples = f"{heads} {head}".strip(), triples + more
            times = collections.Counter(WORD.findall(heads))
            if triples and max(times[name] for t in triples for name in t[::2]) == 1:
                found.setdefault(heads, set()).add(json.dumps(sorted(triples)))
    train, dev = (Dataset(texts, labels=values) for texts, values in sides(found))
    return train, dev


def _heads(node: Any, triples: List[Any]) -> Iterator[Tuple[str, List[Any]]]:
    """Yield the head of a definition and its triples, after ``triples``; then of inner ones."""
    if isinstance(node, ast.ClassDef):
        word, verb, names = "class", "extends", [getattr(b, "id", "") for b in node.bases]
    else:
        word, verb = "def", "takes"
        names = [part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)]
    of_names = [(node.name, verb, name) for name in names if name and name not in NO_NAMES]
    yield f"{word} {node.name}({', '.join(filter(None, names))}):", triples + of_names
    for child in node.body:
        if isinstance(child, Definition):
            yield from _heads(child, [(node.name, "defines", child.name)])


@functools.lru_cache(maxsize=None)
def names() -> Tuple[Dataset, Dataset]:
    """Return training and dev texts: descriptions of functions and classes; targets are the names.

    A text is the first paragraph of a docstring of Python's standard library; its target is the
    name in words: ``get_payload`` is "get payload". The SHA-256 of a text decides whether it is a
    dev text. A text with several names is left out.
    """
    targets: Dict[str, Set[str]] = {}
    for tree in filter(None, map(parsed, python_files(sysconfig.get_paths()["stdlib"]))):
        for node in ast.walk(tree):
            if isinstance(node, Definition) and not node.name.startswith("__"):
                paragraph = re.split(r"\n\s*\n", ast.get_docstring(node) or "")[0]
                text = " ".join(MARKUP.sub("", paragraph).split())
                words = " ".join(WORD_OF_NAME.findall(node.name)).lower()
                if len(text.split()) in DESCRIPTION and words and not text_problem(text):
                    targets.setdefault(text, set()).add(words)
    train, dev = (Dataset(texts, pairs=names) for texts, names in sides(targets))
    return train, dev


def _paragraphs(tree: ast.AST) -> Iterator[Tuple[str, Set[str]]]:
    """Yield the paragraphs of docstrings, with the parameters of the function or class."""
    for node in ast.walk(tree):
        if isinstance(node, Definition):
            text = ast.get_docstring(node) or ""
            functions: List[Any] = [node]
            if isinstance(node, ast.ClassDef):
                functions = [n for n in node.body if getattr(n, "name", "") == "__init__"]
            children = (child for node in functions for child in ast.iter_child_nodes(node.args))
            names = {child.arg for child in children if isinstance(child, ast.arg)}
            for paragraph in re.split(r"\n\s*\n", text):
                if ">>>" not in paragraph:  # an example, not a text
                    yield " ".join(paragraph.split()), names - NO_NAMES


def _marked(
    paragraph: str, parameters: Set[str], classes: Set[str], constants: Set[str]
) -> Tuple[str, List[Entity]]:
    """Return a paragraph without markup, and its entities."""
    plain = " ".join(MARKUP.sub("", paragraph).split())
    text, end, entities = "", 0, []
    for match in NAME.finditer(plain):
        name = match.group().rstrip("()")
        text += plain[end : match.start()]
        label = None
        if name in parameters:
            label = "parameter"
        elif match.group(1):
            label = "function"
        elif name in classes or name in constants:
            label = "class" if name in classes else "constant"
        if label:
            entities.append(Entity(len(text), len(text) + len(name), label))
        text += name
        end = match.end()
    return text + plain[end:], entities
