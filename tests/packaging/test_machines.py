"""Which runtime each machine gets, what it is told, and what doctor says there.

The kernel's files, nvidia-smi and the Pythons are stand-ins; the programs that ask them are real.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, List, NamedTuple, Tuple

import pytest

from amp_xla.backend import nvidia
from amp_xla.commands import doctor
from tests.packaging.checkout import ROOT, run
from tests.packaging.machines import OLD, Stand, missing, smi

pytestmark = pytest.mark.once

A100 = "NVIDIA A100-SXM4-40GB, 535.104.05, 40960, {free}, 8.0, Disabled"
ERROR = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."


class Row(NamedTuple):
    """One machine: its nvidia-smi ('' = no driver), its Pythons, and what it must hear."""

    answer: str
    pythons: Tuple[str, ...]
    line: str  # a pattern for what `make train` says first
    doctor: Tuple[Tuple[str, str], ...]  # (level, pattern) of findings on GPU, driver or memory
    variables: Tuple[Tuple[str, str], ...] = ()
    programs: Tuple[str, ...] = ()


FREE = smi(A100.format(free=40000))
TABLE = {
    "laptop": Row(
        "", ("3.7", "3.12"), r"^runtime tf1: found Python 3\.7", (("note", "no NVIDIA GPU"),)
    ),
    "GPU server with Docker": Row(
        FREE,
        ("3.8", "3.12"),
        r"^runtime tf2 with CUDA: NVIDIA A100-SXM4-40GB \(8\.0, driver 535\.104\.05\); using "
        r"Python 3\.12.*; RUNTIME=nvtf1 or make docker-train for NVIDIA's TensorFlow 1\.15$",
        (("ok", r"capability 8\.0"),),
        programs=("docker",),
    ),
    "a Python 3.7 lies around": Row(
        FREE,
        ("3.7", "3.12"),
        r"^runtime tf2 with CUDA: .*using Python 3\.12",
        (("ok", r"capability 8\.0"),),
    ),
    "Python 3.8 only": Row(
        FREE,
        ("3.8",),
        r"^runtime nvtf1: NVIDIA A100.*; using Python 3\.8.*; RUNTIME=tf2 for the other$",
        (("ok", r"capability 8\.0"),),
    ),
    "Python 3.12 only": Row(
        FREE,
        ("3.12",),
        r"^runtime tf2 with CUDA: .*using Python 3\.12.*; RUNTIME=nvtf1 for NVIDIA's",
        (("ok", r"capability 8\.0"),),
    ),
    "Blackwell": Row(
        smi("NVIDIA B200, 570.86.15, 183359, 183000, 10.0, Disabled"),
        ("3.8", "3.12"),
        r"^runtime tf2 with CUDA: NVIDIA B200 .*compiled at the first start.*25\.02-tf2-py3",
        (("warning", r"capability 10\.0"), ("error", "built before compute capability 10")),
    ),
    "GPU busy": Row(
        smi(A100.format(free=1229)),
        ("3.12",),
        r"^runtime tf2 with CUDA: .*BUSY: 1\.2 of 40\.0 GiB free",
        (("warning", r"1\.2 of 40\.0 GiB free"),),
    ),
    "driver too old": Row(
        smi("NVIDIA GeForce RTX 3090, 470.82.01, 24268, 24000, 8.6, [N/A]"),
        ("3.7", "3.12"),
        r"^runtime tf2: .*driver 470\.82\.01 is older than 525\.60, which CUDA 12 needs, CPU only",
        (("error", r"470\.82\.01 is too old for container 23\.03"),),
    ),
    "MIG": Row(
        smi(
            "NVIDIA A100-SXM4-40GB, 535.104.05, 40960, [N/A], 8.0, Enabled",
            before='[ "$1" != -L ] || { echo "  MIG 1g.5gb Device 0: (UUID: MIG-abc)"; exit; }\n',
        ),
        ("3.12",),
        r"^runtime tf2 with CUDA: .* in MIG mode; using",
        (("note", "MIG mode, 1 instance"), ("note", "does not tell how much")),
    ),
    "[N/A]": Row(
        smi("NVIDIA GB10, [N/A], [N/A], [N/A], [N/A], [N/A]"),
        ("3.12",),
        r"^runtime tf2 with CUDA: NVIDIA GB10 \(compute capability unknown, driver unknown\)",
        (("note", "does not tell its compute capability"), ("note", "does not tell how much")),
    ),
    "a driver without compute_cap": Row(
        smi("Tesla V100-SXM2-16GB, 530.30.02, 16160, 16000", before=OLD),
        ("3.12",),
        r"^runtime tf2 with CUDA: Tesla V100-SXM2-16GB \(7\.0, driver 530\.30\.02\)",
        (("ok", r"capability 7\.0 by its name \(driver 530\.30\.02 does not tell "),),
    ),
    "an error text": Row(
        smi(ERROR, code=9),
        ("3.12",),
        r"^runtime tf2 with CUDA: /proc/driver/nvidia/version, nvidia-smi says: NVIDIA-SMI has f",
        (("error", "shows no GPU: NVIDIA-SMI has failed"),),
    ),
    "CUDA_VISIBLE_DEVICES is empty": Row(
        FREE,
        ("3.7", "3.12"),
        r"^runtime tf1: CUDA_VISIBLE_DEVICES='' hides the GPU: on the CPU; found Python 3\.7",
        (("warning", "CUDA_VISIBLE_DEVICES='' hides every GPU"),),
        (("CUDA_VISIBLE_DEVICES", ""),),
    ),
    "AMP_XLA_DEVICE=cpu": Row(
        FREE,
        ("3.7", "3.12"),
        r"^runtime tf1: device=cpu; found Python 3\.7",
        (("ok", r"capability 8\.0"),),
        (("AMP_XLA_DEVICE", "cpu"),),
    ),
}


@pytest.fixture(params=sorted(TABLE))
def row(request: Any) -> Row:
    found = TABLE[request.param]
    lacking = missing(found.pythons)
    if lacking:
        pytest.skip(f"no bare Python {lacking} on this machine")
    return found


@pytest.fixture
def machine(row: Row, tmp_path: Path) -> Stand:
    made = Stand(tmp_path)
    made.python(*row.pythons)
    if row.answer:
        made.driver(row.answer)
    for name in row.programs:
        made.program(name, "#!/bin/sh\n")
    return made


def chosen(machine: Stand, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        ["/bin/sh", str(ROOT / "scripts" / "environment.sh"), "choose", *arguments],
        env=machine.environment(**environment),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1  # one line
    return done.stdout.strip()


def test_the_runtime_and_its_line(machine: Stand, row: Row) -> None:
    assert re.search(row.line, chosen(machine, **dict(row.variables)))


def test_what_doctor_says_there(machine: Stand, row: Row) -> None:
    environment = machine.environment(**dict(row.variables))
    gpus, found = doctor.graphics(environment)
    for gpu in gpus[:1]:
        found += doctor.driver(gpu, (23, 3))
    found += doctor.memory(gpus)
    for level, words in row.doctor:
        assert any(f.level == level and re.search(words, f.what) for f in found), found


BARE_312 = pytest.mark.skipif("3.12" in missing(["3.12"]), reason="no bare Python 3.12 here")


@BARE_312
def test_the_recipes_own_flag_is_understood(tmp_path: Path) -> None:
    machine = Stand(tmp_path)
    machine.python("3.12")
    machine.driver(FREE)
    launcher = ["--runtime", "tf2", "--recipe", "classification", "--"]
    for flags in (["--device", "cpu"], ["--device=cpu"]):
        line = chosen(machine, *launcher, "--epochs", "1", *flags)
        assert line.startswith("runtime tf2: RUNTIME=tf2; device=cpu;")
    assert chosen(machine, *launcher).startswith("runtime tf2 with CUDA: RUNTIME=tf2; NVIDIA A100")


@BARE_312
def test_a_login_node_prepares_what_the_gpu_node_needs(tmp_path: Path) -> None:
    machine = Stand(tmp_path)
    machine.python("3.12")
    line = chosen(machine, "--runtime", "tf2", AMP_XLA_DEVICE="gpu")
    assert line.startswith("runtime tf2 with CUDA: RUNTIME=tf2; device=gpu, though no driver is")


@pytest.mark.parametrize(
    "answer, shown",
    [
        ("No devices were found", []),
        ("garbage, with, four, commas, in it", []),
        (A100.format(free="[Insufficient Permissions]"), [("NVIDIA A100-SXM4-40GB", None)]),
        ("Tesla T4, 450.80.02, 15109 MiB, 15000 MiB", [("Tesla T4", 15000 / 1024)]),
    ],
)
def test_the_reader_never_raises(tmp_path: Path, answer: str, shown: List[Any]) -> None:
    machine = Stand(tmp_path)
    machine.driver(smi(answer))
    found = nvidia.look(machine.environment())
    assert [(gpu.name, gpu.free) for gpu in found.gpus] == shown
    assert bool(found.problem) == (not shown)


def test_training_stops_where_tensorflow_does_not_see_the_gpu(tmp_path: Path) -> None:
    """One process of the recipe: the driver shows a GPU that this TensorFlow cannot reach."""
    machine = Stand(tmp_path)
    machine.driver(FREE)
    paths = f"{machine.bin}{os.pathsep}{os.environ['PATH']}"
    environment = {**machine.environment(), "PATH": paths}
    words = ["-m", "recipes.classification", "--layers", "1", "--hidden", "64", "--epochs", "1"]
    words += ["--train-fraction", "0.2", "--name", tmp_path.name]
    done = run([sys.executable, *words], **environment)
    assert done.returncode == 2, done.stderr
    (line,) = [x for x in done.stderr.splitlines() if x.startswith("error:")]
    assert "the driver shows NVIDIA A100-SXM4-40GB (8.0, driver 535.104.05)" in line
    assert re.search(
        r"libcud\w+\.so\.\d+.* not found; next: .*; or train on the CPU: --device", line
    )
    code = (
        "import amp_xla.setup as s, os; from amp_xla.backend.visible import refuse_unseen_gpu as r"
    )
    code += "; r(s.current().device, os.environ); print(os.environ['CUDA_VISIBLE_DEVICES'])"
    done = run([sys.executable, "-c", code], AMP_XLA_DEVICE="cpu", **environment)
    assert (done.returncode, done.stdout) == (0, "-1\n"), done.stderr


def test_doctor_ends_with_findings_not_a_traceback(tmp_path: Path) -> None:
    machine = Stand(tmp_path)
    machine.driver(smi("NVIDIA GB10, [N/A], [N/A], [N/A], [N/A], [N/A]"))
    paths = f"{machine.bin}{os.pathsep}{os.environ['PATH']}"
    environment = {**machine.environment(), "PATH": paths}
    done = run([sys.executable, "-m", "amp_xla", "doctor", "--json"], **environment)
    assert "Traceback" not in done.stderr
    blind = [f for f in json.loads(done.stdout) if "TensorFlow sees none" in f["what"]]
    assert blind and re.search(r"libcud\w+\.so", blind[0]["what"]) and blind[0]["fix"]
