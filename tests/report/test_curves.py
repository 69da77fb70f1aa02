"""The page's curves are where their values are."""

import json
import re

import numpy as np
import pytest

from amp_xla.report import record
from amp_xla.report.curves import Series, figure, smoothed, thin
from amp_xla.report.page import render
from tests.support import run_folders as folders

pytestmark = pytest.mark.once
X, Y = np.array([0.0, 50.0, 75.0, 100.0]), np.array([1.0, 3.0, np.nan, 2.0])
LOW, HIGH = 0.88, 3.12  # of the axis: 6% of the values' range below and above


def points(path):
    return [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+) ([\d.]+)", path)]


@pytest.mark.parametrize("style, log, places", [
    ("line", False, [(0, 1), (50, 3), (100, 2)]),
    ("dots", True, [(0, 1), (50, 3), (100, 2)]),
    ("steps", False, [(0, 1), (50, 1), (50, 3), (100, 3), (100, 2)]),  # until the next value
])  # fmt: skip
def test_a_curve_goes_through_its_values(style, log, places):
    series = [Series("loss", 0, X, 10.0**Y if log else Y, style)]
    marks = [(0, np.array([25.0, 999.0]))]  # the second is beyond the axis
    drawn = figure("Loss", series, marks=marks, log=log, steps=200.0)
    wanted = [(5.0 * x, 1000.0 * (HIGH - y) / (HIGH - LOW)) for x, y in places]
    (line,) = drawn["lines"]
    np.testing.assert_allclose(points(line["path"]), wanted, atol=0.06)
    assert points(line["dots"]) == (points(line["path"]) if style == "dots" else [])
    assert drawn["data"]["lines"] == [["loss", 0, [0, 50, 100], series[0].y[[0, 1, 3]].tolist()]]
    for tick in drawn["y_ticks"]:
        value = np.log10(float(tick["text"])) if log else float(tick["text"])
        assert tick["at"] == pytest.approx(100 * (value - LOW) / (HIGH - LOW), abs=0.01)
    assert {"at": 25.0, "text": "50"} in drawn["x_ticks"]
    assert drawn["marks"] == [{"run": 0, "path": "M125 1000V955"}]


def test_fewer_points_keep_ends_peaks_and_dips_where_they_are():
    x, y = np.arange(1e4), np.random.RandomState(0).rand(10_000)
    y[[1234, 7777]] = 9.0, -9.0
    kept_x, kept_y = thin(x, y)
    assert len(kept_x) <= 2000 and {0, 1234, 7777, 9999} <= set(kept_x)
    np.testing.assert_array_equal(kept_y, y[kept_x.astype(int)])
    means = smoothed(np.array([1.0, 2.0, np.nan, 6.0, 9.0]), 2)
    np.testing.assert_allclose(means, [1.0, 1.5, 4.0, 7.5, 9.0])


def test_the_page_shows_each_value_at_its_step_and_the_best_run(tmp_path):
    run, best = folders.diverged(tmp_path / "run"), folders.good(tmp_path / "best")
    text = render([record.read(run)])
    found = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL)
    curves = [line for each in json.loads(found.group(1))["figures"] for line in each["lines"]]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for kind, field, name in (
        ("dev", "dev_accuracy", "dev"), ("dev", "dev_loss", "dev"),
        ("train", "learning_rate", "learning rate"), ("train", "loss_scale", "loss scale"),
    ):  # fmt: skip
        places = [(x["step"], float(f"{x[field]:.5g}")) for x in lines if x["kind"] == kind]
        shown = [list(zip(*line[2:])) for line in curves if line[0] == name]
        assert places in shown, field
    assert "dev accuracy: from 0.6 to 0.9, lowest 0.6, highest 0.9" in text
    with (best / "metrics.jsonl").open("a") as log:
        log.write('{"step": 201, "kind": "dev", "dev_accuracy": 0.95}\n')
    assert "Best: <strong>best" in render([record.read(run), record.read(best)])
