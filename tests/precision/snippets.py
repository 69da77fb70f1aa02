"""The Python blocks of docs/precision.md, by where they say they run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import List

PAGE = Path(__file__).resolve().parents[2] / "docs" / "precision.md"
BLOCK = re.compile(r"<!-- run: (\w+) -->\n```python\n(.*?)```", re.DOTALL)


def blocks(where: str) -> List[str]:
    """Blocks marked ``graph``, ``eager`` or ``jax``; every block of the page has a mark."""
    text = PAGE.read_text(encoding="utf-8")
    marked = BLOCK.findall(text)
    assert len(marked) == text.count("```python") and len(marked) >= 4
    return [code for mark, code in marked if mark == where]


def run(code: str) -> None:
    """Runs a block in a module of its own."""
    exec(compile(code, str(PAGE), "exec"), {"__name__": "snippet"})
