"""Every command line that this project prints: in documents, docstrings, messages and help."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Iterator, List, NamedTuple, Optional

from amp_xla.process import typed
from tests.packaging.checkout import ROOT

STARTS = r"(?:make [a-z]|amp-xla [a-z]|python3? -m (?:amp_xla|scripts|recipes|pytest)\b)"
INLINE = re.compile(rf"`+({STARTS}[^`]*)`+")
# A quotation that is open at the end of a line goes on in the next.
BLOCK = re.compile(rf"^ {{4,}}(?:\$ )?({STARTS}(?:[^\"\n]|\"[^\"]*\")*)$", re.MULTILINE)
# In a message: up to a sentence's end, a closing bracket or the next thing to say.
SPOKEN = re.compile(rf"(?:^|[ (:;,])({STARTS}[^;,()`]*)")
DOCUMENTS = ("*.md", "docs/*.md", "docs/results/*.md")
STYLES = ("make", "python -m amp_xla", "amp-xla")
CODE = ("amp_xla", "recipes", "scripts")


class Printed(NamedTuple):
    """A command line, and the file that prints it."""

    source: str
    line: str


def everything() -> List[Printed]:
    """All of them, each once a file, in a fixed order."""
    found = [*_documents(), *_python(), *_typed(), *_shell()]
    return sorted({Printed(p.source, _tidy(p.line)) for p in found})


def _tidy(line: str) -> str:
    line = re.sub(r"\s+#.*$", "", line.strip())  # a comment behind a command
    return re.sub(r"\s+", " ", line).rstrip(" .:\\")


def _documents() -> Iterator[Printed]:
    for pattern in DOCUMENTS:
        for path in ROOT.glob(pattern):
            text = path.read_text(encoding="utf-8")
            for expression in (INLINE, BLOCK):
                # A command in the middle of a sentence may be cut by the end of a line.
                flat = re.sub(r"(?<=\S)\n(?=\S)", " ", text) if expression is INLINE else text
                for line in expression.findall(flat):
                    yield Printed(str(path.relative_to(ROOT)), line)


def _python() -> Iterator[Printed]:
    """Docstrings, messages and closing lines, with the values of f-strings as ``VALUE``."""
    for path in _files("*.py"):
        name = str(path.relative_to(ROOT))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for text in _strings(tree):
            expressions = (INLINE, BLOCK) if "\n" in text else (INLINE, SPOKEN)
            for expression in expressions:
                for line in expression.findall(text):
                    yield Printed(name, line)


def _typed() -> Iterator[Printed]:
    """What ``typed(...)`` says, in a checkout and outside, with the values that are constants."""
    for path in _files("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "typed"):
                continue
            command = str(_text(node.args[0]))
            given = node.args[1] if len(node.args) > 1 else None
            words = [str(_text(w) or "VALUE") for w in getattr(given, "elts", [])]
            variables = {str(k.arg): str(_text(k.value) or "VALUE") for k in node.keywords}
            for style in STYLES:
                line = typed.line(style, command, words, variables)
                yield Printed(str(path.relative_to(ROOT)), line)


def _strings(tree: ast.AST) -> Iterator[str]:
    inside = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside.update(id(part) for part in node.values)
            parts = [_text(part) for part in node.values]
            yield "".join("VALUE" if part is None else part for part in parts)
    for node in ast.walk(tree):
        text = _text(node)
        if text is not None and id(node) not in inside:
            yield text


def _text(node: ast.AST) -> Optional[str]:
    """The text of a constant, on Python 3.7 as well."""
    value = getattr(node, "value" if isinstance(node, ast.Constant) else "s", None)
    return value if isinstance(value, str) else None


def _shell() -> Iterator[Printed]:
    others = [ROOT / "Dockerfile", ROOT / ".ci" / "run", ROOT / "Makefile"]
    for path in [*_files("*.sh"), *_files("*.awk"), *others]:
        for line in path.read_text(encoding="utf-8").splitlines():
            for expression in (INLINE, SPOKEN):
                for found in expression.findall(line.split("||")[0].strip().strip('"')):
                    yield Printed(str(path.relative_to(ROOT)), found.split('"')[0])


def _files(pattern: str) -> Iterator[Path]:
    for folder in CODE:
        yield from sorted((ROOT / folder).rglob(pattern))
