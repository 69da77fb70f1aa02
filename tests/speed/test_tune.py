"""tune with real processes: running out of memory and overflow are rows, and noise is no result."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_xla import backend
from amp_xla.commands.recipe_job import open_recipe
from amp_xla.errors import AmpXlaError
from amp_xla.speed import measure, table
from amp_xla.speed.child import Request
from amp_xla.speed.measure import Outcome
from amp_xla.speed.tune import largest_batch, read_recipe

pytestmark = [pytest.mark.once, pytest.mark.timeout(600)]

TINY = ("--layers", "1", "--hidden", "64", "--max-length", "24", "--shapes", "1",
        "--batch-size", "8", "--vocab-size", "200")  # fmt: skip


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    data = tmp_path_factory.mktemp("tune") / "data.tsv"
    data.write_text(
        "".join(f"{['rain', 'wind', 'sun'][i % 3]} day {i}\t{i % 3}\n" for i in range(60))
    )
    return (*TINY, "--train", str(data), "--dev", str(data))


@pytest.fixture(scope="module")
def outcomes(words):
    """Outcomes of three requests, and after each turn the number of programs that XLA has kept."""
    requests = [
        Request("classification", words, "fp32", "on", steps=3),
        # As `ulimit -v`: enough to import nothing.
        Request("classification", words, "fp32", "off", address_space=600 * 2**20),
        # Weights that leave float32's range: NaN while it is warmed up.
        Request(
            "classification", (*words, "--learning-rate", "1e30", "--clip-norm", "0"), "tf32", "off"
        ),
    ]
    kept, turn = [], measure.turn

    def counted(request, timeout, compiled):
        answer = turn(request, timeout, compiled)
        kept.append(len(list(Path(compiled).glob("xla_compile_cache*"))))
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "turn", counted)
        return measure.measure(requests, 2, 200), kept


def test_running_out_of_memory_and_overflow_are_results_that_are_never_recommended(outcomes):
    outcomes, kept = outcomes
    good = outcomes[0]
    assert good.status == "ok", good
    assert len(good.samples_per_second) == 2 and good.median > 0
    assert good.peak_bytes > 100 * 2**20 and good.loss is not None
    assert (kept[0] > 0) == (backend.kind() == "tf2")  # for the next round; 1.15 keeps none
    assert outcomes[1].status == "out of memory", outcomes[1]
    assert outcomes[2].status == "not finite", outcomes[2]
    assert table.recommend(outcomes)[0] is outcomes[0]
    assert table.recommend(outcomes[1:])[0] is None
    text = table.render(outcomes)
    assert "out of memory" in text and "not finite" in text


def outcome(precision, xla, *rates):
    return Outcome(precision, xla, samples_per_second=list(rates), loss=1.0)


def test_a_difference_within_the_spread_of_the_rounds_is_no_recommendation():
    slow = outcome("fp32", "off", 10.0, 7.0, 12.2)  # spread 52%
    fast = outcome("amp", "off", 12.5, 10.0, 15.1)  # spread 41%
    best, reason = table.recommend([slow, fast])
    assert best is None
    assert "1.25x fp32" in reason and "within the spread" in reason
    assert "fp32 52%" in reason and "amp 41%" in reason and "nothing to recommend" in reason
    best, reason = table.recommend([outcome("fp32", "off", 10.0), outcome("amp", "off", 20.0)])
    assert best is None and "one round only" in reason


def test_of_equally_fast_combinations_the_simplest_is_recommended():
    plain = outcome("fp32", "off", 10.0, 10.1, 9.9)
    amp = outcome("amp", "off", 20.0, 20.5, 19.5)
    compiled = outcome("amp", "on", 20.2, 20.9, 19.8)
    best, reason = table.recommend([plain, amp, compiled])
    assert best is amp and "the simplest of these is amp" in reason
    best, reason = table.recommend([plain, amp])
    assert best is amp and reason == "fastest: amp, 2.00x fp32"


@pytest.mark.parametrize("most", [0, 5, 5000])
def test_the_largest_batch_is_found_by_trying(most):
    tried = []
    size = largest_batch(lambda rows: tried.append(rows) or rows <= most, 32)
    assert size <= most and size >= most - max(1, most // 12) - 8 * (most > 16)
    assert len(tried) <= 20 and (size in tried or size == 0)


def test_what_tune_cannot_measure_is_refused():
    with pytest.raises(AmpXlaError, match="--precision: tune measures"):
        read_recipe("classification", ["--precision", "amp"])
    with pytest.raises(AmpXlaError, match=r"recipes/nothing\.py"):
        read_recipe("nothing", [])
    # Their precision is a policy's: each combination would start only to say that it cannot.
    with pytest.raises(AmpXlaError, match="jax_classification has neither"):
        read_recipe("jax_classification", [])
    with pytest.raises(AmpXlaError, match="what the graph rewrite does in recipes that have"):
        open_recipe("jax_classification", [])
