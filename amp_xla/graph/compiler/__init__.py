"""XLA's GPU compiler of the installed TensorFlow, run without a GPU.

TensorFlow's library contains the compiler, but no program that gives it the description of a GPU.
``gpu_kernels.cc`` is that program; it is built on first use. Imports no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import zlib
from pathlib import Path
from typing import Any, List, Mapping

from amp_xla.errors import UnsupportedError
from amp_xla.process.progress import note

SUPPORTED = "2.17"
ATTENTION = "__cudnn$fmha"  # cuDNN's attention, forward and backward
_FOLDER = Path(__file__).parent
_VERSION = re.compile(r"#define TF_(?:MAJOR|MINOR|PATCH)_VERSION\s+(\d+)")
# Without a GPU no kernels can be timed. Triton: see ``settings.flags.NO_TRITON``.
_FLAGS = (
    "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false "
    "--xla_gpu_collect_cost_model_stats=true"
)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel, or a call of a library, in the program that the GPU runs.

    Attributes:
      kind: for fused operations, ``kLoop`` or ``kInput`` (which also sums or transposes); for a
        call of a library, its function; otherwise the operation.
      products: FLOPs of its matrix products.
      read, written: bytes; for a gather or a slice, only the part of the tensor that is used.
      model: microseconds by XLA's cost model; 0 for kernels that are no fusions.
      result: the largest result, with its layout, e.g. ``f16[64,384,768]{2,1,0}``.
      operations: the TensorFlow operations that it comes from, separated by blanks.
    """

    name: str
    kind: str
    products: int
    read: int
    written: int
    model: float
    result: str
    operations: str

    @property
    def moved(self) -> int:
        """Bytes that the kernel reads and writes."""
        return self.read + self.written

    @property
    def library(self) -> bool:
        """True if the kernel is a function of cuBLAS or cuDNN."""
        return self.kind.startswith("__")


def kernels(module: bytes, gpu: Mapping[str, Any]) -> List[Kernel]:
    """Compile XLA's ``HloModuleProto`` for a GPU; return the kernels.

    Each kernel comes after the kernels whose results it reads.

    Args:
      module: the ``HloModuleProto``, serialized.
      gpu: values for the fields of ``target.txtpb``, XLA's description of a GPU.

    Raises:
      UnsupportedError: as for ``program``; XLA fails; or cuDNN's attention gets a wrong dtype.
    """
    built, description = program(), (_FOLDER / "target.txtpb").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="amp_xla-") as name:
        paths = [Path(name) / file for file in ("module.pb", "target.txtpb")]
        paths[0].write_bytes(module)
        paths[1].write_text(description.format(**gpu), encoding="utf-8")
        output = _run("XLA's compiler", str(built), *map(str, paths))
    found = []
    for line in output.splitlines():
        label, kind, products, read, written, model, result, operations = line.split("\t")
        sizes = int(products), int(read), int(written)
        found.append(Kernel(label, kind, *sizes, float(model), result, operations))
    return found


def program() -> Path:
    """Return the path of the compiled ``gpu_kernels.cc``; build it if it is not in the cache.

    Raises:
      UnsupportedError: TensorFlow is not 2.17, or the program cannot be built.
    """
    spec = importlib.util.find_spec("tensorflow")
    tensorflow = Path((spec.origin if spec else None) or "-").parent
    header = tensorflow / "include/tensorflow/core/public/version.h"
    text = header.read_text(encoding="utf-8") if header.is_file() else ""
    version = ".".join(_VERSION.findall(text))
    if not version.startswith(f"{SUPPORTED}."):
        raise UnsupportedError(
            f"this needs XLA's GPU compiler of TensorFlow {SUPPORTED}.1; found: "
            f"{version or 'another version'}; in a checkout add --runtime tf2"
        )
    sources = [_FOLDER / "gpu_kernels.cc", _FOLDER / "build.sh"]
    key = zlib.crc32(b"".join(s.read_bytes() for s in sources) + str(tensorflow).encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "amp_xla"
    path = cache / f"gpu_kernels-{version}-{key:08x}"
    if not path.exists():
        if shutil.which("g++") is None:
            raise UnsupportedError(
                "g++, which builds a small program on first use, is missing; install it, "
                "e.g. with apt-get install g++"
            )
        note(f"building {path}, once, about 20 seconds ...")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="build-", dir=str(cache)) as name:
            built = os.path.join(name, "gpu_kernels")
            _run("g++", "sh", str(sources[1]), str(tensorflow), built)
            os.replace(built, str(path))
    return path


def _run(name: str, *command: str) -> str:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [""]
        reason = next((line for line in lines if "error: " in line), lines[-1])
        reason = reason.split("error: ")[-1]
        raise UnsupportedError(f"{name} ended with code {done.returncode}: {reason}")
    return done.stdout
