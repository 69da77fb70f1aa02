"""Every head with one bert4keras: ``python -m tests.diagnose.table_process <out> <infinity>...``

The wanted bert4keras is first on PYTHONPATH, AMP_XLA_PRECISION is fp32. Writes what the finder
says for each head, infinity and list.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Dict, List

import amp_xla.setup  # noqa: F401
from amp_xla import backend
from amp_xla.diagnose import overflow
from amp_xla.graph import training_graph, virtual_gpu
from tests.diagnose import heads


def rows(infinity: str) -> List[Dict[str, Any]]:
    """All heads; their graphs go through the pass in one process for each list."""
    library = backend.bert4keras()
    if hasattr(library, "set_infinity"):
        library.set_infinity(float(infinity))
    built = []
    for name in heads.HEADS:
        head = heads.build(name)
        training = training_graph.view(head.model)
        values = training.values(training_graph.session_of(training.graph))
        built.append((name, head, training, values, overflow.fetches(training)))
    graphs = [(training.export(fetches), fetches) for _, _, training, _, fetches in built]
    records = []
    for lists in ("stock", "fork") if backend.kind() == "tf1" else ("stock",):
        for entry, rewritten in zip(built, virtual_gpu.rewrite_all(graphs, lists=lists)):
            name, head, training, values, _ = entry
            finding = overflow.replay(training, rewritten, values, head.arrays, step=0)
            record: Dict[str, Any] = {"head": name, "infinity": infinity, "lists": lists}
            record["finding"] = None if finding is None else finding.to_json()
            records.append(record)
    return records


if __name__ == "__main__":
    version = ".".join(map(str, backend.bert4keras_version()))
    table = [record for infinity in sys.argv[2:] for record in rows(infinity)]
    with open(sys.argv[1], "w") as file:
        json.dump({"bert4keras": version, "rows": table}, file)
