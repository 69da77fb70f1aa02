"""The report's page, of text only; its curves; scores of labelled samples are scikit-learn's."""

import fcntl
import html
import json
import os
import re
import socket
from pathlib import Path

import numpy as np
import pytest

from amp_xla.commands import cli
from amp_xla.report import record, scores
from amp_xla.report.curves import Series, figure, smoothed, thin
from amp_xla.report.page import render
from amp_xla.training.sample_scores import LabelScores, Samples
from tests.support import run_folders as folders

pytestmark = pytest.mark.once
EVIL = "</script><script>alert(1)</script>\x1b[31m\u202e文件"


def page(*folders_of_runs):
    return render([record.read(folder) for folder in folders_of_runs])


def test_the_page_shows_results_and_problems_of_a_run(tmp_path):
    text = page(folders.good(tmp_path / "good"))
    for part in ("did it learn", "0.9000", "16 × 32", "bfloat16", "nothing found", "--epochs 4"):
        assert part in text.lower(), part
    assert "<svg" in text and "http" not in re.sub("http-equiv", "", text)
    with (tmp_path / "good" / "metrics.jsonl").open("a") as log:
        log.write('{"step": 205, "kind": "dev", "dev_accuracy": 0.9}\n')
    assert "better before" not in page(tmp_path / "good")
    diverged = page(folders.diverged(tmp_path / "diverged"))
    assert "No: it diverged" in diverged and "the overflow finder" in diverged.lower()
    assert "--steps 400 --resume" in page(folders.good(tmp_path / "steps", epochs=None, steps=200))
    killed = folders.good(tmp_path / "killed", state="running")
    with (killed / "metrics.jsonl").open("a") as log:
        log.write('{"step": 999, "ki')
    for part in ("ended without a message", "the same command with --resume continues"):
        assert part in page(killed)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "Too early to say" in page(empty)
    three = page(tmp_path / "good", tmp_path / "diverged", killed)
    assert "3 runs compared" in three and "Best: <strong>good" in three
    assert "All settings are the recipe&#39;s defaults." in page(tmp_path / "good")
    for status in ('{"plan": {}}', '{"plan": {"defaults": {}}}', ""):
        (tmp_path / "steps/status.json").write_text(status)
        assert "The defaults were not saved." in page(tmp_path / "steps")
    text = page(tmp_path / "good", folders.good(tmp_path / "b", learning_rate=2e-3))
    assert "0.002" in text and "learning_rate</th>" in text  # the setting that differs


@pytest.mark.parametrize("f1, loss, advice", [
    ([0.0, 0.0], 1.0, "more --epochs"),
    ([0.4, 0.0], 9.0, "a lower --learning-rate"),
    ([0.0, 0.1], 1.0, ""),
])  # fmt: skip
def test_an_f1_of_0_is_a_finding(tmp_path, f1, loss, advice):
    run = folders.good(tmp_path / "run")
    status = json.loads((run / "status.json").read_text())
    status["plan"]["monitor"] = "f1"
    (run / "status.json").write_text(json.dumps(status))
    log = [
        {"step": step, "kind": "train", "loss": value}
        for step, value in ((1, 5), (2, 4), (3, loss))
    ]
    log += [{"step": 2 + i, "kind": "dev", "dev_f1": value} for i, value in enumerate(f1)]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in log))
    text = page(run)
    assert ("The dev F1 is 0" in text) == bool(advice) and advice in text
    (run / "config.json").write_text('{"run": {}}')  # a script has no flags
    assert advice.replace("--", "").replace("-", " ") in page(run)


@pytest.mark.parametrize("status, state", [("done", "done"), ("running", "running")])
def test_a_run_that_a_process_holds_is_running_until_it_says_how_it_ended(tmp_path, status, state):
    """Training writes the page before it lets the folder go."""
    run = folders.good(tmp_path / "run", state=status)
    with (run / ".lock").open("w") as lock:
        lock.write(f"process {os.getpid()} on {socket.gethostname()}")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert record.read(run).state == state
    assert record.read(run).state == ("done" if status == "done" else "killed")


