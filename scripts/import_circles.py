"""A contract for import-linter: no circular imports, not even by imports inside functions.

import-linter's ``acyclic_siblings`` compares only files of one folder, so it misses a circle
between a package's ``__init__.py`` and a file of the package.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Set

from graphlib import CycleError, TopologicalSorter
from importlinter import Contract, ContractCheck, output


class NoCircles(Contract):
    """A contract that is broken if modules of the root packages import each other in a circle."""

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        imports = {m: set(graph.find_modules_directly_imported_by(m)) for m in graph.modules}
        broken = sorted(sorted(circle) for circle in circles(imports))
        return ContractCheck(kept=not broken, metadata={"circles": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for circle in check.metadata["circles"]:
            output.print_error(f"import each other in a circle: {', '.join(circle)}")


def circles(imported: Dict[str, Set[str]]) -> Iterator[List[str]]:
    """Yield circles of modules; remove one import from each until none is left."""
    while True:
        try:
            TopologicalSorter(imported).prepare()
            return
        except CycleError as error:
            circle = error.args[1]  # each module imports the one before it; last = first
            yield circle[1:]
            imported[circle[1]].discard(circle[0])
