"""A contract for import-linter: no circle between files, also of imports inside functions.

import-linter's ``acyclic_siblings`` compares the files of one folder; it misses a circle between a
package's ``__init__.py`` and a file of the package.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Set

from importlinter import Contract, ContractCheck, output


class NoCircles(Contract):
    """Broken if modules of the root packages import each other in a circle."""

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        imports = {module: _imported(graph, module) for module in graph.modules}
        broken = sorted(sorted(circle) for circle in circles(imports))
        return ContractCheck(kept=not broken, metadata={"circles": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for circle in check.metadata["circles"]:
            output.print_error(f"import each other in a circle: {', '.join(circle)}")


def _imported(graph: Any, module: str) -> Set[str]:
    return set(graph.find_modules_directly_imported_by(module))


def circles(imported: Dict[str, Set[str]]) -> Iterator[Set[str]]:
    """Yield strongly connected components of more than one module (Tarjan)."""
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
