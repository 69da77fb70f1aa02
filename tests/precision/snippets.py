"""The Python blocks of docs/precision.md, by the mark above each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import List

PAGE = Path(__file__).resolve().parents[2] / "docs" / "precision.md"
BLOCK = re.compile(r"<!-- run: (\w+) -->\n```python\n(.*?)```", re.DOTALL)


def blocks(where: str) -> List[str]:
    """Return blocks marked ``graph``, ``eager`` or ``jax``; every block has a mark."""
    text = PAGE.read_text(encoding="utf-8")
    marked = BLOCK.findall(text)
    assert len(marked) == text.count("```python") and len(marked) >= 4
    return [code for mark, code in marked if mark == where]


def run(code: str) -> None:
    """Run a block in a separate module."""
    exec(compile(code, str(PAGE), "exec"), {"__name__": "snippet"})
