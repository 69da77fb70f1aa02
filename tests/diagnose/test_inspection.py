"""inspect: what it counts, and that it fails where the pass did nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amp_xla import backend
from amp_xla.diagnose import inspect
from amp_xla.graph.lists import PREFIX
from amp_xla.graph.virtual_gpu import PassFailedError
from tests.diagnose import heads
from tests.running import run_python


@pytest.fixture(scope="module")
def head() -> heads.Head:
    return heads.build("classifier")


@pytest.fixture(scope="module")
def report(head: heads.Head) -> Any:
    return inspect(head.model, batch=head.arrays)


def test_counts(report: Any) -> None:
    assert report.half_nodes > 50
    assert report.casts_to_half > 0 < report.casts_to_float
    assert report.half_flops_share > 0.99
    assert report.unmeasured == []
    assert report.kept_bytes > 10**5 and report.recomputed_bytes == 0


def test_layers(report: Any) -> None:
    attention = next(x for x in report.layers if x.layer == "Transformer-0-MultiHeadSelfAttention")
    assert str(attention.forward["matmul"]) == "6/6"
    assert str(attention.backward["matmul"]) == "12/12"
    assert str(attention.forward["softmax"]) == "1/1"  # fork on 1.15, and stock on 2.17
    norm = next(x for x in report.layers if x.layer == "Transformer-0-FeedForward-Norm")
    assert norm.forward["norm"].half == 0 < norm.forward["norm"].total
    assert norm.blocked_by == "Mean"
    assert "bert4keras/layers.py" in norm.source


def test_stock_lists_keep_softmax_in_float32_on_1_15(head: heads.Head) -> None:
    if backend.kind() == "tf2":
        with pytest.raises(Exception, match="allowed here: stock"):
            inspect(head.model, lists="fork")
        return
    report = inspect(head.model, lists="stock", batch=head.arrays)
    attention = next(x for x in report.layers if x.layer == "Transformer-0-MultiHeadSelfAttention")
    assert str(attention.forward["softmax"]) == "0/1"
    assert report.half_flops_share > 0.99


def test_dimensions_and_constants(report: Any) -> None:
    assert any(5 in entry.unaligned for entry in report.alignment)  # five classes
    assert any(c.value == pytest.approx(1e-12) and not c.half for c in report.constants)


def test_json_and_text(report: Any) -> None:
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert document["half_nodes"] == report.half_nodes
    text = str(report)
    assert "of the matmul FLOPs run in float16" in text
    assert "What keeps the rest in float32" in text
    assert "B of activations are kept for the backward pass" in text


@pytest.mark.parametrize("gpu", ["6.1", "eight"])
def test_a_gpu_that_cannot_is_an_error(head: heads.Head, gpu: str) -> None:
    with pytest.raises(Exception, match="compute capability"):
        inspect(head.model, gpu=gpu)


def test_lists_that_conflict_are_an_error(head: heads.Head, monkeypatch: Any) -> None:
    names = {"tf1": ("WHITELIST", "BLACKLIST"), "tf2": ("ALLOWLIST", "DENYLIST")}
    for name in names[backend.kind()]:
        monkeypatch.setenv(f"{PREFIX}{name}_ADD", "Tanh")
    with pytest.raises(PassFailedError, match="conflicting entries: Tanh"):
        inspect(head.model)


def test_nothing_converted_is_an_error(head: heads.Head, monkeypatch: Any) -> None:
    name = {"tf1": "WHITELIST", "tf2": "ALLOWLIST"}[backend.kind()]
    monkeypatch.setenv(f"{PREFIX}{name}_REMOVE", "MatMul,BatchMatMul,BatchMatMulV2,Einsum")
    with pytest.raises(PassFailedError, match="No (allow|white)list ops found"):
        inspect(head.model)


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("".join(f"word{i % 7} text\tabc{i % 3}\n" for i in range(40)))
    data = str(tmp_path / "a.tsv")
    recipe = ["--train", data, "--dev", data, "--layers", "1", "--hidden", "64"]
    words = ["-m", "amp_xla", "inspect", "--gpu", "7.0", "--out", str(tmp_path), "--", *recipe]
    done = run_python(*words)
    assert done.code == 0, done.err
    assert "a virtual GPU 7.0" in done.out
    document = json.loads((tmp_path / "amp.json").read_text())
    assert document["half_flops_share"] > 0.9
    assert "Transformer-0-MultiHeadSelfAttention" in [x["layer"] for x in document["layers"]]
    words[words.index("7.0")] = "6.0"
    done = run_python(*words)
    assert done.code == 2
    assert "compute capability 7.0 or newer" in done.err
    assert done.out == ""