def test_a_run_of_another_machine_is_running_while_it_writes(tmp_path):
    run = folders.good(tmp_path / "run", state="running")
    (run / ".lock").write_text("process 7 on elsewhere")
    (run / "checkpoints").mkdir()
    os.utime(str(run / "metrics.jsonl"), (0, 0))
    assert record.read(run).state == "running"
    os.utime(str(run / "checkpoints"), (0, 0))
    assert record.read(run).state == "killed"
    (run / "metrics.jsonl").write_text("")
    (run / "checkpoints" / "step-00000007").mkdir()
    assert record.read(run).steps == 7  # it stopped before its first line


def test_text_from_a_run_folder_is_only_text_also_of_scored_files(tmp_path):
    run = folders.good(tmp_path / "evil", {EVIL: 0.5}, message=EVIL, train=EVIL)
    folders.scored(run, EVIL)
    folders.ranked(run)
    for text in (page(run), page(run, run)):
        shown = html.escape(EVIL[:34]).replace("&#x27;", "&#39;") + r"\x1b[31m\u202e文件"
        assert shown in text
        assert "<script>alert" not in text and "\x1b" not in text and "\u202e" not in text
        assert text.count("<script") == 2  # the page's own data and script
    parts = "pairs.tsv|Confusion matrix|Calibration|Worst errors|McNemar|macro F1".split("|")
    assert all(part in page(run) for part in parts)
    assert "not of the expected form" not in page(run)
    result = run / "evaluation" / "test.tsv" / "result.json"
    for damage in ('{"metrics": 3}', '{"per_label": [1]}', "{"):
        result.write_text(damage)
        assert "Did it learn" in page(run)


@pytest.mark.parametrize("command, ranks, repeated", [
    ("/x/amp_xla/__main__.py train --recipe a -- --epochs 2", 1, "amp-xla train --recipe a --"),
    ("/x/amp_xla/__main__.py train --recipe a -- --epochs 2", 2, "amp-xla ranks --np 2 --recipe a"),
    ("recipes/a.py --epochs 2", 1, "amp-xla train a --epochs 2"),
    ("./amp-xla train --recipe=tagging --", 1, "amp-xla train tagging<"),
    ("amp-xla train --recipe=tagging -- --epochs 2", 1, "amp-xla train tagging --epochs 2<"),
    ("ner.py", 2, "horovodrun -np 2 python ner.py"),
    ("/home/me/ner.py /root/a b/home/c", 1, "python ~/ner.py ~/a b/home/c<"),
    ("a.py --hf-token hf_x --seed 1", 1, "python a.py --hf-token &#39;***&#39; --seed 1<"),
    ("a.py WANDB_API_KEY=1 x", 1, "python a.py &#39;WANDB_API_KEY=***&#39; x<"),
    ("a.py s3://u:p@h/x?a=1&token=2&b=3", 1, "python a.py &#39;s3://***@h/x?a=1&amp;token=***&amp;b=3&#39;<"),
    ("a.py s3://u:p@h/x?api_key=k", 1, "python a.py &#39;s3://***@h/x?api_key=***&#39;<"),
    ("a.py /home/me: /Users/my.name. /root, /rootfs", 1, "python a.py ~: ~. ~, /rootfs<"),
    ("a.py --token-dropout 0.1 --tokens 3", 1, "python a.py --token-dropout 0.1 --tokens 3<"),
    ("a.py --key=sk-abcdefghijklmnopq", 1, "python a.py &#39;--key=***&#39;<"),
])  # fmt: skip
def test_the_command_to_repeat(tmp_path, command, ranks, repeated):
    run = folders.good(tmp_path / "run")
    (run / "run.json").write_text(json.dumps({"command": command, "ranks": ranks}))
    assert f">{repeated}" in page(run)


