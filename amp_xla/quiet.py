"""Keeps TensorFlow's start-up noise off the terminal without hiding real trouble.

TensorFlow's C++ side writes straight to file descriptor 2, and some lines of an import come at
error level, so a log-level variable alone either shows a wall or hides failures.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import warnings
from typing import Iterator

# Start-up lines that say nothing about the user's job, at whatever level they come.
_NOISE = re.compile(
    r"Unable to register cu(FFT|DNN|BLAS) factory"
    r"|oneDNN custom operations are on"
    r"|computation_placer already registered|Could not find cuda drivers|cudart_stub"
    r"|TF-TRT Warning|Could not find TensorRT|could not find TensorRT"
    r"|cpu_feature_guard|To enable the following instructions|CPU frequency"
    r"|XLA service|StreamExecutor device|StreamExecutor cuda"
    r"|Could not load dynamic library|Cannot dlopen some GPU libraries|Skipping registering GPU"
    r"|failed call to cuInit|kernel driver does not appear to be running"
    r"|retrieving CUDA diagnostic|hostname:|libcuda reported version|kernel reported version"
    r"|All log messages before absl::InitializeLog|Successfully opened dynamic library"
    r"|tensorflow_core/python/framework/dtypes|_np_q|np_resource|FutureWarning"
)


def set_log_defaults() -> None:
    """Asks TensorFlow for errors only, unless the user chose a level."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Tokenizers warns at each fork after it has used threads; its work is done by then.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Holds back what is written to stderr inside the block, then shows what is not noise.

    On an exception everything is shown, because then any line may be the reason. Set
    ``AMP_XLA``-independent ``TF_CPP_MIN_LOG_LEVEL=0`` to see all of it.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") in ("0", "1"):
        yield
        return
    try:
        stderr = sys.stderr
        stderr.flush()
        saved = os.dup(2)
    except (OSError, AttributeError, ValueError):  # no such descriptor: nothing to keep quiet
        yield
        return
    failed = True
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
            failed = False
        finally:
            stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            held.seek(0)
            for line in held.read().decode("utf-8", "replace").splitlines():
                if failed or (line.strip() and not _NOISE.search(line)):
                    stderr.write(line + "\n")
            stderr.flush()
