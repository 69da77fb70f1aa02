"""The page's curves are where their values are."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from amp_xla.report import record
from amp_xla.report.curves import Axis, Series, figure, smoothed, thin
from amp_xla.report.page import render
from tests.support import run_folders as folders

pytestmark = pytest.mark.once
X, Y = np.array([0.0, 50.0, 75.0, 100.0]), np.array([1.0, 3.0, np.nan, 2.0])


def points(path):
    return [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+) ([\d.]+)", path)]


@pytest.mark.parametrize("style, places", [
    ("line", [(0, 1), (50, 3), (100, 2)]),
    ("steps", [(0, 1), (50, 1), (50, 3), (100, 3), (100, 2)]),  # a value holds until the next
])  # fmt: skip
def test_a_curve_goes_through_its_values(style, places):
    drawn = figure("Loss", [Series("loss", 0, X, Y, style)], steps=200.0)
    low, high = 0.88, 3.12  # 6% of the values' range below and above
    wanted = [(5.0 * x, round(1000.0 * (high - y) / (high - low), 1)) for x, y in places]
    assert points(drawn["lines"][0]["path"]) == wanted
    assert drawn["data"]["lines"] == [["loss", 0, [0, 50, 100], [1, 3, 2]]]
    assert (drawn["data"]["low"], drawn["data"]["high"]) == (0, 200)
    for tick in drawn["y_ticks"]:
        assert tick["at"] == pytest.approx(100 * (float(tick["text"]) - low) / (high - low), 0.01)
    assert {"at": 25.0, "text": "50"} in drawn["x_ticks"]


def test_logarithms_dots_marks_and_figures_without_points():
    series = [Series("loss", 0, X, 10.0**Y, "dots")]
    drawn = figure("Loss", series, marks=[(0, np.array([25.0, 999.0]))], log=True)
    (line,), heights = drawn["lines"], [(3.12 - y) / 2.24 for y in (1, 3, 2)]
    assert drawn["log"] and points(line["dots"]) == points(line["path"])
    np.testing.assert_allclose([y for _, y in points(line["path"])], 1000 * np.array(heights), 0.01)
    assert [tick["text"] for tick in drawn["y_ticks"]] == ["10", "100", "1000"]
    assert drawn["marks"] == [{"run": 0, "path": "M250 1000V955"}]
    assert figure("Loss", [Series("loss", 0, X, np.nan * Y)]) is None
    np.testing.assert_allclose(Axis(np.array([5.0, 5.0]))(5.0), 0.5)


def test_fewer_points_keep_ends_peaks_and_dips_where_they_are():
    x, y = np.arange(1e4), np.random.RandomState(0).rand(10_000)
    y[[1234, 7777]] = 9.0, -9.0
    kept_x, kept_y = thin(x, y)
    assert len(kept_x) <= 2000 and (kept_x[0], kept_x[-1]) == (0, 9999)
    np.testing.assert_array_equal(kept_y, y[kept_x.astype(int)])
    assert {1234, 7777} <= set(kept_x)
    means = smoothed(np.array([1.0, 2.0, np.nan, 6.0, 9.0]), 2)
    np.testing.assert_allclose(means, [1.0, 1.5, 4.0, 7.5, 9.0])


def test_the_page_shows_each_value_at_its_step(tmp_path):
    run = folders.diverged(tmp_path / "run")
    text = render([record.read(run)])
    found = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL)
    figures = json.loads(found.group(1))["figures"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for kind, field, name in (
        ("dev", "dev_accuracy", "dev"), ("dev", "dev_loss", "dev"),
        ("train", "learning_rate", "learning rate"), ("train", "loss_scale", "loss scale"),
    ):  # fmt: skip
        places = [(x["step"], float(f"{x[field]:.5g}")) for x in lines if x["kind"] == kind]
        curves = [line for each in figures for line in each["lines"] if line[0] == name]
        assert places in [list(map(tuple, zip(*line[2:]))) for line in curves], field
    dev = [x["dev_accuracy"] for x in lines if x["kind"] == "dev"]
    assert f"from {dev[0]:g} to {dev[-1]:g}, lowest {min(dev):g}, highest {max(dev):g}" in text