def test_runs_that_differ_in_their_seed_alone_have_a_mean(tmp_path, capsys):
    others = [("d", 4, 0.99, {"epochs": 9}), ("e", 5, 0.99, {"state": "running"})]
    rows = [("a", 1, 0.91, {}), ("b", 2, 0.93, {}), ("c", 12, 0.98, {}), *others]
    for name, seed, accuracy, settings in rows:
        run = folders.good(tmp_path / name, seed=seed, **settings)
        with (run / "metrics.jsonl").open("a") as log:
            log.write(json.dumps({"step": 201, "kind": "dev", "dev_accuracy": accuracy}) + "\n")
    assert cli.main(["runs", str(tmp_path)]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    a, b, c = (tmp_path / name for name in "abc")
    assert last == (
        f"seeds 1, 2, 12: best accuracy mean 0.9400, standard deviation 0.0361 ({a}, {b}, {c})"
    )


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


def answers(samples, classes, right, seed):
    """Return labels of different frequencies, and predictions of which a share is right."""
    source = np.random.RandomState(seed)
    share = np.arange(1, classes + 1) / np.arange(1, classes + 1).sum()
    labels = source.choice(classes, samples, p=share)
    predicted = np.where(
        source.rand(samples) < right, labels, source.randint(classes, size=samples)
    )
    return labels, predicted


def labelled(labels, predicted):
    """Return these predictions as the answers of a run."""
    names, classes = tuple("abcdefghijklmnopqrstuvwxyzABCD"), max(labels.max(), predicted.max()) + 1
    samples = Samples(Path("run"), "", "", [""] * len(labels), [names[i] for i in labels])
    return LabelScores(samples, names[:classes], np.eye(classes)[predicted])


# By scikit-learn 1.9.1 for `answers(400, classes, 0.6, seed)`, all labels, zero_division=0:
# accuracy; then the means over labels of precision, recall and F1.
SCIKIT_LEARN = {
    (2, 1): (0.8075, 0.7823641765704584, 0.8020517040778683, 0.7894895120667619),
    (5, 2): (0.7, 0.6685334047454202, 0.7122315592903827, 0.6758555089287539),
    (30, 3): (0.5775, 0.5127276060899361, 0.5513853502911473, 0.510226830606716),
}


@pytest.mark.parametrize("classes,seed", SCIKIT_LEARN)
def test_scores_are_those_of_scikit_learn(classes, seed):
    labels, predicted = answers(400, classes, 0.6, seed)
    each = scores.per_label(scores.confusion(labels, predicted, classes))
    found = labelled(labels, predicted).result(seed)["metrics"]
    means = [each[name].mean() for name in ("precision", "recall", "f1")]
    np.testing.assert_allclose([found["accuracy"]["value"], *means], SCIKIT_LEARN[classes, seed])
    assert found["macro_f1"]["value"] == pytest.approx(means[2])


@pytest.mark.filterwarnings("error")
def test_mcnemar_the_direction_of_a_comparison_and_calibration():
    assert scores.mcnemar(10, 10) == 1.0 and scores.mcnemar(0, 2000) < 1e-300
    assert scores.mcnemar(1, 9) == pytest.approx(2 * (1 + 10) / 1024)
    equal = scores.bootstrap(np.ones([3, 2]), lambda rows: scores.correlations(*rows.T), 1)
    assert all(np.isnan(list(value.values())).all() for value in equal.values())
    labels, worse = answers(500, 3, 0.5, 1)
    pair = labelled(labels, labels).against(labelled(labels, worse), 1)
    assert pair["accuracy"]["low"] > 0 and pair["only_second"] == 0 and pair["p"] < 1e-9
    source = np.random.RandomState(1)
    confidence = source.uniform(0.3, 1.0, 100_000)
    error, bins = scores.calibration(confidence, source.rand(100_000) < confidence)
    assert error < 0.01 and len(bins) == 7
    error, bins = scores.calibration(np.ones(4), np.array([True, True, False, False]))
    assert (error, bins) == (0.5, [{"confidence": 1.0, "accuracy": 0.5, "count": 4}])
