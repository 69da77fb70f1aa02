"""Built-in texts with triples: docstrings of Python's standard library.

The triples come from the code that a docstring documents, not from its words: a function `takes` a
parameter, `may take` one with a default, `raises` an exception; a class `extends` another.
"""

from __future__ import annotations

import ast
import functools
import json
import re
import sysconfig
from typing import Any, Dict, Iterator, Set, Tuple

from amp_xla.data.text.corpora import parsed, python_files, sides
from amp_xla.data.text.documented import MARKUP, NO_NAMES, Definition
from amp_xla.data.text.lines import text_problem
from amp_xla.data.text.readers import Dataset

WORDS = range(6, 61)  # allowed numbers of words of a text
NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


@functools.lru_cache(maxsize=None)
def relations() -> Tuple[Dataset, Dataset]:
    """Return training and dev texts; labels are lists of triples in JSON.

    A text is the name of a function or class and a paragraph of its docstring, without markup. Its
    SHA-256 decides whether it is a dev text. Texts without a triple, or with several lists of them,
    are left out.
    """
    found: Dict[str, Set[str]] = {}
    for tree in filter(None, map(parsed, python_files(sysconfig.get_paths()["stdlib"]))):
        for node in ast.walk(tree):
            if not isinstance(node, Definition):
                continue
            related = dict(_related(node))
            for paragraph in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                text = f"{node.name}: {' '.join(MARKUP.sub('', paragraph).split())}"
                if ">>>" in text or len(text.split()) not in WORDS or text_problem(text):
                    continue
                named = sorted({*NAME.findall(text)} & {*related})
                if named:
                    triples = [(node.name, related[name], name) for name in named]
                    found.setdefault(text, set()).add(json.dumps(triples))
    train, dev = (Dataset(texts, labels=values) for texts, values in sides(found))
    return train, dev


def _related(node: Any) -> Iterator[Tuple[str, str]]:
    """Yield (name, predicate) of what belongs to a definition."""
    functions = [node]
    if isinstance(node, ast.ClassDef):
        functions = [n for n in node.body if getattr(n, "name", "") == "__init__"]
        yield from ((base.id, "extends") for base in node.bases if isinstance(base, ast.Name))
    else:
        for child in ast.walk(node):
            error = child.exc if isinstance(child, ast.Raise) else None
            error = error.func if isinstance(error, ast.Call) else error
            if isinstance(error, ast.Name) and error.id[0].isupper():
                yield error.id, "raises"
    for function in functions:
        given = function.args
        names = [arg.arg for arg in given.args]
        optional = names[len(names) - len(given.defaults) :]
        optional += [a.arg for a, value in zip(given.kwonlyargs, given.kw_defaults) if value]
        for name in {*names, *(arg.arg for arg in given.kwonlyargs)} - NO_NAMES:
            yield name, "may take" if name in optional else "takes"
