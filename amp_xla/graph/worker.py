"""The process that runs the rewrite pass: ``python -m amp_xla.graph.worker <folder>``.

Reads pickled requests from the folder, writes pickled replies into it.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict

from amp_xla.graph import virtual_gpu


def _logged(request: virtual_gpu.Request, path: Path) -> Dict[str, Any]:
    """Runs the pass with file descriptor 2, where C++ logs, led into the file at ``path``.

    The parent reads it when the pass takes this process down.
    """
    sys.stderr.flush()
    before = os.dup(2)
    with open(path, "wb+") as log, tempfile.TemporaryDirectory() as folder:
        os.dup2(log.fileno(), 2)
        try:
            answer = virtual_gpu.run_pass(request, Path(folder))
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
        log.seek(0)
        answer["log"] = log.read().decode("utf-8", "replace")
    return answer


def main(folder: str) -> None:
    """Answers every request, then writes all replies at once."""
    data = (Path(folder) / "requests").read_bytes()
    log = Path(folder) / "log"
    answers = [_logged(virtual_gpu.Request(**request), log) for request in pickle.loads(data)]
    temporary = Path(folder) / "replies.tmp"
    temporary.write_bytes(pickle.dumps(answers, protocol=4))
    temporary.rename(Path(folder) / "replies")


if __name__ == "__main__":
    main(sys.argv[1])
