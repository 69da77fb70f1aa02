"""A contract for import-linter: no file imports itself by way of others, not even in a function.

``acyclic_siblings``, which import-linter brings, compares what lies in one folder; a circle between
a package's ``__init__.py`` and a file in it escapes that, and is one all the same.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Set

from importlinter import Contract, ContractCheck, output


class NoCircles(Contract):
    """Broken where modules of the root packages import each other in a circle."""

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        found = [
            sorted(circle) for circle in circles({m: _imported(graph, m) for m in graph.modules})
        ]
        return ContractCheck(kept=not found, metadata={"circles": sorted(found)})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for circle in check.metadata["circles"]:
            output.print_error(f"import each other in a circle: {', '.join(circle)}")


def _imported(graph: Any, module: str) -> Set[str]:
    return set(graph.find_modules_directly_imported_by(module))


def circles(imported: Dict[str, Set[str]]) -> Iterator[Set[str]]:
    """Strongly connected components of more than one module (Tarjan)."""
    number: Dict[str, int] = {}
    low: Dict[str, int] = {}
    stack: List[str] = []

    def visit(module: str) -> Iterator[Set[str]]:
        number[module] = low[module] = len(number)
        stack.append(module)
        for other in sorted(imported.get(module, ())):
            if other not in number:
                yield from visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], number[other])
        if low[module] == number[module]:
            at = stack.index(module)
            circle = set(stack[at:])
            del stack[at:]
            if len(circle) > 1:
                yield circle

    for module in sorted(imported):
        if module not in number:
            yield from visit(module)
