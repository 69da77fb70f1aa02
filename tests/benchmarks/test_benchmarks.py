"""The GPU benchmark resumes, ends in time, reports what failed, and refuses a CPU."""

import json

import pytest

from benchmarks import gpu
from benchmarks.gpu_rows import CONTESTANTS, PLAN, Row
from tests.support.running import run_python

pytestmark = pytest.mark.once

NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1"}
FACTS = {"card": "NVIDIA H100 80GB HBM3", "driver": "550.54", "tensorflow": "2.17.1", "steps": "10"}


def trial(out, *words, code=0):
    words = ("-m", "benchmarks.gpu", "--out", str(out), *words)
    return run_python(*words, env=NO_GPU, code=code).err


def rows(out):
    return list(gpu.read(out).values())


@pytest.mark.slow
def test_a_trial_measures_only_missing_rows(tmp_path):
    """Another revision is no reason to measure a row again; its program needs what is counted."""
    out = tmp_path / "new" / "gpu"
    words = ["--trial", "--steps", "2", "--peer", "/nowhere/python", "--only"]
    trial(out, *words, "at 16, fp32")
    record = json.loads(out.with_suffix(".json").read_text())
    record["rows"][0]["revision"] = "older"
    out.with_suffix(".json").write_text(json.dumps(record))
    said = trial(out, *words, "at 16, fp32;at 16, PyTorch bf16 compiled")
    assert "fp32, batch" not in said and "/nowhere/python has no torch, or does not answer" in said
    assert json.loads(out.with_suffix(".json").read_text()) == record
    (row,) = rows(out)
    assert row.status == "ok" and row.flops == row.expected_flops > 0
    assert len(row.seconds) == 6 and len(row.windows) == 3
    assert row.loss and row.first_loss and row.peak_bytes > 1e8 and row.skipped == 0
    page = out.with_suffix(".md").read_text()
    assert "not a result" in page and "| fp32 " in page and "| older, " in page
    assert f"## tiny at 16: {row.machine['card']}" in page and "- fp32: driver none" in page


def made(contestant, **values):
    facts = {"loss": 5.0, "first_loss": 6.0, "device": "gpu", "status": "ok", "batch": 64, **values}
    return Row("BERT-base at 384", contestant, FACTS, "2026-01-01", "abc", **facts)


@pytest.mark.parametrize(
    "row, why",
    [
        (made("amp", half_nodes=9), ""),
        (made("amp"), "ran in float32: nothing"),
        (made("tf32", half_nodes=9), "9 nodes ran in half precision"),
        (made("amp + xla on", half_nodes=9), "XLA compiled nothing"),
        (made("amp", half_nodes=9, skipped=2), "2 steps were skipped"),
        (made("amp", half_nodes=9, loss=None), "loss not finite"),
        (made("JAX bf16", half_nodes=9, device="cpu"), "ran on the CPU"),
        (made("JAX bf16, cuDNN attention", half_nodes=9), "its program has no cuDNN attention"),
        (made("tf32", flops=7), "its program has 7 FLOPs instead of "),
    ],
)
def test_a_row_is_what_its_name_says(row, why):
    problem = row.problem(False, ())
    assert problem.startswith(why) and bool(problem) == bool(why)


@pytest.mark.parametrize(
    "card, peak",
    [
        ("NVIDIA H100 80GB HBM3", "25%"), ("NVIDIA H100 PCIe", "33%"), ("NVIDIA A1000", "-"),
        ("NVIDIA H100 NVL", "-"), ("Tesla V100-PCIE-16GB", "-"), ("NVIDIA L40", "-"),
        ("NVIDIA L4", "207%"), ("8 x NVIDIA A100-SXM4-40GB", "80%"), ("Radeon", "-"),
        ("NVIDIA GeForce RTX 3080", "420%"), ("NVIDIA GeForce RTX 3080 Ti", "-"),
        ("NVIDIA GeForce RTX 3090", "352%"), ("NVIDIA A10", "200%"),
    ],
)  # fmt: skip
def test_the_peak_is_that_of_exactly_this_card(card, peak):
    row = made("amp", seconds=[0.1, 0.2, 0.3], windows=[64.0, 128.0, 32.0])
    row.machine = {**FACTS, "card": card}
    row.seconds = [row.expected_flops / 250e12]
    name = gpu.HEAD.index
    assert gpu.cells(row)[name("of peak")] == peak
    assert gpu.cells(row)[name("sequences/s")] == "64.0"
    assert gpu.cells(row)[name("spread")] == "150%"


def test_a_table_has_one_card_and_the_committed_page_is_what_the_record_says():
    both = [made("amp"), made("tf32"), made("amp")]
    both[2].machine = {**FACTS, "card": "NVIDIA L4"}
    page = gpu.render({row.key: row for row in both}, trial=False)
    assert "## BERT-base at 384: NVIDIA L4" in page and page.count("| amp ") == 2
    assert "- amp; tf32: driver 550.54, tensorflow 2.17.1, steps 10" in page
    assert len(set(PLAN)) == len(PLAN) and {name for _, name in PLAN} == set(CONTESTANTS)
    # After a change of the page: ``python -m benchmarks.gpu --render``.
    page = gpu.PAGE.with_suffix(".md").read_text(encoding="utf-8")
    assert page == gpu.render(gpu.read(gpu.PAGE), trial=False)


def test_a_machine_without_a_gpu_is_refused(tmp_path):
    said = trial(tmp_path / "gpu", code=2)
    assert "error: no GPU (" in said and not list(tmp_path.iterdir())
