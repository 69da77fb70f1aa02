"""The Python blocks of README and the pages, by the mark above each.

A mark names what runs the block: ``graph``, ``eager`` and ``jax`` in a process of tests, with the
names that the block does not define; ``script`` as a program; ``notebook`` as a cell in a kernel;
``transformers`` beside an export; ``recipe`` is a recipe; ``elsewhere`` needs other packages.
"""

import re

from tests.support.running import ROOT

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/tasks/*.md"))]
BLOCK = re.compile(
    r"<!-- run: (graph|eager|jax|script|notebook|transformers|recipe|elsewhere) -->\n"
    r"```python\n(.*?)```",
    re.DOTALL,
)
UNMARKED = re.compile(r"^ {4}(?:import|from) \w+|^ {4}def ", re.MULTILINE)


def blocks(where):
    """Return the blocks with a mark; every block of Python has one."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        marked = BLOCK.findall(text)
        assert len(marked) == text.count("```python"), f"{page.name}: a block without a mark"
        assert not UNMARKED.search(BLOCK.sub("", text)), (
            f"{page.name}: Python belongs in a marked block"
        )
        found += [code for mark, code in marked if mark == where]
    assert found
    return list(dict.fromkeys(found))  # a translated page has the same


def run(code, **names):
    """Run a block in a separate module that has ``names``."""
    module = {"__name__": "snippet", **names}
    exec(compile(code, "a page", "exec"), module)
