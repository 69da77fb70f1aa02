"""Forecasts agree with published speeds and memory, and are never surer than they may be."""

import json

import numpy as np
import pytest

from amp_xla.commands.recipe_job import longest
from amp_xla.errors import SettingsError
from amp_xla.speed.plan import forecast, report
from amp_xla.speed.plan.forecast import Mode
from amp_xla.speed.plan.gpus import GPUS, chosen
from benchmarks import gpu as gpu_record
from benchmarks import plan_fit, plan_rows
from benchmarks.gpu_rows import Row as GpuRow

pytestmark = pytest.mark.once

ROWS = plan_rows.published()
ERRORS = plan_fit.errors(ROWS, forecast.fitted())


@pytest.mark.parametrize(
    "program, median, within", [("tensorflow", 0.07, 0.20), ("apex", 0.1, 0.25)]
)
def test_published_speeds(program, median, within):
    chosen = [r.program == program or (program[0] == "t" and r.tensorflow) for r in ROWS]
    errors = plan_fit.relative(ERRORS[chosen])
    assert len(errors) > 90
    assert np.median(errors) < median and np.mean(errors <= within) >= 0.9


def test_ranges_hold_eight_of_ten_and_more_gpus_are_faster_but_not_in_proportion():
    pairs = [(forecast.spread(r.gpu), error) for r, error in zip(ROWS, ERRORS) if r.tensorflow]
    assert np.mean([low <= np.exp(error) <= high for (low, high), error in pairs]) >= 0.8
    h100 = [np.exp(e) for r, e in zip(ROWS, ERRORS) if r.tensorflow and r.gpu.name == "h100"]
    low, high = forecast.spread(GPUS["h100"])
    assert len(h100) == 2 and low <= h100[0] <= high and h100[1] < 1.25  # both with XLA
    work, gpu = plan_rows.work("bert-base", 32, 128, 20, False), GPUS["v100-16g"]
    program = forecast.program("tensorflow")
    one, eight, many = (
        sum(forecast.seconds(work, gpu, Mode("amp", True, n), program)) for n in (1, 8, 32)
    )
    assert one < eight < many < 3 * one


@pytest.mark.parametrize("what, pairs", [("precision", 100), ("xla", 30)])
def test_amp_and_xla_in_the_right_order(what, pairs):
    count, order, near = plan_fit.factors(ROWS, ERRORS, what)
    assert count > pairs and order == 1.0 and near > 0.85


def test_fits_is_never_said_of_what_ran_out_of_memory():
    verdicts = [forecast.verdict(share) for share in (0.84, 0.85, 1.0, 1.01)]
    assert verdicts == ["fits", "close", "close", "does not fit"]
    stated = right = 0
    for row in plan_rows.memory_rows():
        verdict = forecast.verdict(forecast.memory(row.work, row.mode) / (row.gib * 2**30))
        assert row.fits or verdict != "fits", row.source
        stated += verdict != "close"
        right += verdict == ("fits" if row.fits else "does not fit")
    assert stated >= 25 and right >= 0.9 * stated


@pytest.mark.parametrize(
    "name, mode", [("t4", Mode("fp32", False)), ("h200", Mode("amp", True))], ids=str
)
def test_the_largest_batch_fits_and_a_larger_one_does_not(name, mode):
    gpu, work = GPUS[name], plan_rows.work("bert-large", 8, 384, 0, False)
    most = forecast.largest_batch(work, gpu, mode)
    for size, fits in ((most, True), (most + 1, False)):
        needed = forecast.memory(work.scaled(size / 8), mode) / (gpu.memory * 2**30)
        assert (forecast.verdict(needed) == "fits") == fits


def test_data_sheets_and_names_of_gpus():
    for name, gpu in GPUS.items():
        assert gpu.source.startswith("https://") and gpu.name == name
        assert gpu.half > gpu.float32 and gpu.memory < gpu.bandwidth
        if gpu.tf32:  # a half of the tensor cores' half-precision rate
            assert gpu.half / gpu.tf32 == pytest.approx(2, rel=0.02)
    assert [gpu.name for gpu in chosen("T4, h100,t4")] == ["t4", "h100"]
    assert chosen("all") == list(GPUS.values())
    for names, found in (
        ("a100", "no such GPU; did you mean a100-40g or a100-80g. allowed.*a6000"),
        ("t4,h1000", "mean h100. allowed.*a6000"),
    ):
        with pytest.raises(SettingsError, match=found):
            chosen(names)


def test_rows_of_the_gpu_benchmark(tmp_path):
    made = dict(machine={"card": "NVIDIA H100 80GB HBM3"}, date="2026-01-01", revision="a")
    made.update(batch=96, status="ok", windows=[960.0])
    row = GpuRow("BERT-base at 384", "amp + xla on", seconds=[0.1], **made)
    other = GpuRow("BERT-base at 384", "PyTorch bf16", seconds=[0.2], **made)
    rows = {each.key: each for each in (row, other)}
    gpu_record.write(rows, tmp_path / "gpu", trial=True)
    (found,) = plan_rows.measured(tmp_path / "gpu.json")
    assert (found.gpu.name, found.batch, found.seconds) == ("h100", 96, 0.1)
    assert "H100" in plan_fit.beside([found], np.array([0.1])).upper()


def options(work, names, price):
    modes = [Mode(precision, xla) for precision in ("fp32", "amp") for xla in (False, True)]
    gpus = [GPUS[name] for name in names.split()]
    return [report.option(work, 0.5, gpu, mode, 1e6, price) for gpu in gpus for mode in modes]


def test_the_mean_batch_of_data_without_numbers():
    pairs = [(np.zeros((rows, 0)), np.zeros(rows)) for rows in (4, 2)]
    for batches in (pairs, [[list(p), 1] for p in pairs], [dict(zip("ab", p)) for p in pairs]):
        assert longest(iter(batches)) == (batches[0], 0.75)


@pytest.mark.parametrize("price", [None, 2.5])
def test_a_report(price):
    work = plan_rows.work("bert-base", 16, 128, 0, False)
    found = options(work, "a100-40g rtx3090 t4 h100", price)
    text = str(report.Report("job", 16, 1, 1e12, 0.9, "a guess", found))
    assert ("the least cost" if price else "the fastest") in text and " to " in text
    for on, said in ((None, "--xla on, the "), (False, "--xla off (auto: it is short), the "),
                     (True, "--xla on (auto: it is short), the ")):  # fmt: skip
        text = str(report.Report("job", 16, 1, 1e12, 0.9, "a guess", found, on, "it is short"))
        assert said in text and "without XLA; a batch of up to" in text
        assert ("times as fast as fp32 without XLA" in text) == (on is not False)
    for item in found:
        assert item.step_ms[0] < item.step_ms[1] and sum(item.parts.values()) == pytest.approx(1)
        assert (item.cost is None) == (price is None)
    found = options(plan_rows.work("bert-large", 512, 512, 0, False), "t4 rtx3080", price)
    result = report.Report("job", 512, 1, 1e12, 0.9, "a guess", found)
    assert "none of these GPUs surely holds the batch" in str(result)
    best = max(item.largest_batch for item in found if not item.xla)
    advice = report.Report("job", 512, 1, 1e12, 0.9, "a guess", found, False).advice()
    assert f"the largest that fits is {best} per GPU" in advice
    assert json.loads(json.dumps(result.to_json()))["options"][0]["verdict"] == "does not fit"
