"""The finder names the failing node of each head, by bert4keras version, infinity and op lists.

Each bert4keras version runs in a separate process, both at the same time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, Tuple

import pytest

from amp_xla import backend
from scripts.environment.uv import uv
from tests.diagnose import heads
from tests.running import ROOT, environment

# The first test waits for both processes, which takes minutes on a busy machine.
pytestmark = [pytest.mark.network, pytest.mark.long, pytest.mark.timeout(900)]

LISTS = ("stock", "fork") if backend.kind() == "tf1" else ("stock",)
# bert4keras version -> its infinities; 0.11.5 has none.
INFINITIES = {"0.11.3": ("1e12", "1e4"), "0.11.5": ("none",)}
# Of TensorFlow 1.15's stock lists, Softmax stays in float32 and with it the attention masks.
HALF_SOFTMAX = ("fork",) if backend.kind() == "tf1" else ("stock",)
MASKED = ("LM", "UniLM", "RealFormer")


def library(version: str) -> Path:
    """A folder to put first on the path, after which ``import bert4keras`` is ``version``.

    It goes into .cache, whichever version this environment has.
    """
    path = ROOT / ".cache" / f"bert4keras-{version}-py{sys.version_info[0]}.{sys.version_info[1]}"
    if not path.exists():
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        command = [uv(ROOT), "pip", "install", "--quiet", "--no-deps", "--target", str(temporary)]
        command += ["--python", sys.executable, f"bert4keras=={version}"]
        subprocess.run(command, check=True)
        try:
            temporary.rename(path)
        except OSError:  # another test process was first
            if not path.exists():
                raise
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory: Any) -> Iterator[Dict[Tuple[str, str, str, str], Any]]:
    """(bert4keras, infinity, lists, head) -> the finding as JSON, or None where all is finite."""
    folder = tmp_path_factory.mktemp("table")
    running = []
    for version, infinities in INFINITIES.items():
        path = f"{library(version)}:{ROOT}"
        out = folder / f"{version}.json"
        command = [sys.executable, "-m", "tests.diagnose.table_process", str(out), *infinities]
        env = {**environment(), "AMP_XLA_PRECISION": "fp32", "PYTHONPATH": path}
        with open(f"{out}.log", "w") as log:
            process = subprocess.Popen(command, env=env, cwd=str(ROOT), stdout=log, stderr=log)
        running.append((version, out, process))
    findings: Dict[Tuple[str, str, str, str], Any] = {}
    for version, out, process in running:
        assert process.wait() == 0, Path(f"{out}.log").read_text()
        document = json.loads(out.read_text())
        assert document["bert4keras"] == version
        for row in document["rows"]:
            findings[version, row["infinity"], row["lists"], row["head"]] = row["finding"]
    yield findings


def test_0_11_5_is_finite_everywhere(table: Any) -> None:
    findings = [finding for key, finding in table.items() if key[0] == "0.11.5"]
    assert findings == [None] * (len(LISTS) * len(heads.HEADS))


@pytest.mark.parametrize("lists", LISTS)
@pytest.mark.parametrize("head", ["classifier", "MLM", "GlobalPointer"])
@pytest.mark.parametrize("infinity", ["1e12", "1e4"])
def test_0_11_3_is_finite(table: Any, infinity: str, head: str, lists: str) -> None:
    assert table["0.11.3", infinity, lists, head] is None


@pytest.mark.parametrize("lists", LISTS)
@pytest.mark.parametrize("head", MASKED)
def test_0_11_3_fails_at_the_mask_multiplication(table: Any, head: str, lists: str) -> None:
    assert table["0.11.3", "1e4", lists, head] is None
    finding = table["0.11.3", "1e12", lists, head]
    if lists not in HALF_SOFTMAX:
        assert finding is None
        return
    layer = f"Transformer-{1 if head == 'RealFormer' else 0}-MultiHeadSelfAttention"
    assert (finding["node"], finding["op"], finding["layer"]) == (f"{layer}/mul", "Mul", layer)
    assert (finding["phase"], finding["half"], finding["float32_too"]) == ("forward", True, False)
    assert "in sequence_masking: x = x * mask + value * (1 - mask)" in finding["source"]
    assert finding["source"].startswith("bert4keras/backend.py:")
    assert "K.set_infinity(1e4)" in finding["remedies"][0]
    assert "bert4keras 0.11.5" in finding["remedies"][1]
    assert "_ADD=Mul" in finding["remedies"][-1]


@pytest.mark.parametrize("lists", LISTS)
@pytest.mark.parametrize("infinity", ["1e12", "1e4"])
def test_0_11_3_fails_with_a_crf(table: Any, infinity: str, lists: str) -> None:
    finding = table["0.11.3", infinity, lists, "CRF"]
    assert (finding["layer"], finding["phase"], finding["half"]) == ("CRF", "forward", True)
    assert finding["float32_too"] is False
    if infinity == "1e12":  # the mask multiplication
        assert (finding["node"], finding["op"]) == ("loss/CRF_loss/mul_1", "Mul")
        assert "in dense_loss: y_true, y_pred = y_true * mask, y_pred * mask" in finding["source"]
    else:  # padding is not masked, and its scores of 1e4 add up
        assert finding["node"].startswith("loss/CRF_loss/einsum/")
        assert "in target_score: point_score = tf.einsum" in finding["source"]
        # What is more, float32 computes another loss then.
        right = table["0.11.3", "1e12", lists, "CRF"]["float32_loss"]
        assert abs(float(finding["float32_loss"]) - float(right)) > 1.0
    assert "use bert4keras 0.11.5: ConditionalRandomField of 0.11.3" in finding["remedies"][0]
