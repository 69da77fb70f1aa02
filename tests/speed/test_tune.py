"""tune with real processes: running out of memory and overflow are rows, and noise is no result."""

import re
import sys

import pytest

from amp_xla import backend
from amp_xla.commands.recipe_job import open_recipe
from amp_xla.errors import AmpXlaError
from amp_xla.speed import measure, tune
from amp_xla.speed.measure import Outcome, Request

pytestmark = [pytest.mark.once, pytest.mark.timeout(600)]

TINY = ("--layers", "1", "--hidden", "64", "--max-length", "24", "--shapes", "1",
        "--batch-size", "8", "--vocab-size", "200")  # fmt: skip


def test_running_out_of_memory_and_overflow_are_results_that_are_never_recommended(
    tmp_path, monkeypatch
):
    data = tmp_path / "data.tsv"
    rows = (f"{['rain', 'wind', 'sun'][i % 3]} day {i}\t{i % 3}\n" for i in range(60))
    data.write_text("".join(rows))
    words = (*TINY, "--train", str(data), "--dev", str(data))
    python = tmp_path / "python"  # enough memory to import nothing
    python.write_text(f'#!/bin/sh\nulimit -v 600000\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    huge = ("--learning-rate", "1e30", "--clip-norm", "0")  # weights leave float32's range
    requests = [
        Request("classification", words, "fp32", "on"),
        Request("classification", words, "fp32", "off"),
        Request("classification", (*words, *huge), "tf32", "off"),
    ]
    kept, turn = [], measure.turn

    def counted(request, steps, timeout, folder):
        with pytest.MonkeyPatch.context() as limited:
            if request is requests[1]:
                limited.setattr(sys, "executable", str(python))
            lines = turn(request, steps, timeout, folder)
        kept.append(len(list(folder.glob("xla_compile_cache*"))))
        return lines

    monkeypatch.setattr(measure, "turn", counted)
    outcomes = measure.measure(requests, 3, 2, 200)
    good = outcomes[0]
    assert good.status == "ok", good
    assert len(good.samples_per_second) == 2 and good.median > 0
    assert len(good.step_seconds) == 6 and good.steps >= 19 and good.loss is not None
    assert good.warm_seconds > max(good.step_seconds)
    assert (kept[0] > 0) == (backend.kind() == "tf2")  # for the next round; 1.15 keeps none
    assert outcomes[1].status == "out of memory", outcomes[1]
    assert outcomes[2].status == "not finite", outcomes[2]
    assert tune.recommend(outcomes)[0] is outcomes[0]
    assert tune.recommend(outcomes[1:])[0] is None
    text = tune.render(outcomes)
    assert "out of memory" in text and "not finite" in text


# Samples per second in each round of fp32, amp, amp + XLA: which is recommended, and why.
ROUNDS = [
    ([(10.0, 7.0, 12.2), (12.5, 10.0, 15.1)], None,
     "1.25x fp32.*within the spread.*fp32 52%.*amp 41%.*nothing to recommend"),
    ([(10.0,), (20.0,)], None, "one round only"),
    ([(10.0, 10.0), (8.0, 12.4)], None, "1.02x fp32.*within the spread.*amp 43%"),
    ([(10.0, 10.1, 9.9), (20.0, 20.5, 19.5), (20.2, 20.9, 19.8)], 1, "simplest of these is amp$"),
    ([(10.0, 10.1, 9.9), (20.0, 20.5, 19.5)], 1, "^fastest: amp, 2.00x fp32$"),
]  # fmt: skip


@pytest.mark.parametrize("rates, best, words", ROUNDS)
def test_the_simplest_of_what_is_clearly_faster_is_recommended(rates, best, words):
    made = [
        Outcome(precision, xla, samples_per_second=list(each), loss=1.0)
        for (precision, xla), each in zip((("fp32", "off"), ("amp", "off"), ("amp", "on")), rates)
    ]
    found, reason = tune.recommend(made)
    assert found is (None if best is None else made[best]) and re.search(words, reason), reason


def test_steps_that_compile_are_not_timed():
    seconds = [9.0, 0.5, 9.0, *[0.5, 0.25] * 4]
    lines = [
        {"samples": 8 * n, "samples_per_second": 8 / s, "loss": 1.0 / n}
        for n, s in enumerate(seconds, 1)
    ]
    lines[2]["loss"] = "nan"  # skipped by a dynamic loss scale
    added = Outcome("amp", "on")
    added.add(lines, 4)
    assert added.samples_per_second == [pytest.approx(32 / 1.5)]
    assert added.warm_seconds == 17.0 and added.loss == 1.0 / 11 and added.median > 0
    for line in lines[4:]:
        line["loss"] = "nan"
    with pytest.raises(measure.ChildEnded, match="by step 11"):
        added.add(lines, 4)


def test_what_tune_cannot_measure_is_refused():
    with pytest.raises(AmpXlaError, match="--precision: tune measures"):
        tune.check_recipe("classification", ["--precision", "amp"])
    with pytest.raises(AmpXlaError, match=r"there is no recipe nothing"):
        tune.check_recipe("nothing", [])
    # Their precision is a policy's: each combination would start only to say that it cannot.
    with pytest.raises(AmpXlaError, match="jax_classification has neither"):
        tune.check_recipe("jax_classification", [])
    with pytest.raises(AmpXlaError, match="what the graph rewrite does in recipes that have"):
        open_recipe("jax_classification", [])
