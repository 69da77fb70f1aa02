"""tune with real processes: memory that runs out and numbers that overflow are rows, not ends."""

from __future__ import annotations

import json
import re

import pytest

from amp_xla.commands.recipe_job import open_recipe
from amp_xla.errors import AmpXlaError
from amp_xla.process.arguments import split_words
from amp_xla.speed import bench, memory, table, tune
from amp_xla.speed.child import evenly
from amp_xla.speed.measure import Candidate, Outcome, measure
from amp_xla.speed.memory import DoesNotFit, Largest, MemoryModel
from amp_xla.speed.peak import Peak
from amp_xla.speed.tune import read_recipe

pytestmark = pytest.mark.timeout(600)

TINY = ("--layers", "1", "--hidden", "64", "--max-length", "24", "--shapes", "1",
        "--batch-size", "8", "--vocab-size", "200")  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tune")
    text = "".join(f"{['rain', 'wind', 'sun'][i % 3]} day {i}\t{i % 3}\n" for i in range(60))
    (folder / "data.tsv").write_text(text)
    words = (*TINY, "--train", str(folder / "data.tsv"), "--dev", str(folder / "data.tsv"))
    candidates = [
        Candidate("fp32", "off"),
        # As `ulimit -v`: enough to import nothing.
        Candidate("fp32", "on", address_space=600 * 2**20),
        # Weights that leave float32's range: NaN while it is warmed up.
        Candidate("tf32", "off", words=("--learning-rate", "1e30", "--clip-norm", "0")),
    ]
    return measure("classification", words, candidates, 3, 2, 200, True, ceiling_seconds=0.2)


def test_a_good_combination_is_measured(outcomes):
    good = outcomes[0]
    assert good.status == "ok", good
    assert len(good.samples_per_second) == 2 and good.median > 0
    assert good.peak_bytes > 100 * 2**20 and good.loss is not None
    assert good.shapes == [[8, good.shapes[0][1]]]


def test_memory_that_runs_out_and_numbers_that_overflow_are_results(outcomes):
    assert outcomes[1].status == "out of memory", outcomes[1]
    assert outcomes[2].status == "not finite", outcomes[2]


def test_a_bad_combination_is_never_picked(outcomes):
    assert table.fastest(outcomes) is outcomes[0]
    assert table.fastest(outcomes[1:]) is None
    text = table.render(outcomes)
    assert "out of memory" in text and "not finite" in text


def test_operations_are_those_of_the_formula(outcomes):
    good = outcomes[0]
    rows, length, hidden = 8, good.shapes[0][1], 64
    weights = 4 * hidden**2 + 2 * hidden * 4 * hidden
    pairs = 2 * length * hidden
    head = 3 * hidden
    forward = 2 * rows * (length * (weights + pairs) + head)
    # 60 samples in 8 batches of 8 rows; the backward pass costs twice the forward one.
    assert good.flops_per_sample == pytest.approx(3 * forward * 8 / 60, rel=0.02)
    assert good.ceiling > 1e8 and 0 < good.utilisation < 1


def test_a_record_is_written_read_and_compared(outcomes, tmp_path):
    import dataclasses

    record = {
        "recipe": "classification", "command": "x", "date": "2026-11-21", "revision": "abc",
        "seed": 1, "config": {}, "load_average": ["1", "1", "1"],
        "machine": {"device": "CPU", "cores": 2, "memory_gib": 24.0, "driver": "", "container": "",
                    "tensorflow": "2", "fork": False, "bert4keras": "0", "python": "3",
                    "absent": {"lite": "NVIDIA's"}},
        "outcomes": [dataclasses.asdict(o) for o in outcomes],
    }  # fmt: skip
    text = bench.markdown(record)
    assert "out of memory" in text and "not there: lite" in text and "GFLOP a sample" in text
    bench.chart(record, tmp_path / "a.svg")
    bench.chart(record, tmp_path / "b.svg")
    assert "<svg" in (tmp_path / "a.svg").read_text()
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    (tmp_path / "a.json").write_text(json.dumps(record))
    old, new = (bench.read(tmp_path / "a.json") for _ in range(2))
    new["outcomes"][0].samples_per_second = [10 * r for r in outcomes[0].samples_per_second]
    new["machine"] = {**new["machine"], "driver": "525"}
    compared = bench.compare(old, new)
    assert "10.00x" in compared and "faster" in compared and "driver:  / 525" in compared
    assert "within the spread" in bench.compare(old, old)


def test_what_is_no_record_is_refused(tmp_path):
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(AmpXlaError, match="is not a record"):
        bench.read(tmp_path / "x.json")


def test_a_spent_budget_leaves_rows_that_say_so():
    found = measure("classification", TINY, [Candidate("fp32", "off")], 1, 1, 60, True, budget=1e-3)
    assert found[0].status == "not measured" and table.fastest(found) is None


def test_words_after_two_dashes_are_the_recipes():
    words = ["--recipe", "a", "--", "--layers", "2"]
    assert split_words(words) == (["--recipe", "a"], ["--layers", "2"])
    assert read_recipe("classification", ["--layers", "2"]).encoder.layers == 2
    with pytest.raises(AmpXlaError, match="--precision"):
        read_recipe("classification", ["--precision", "amp"])
    with pytest.raises(AmpXlaError, match=r"recipes/nothing\.py"):
        read_recipe("nothing", [])
    # Their precision is a policy's: each combination would start only to say that it cannot.
    for recipe in ("keras_classification", "jax_classification"):
        with pytest.raises(AmpXlaError, match=f"{recipe} has neither \\(its precision is --policy"):
            read_recipe(recipe, [])
        with pytest.raises(AmpXlaError, match="what the graph rewrite does in recipes that have"):
            open_recipe(recipe, [])


def test_memory_is_not_measured_of_packed_rows():
    with pytest.raises(AmpXlaError, match="leave --packed out"):
        tune.main(["--largest-batch", "--", "--packed"])
    with pytest.raises(AmpXlaError, match="leave --packed out"):
        bench.main(["--memory", "fp32", "--", "--packed"])


def test_the_largest_batch_is_searched_for_with_and_without_recompute(capsys, monkeypatch):
    def search(measure, rows, length, limit):
        again = "--recompute" in measure.words
        model = MemoryModel(0.0, 1.0, 0.0)
        return Largest(800 if again else 200, length, 1e9, 10**9, model)

    monkeypatch.setattr(memory, "largest_batch", search)
    best = Outcome("fp32", "off", shapes=[[8, 24]])
    tune.largest(tune.Config(), TINY, best, 1.0)
    out = capsys.readouterr().out
    assert "largest batch in 1.0 GiB: 200x24" in out
    assert "largest batch with --recompute in 1.0 GiB: 800x24" in out
    tune.largest(tune.Config(), (*TINY, "--recompute"), best, 1.0)
    assert capsys.readouterr().out.count("x24") == 1


@pytest.mark.long
def test_the_largest_batch_is_found_and_run(capsys, monkeypatch):
    # glibc keeps what 1.15 frees in pieces too small to use again: the peak of one and the same
    # step varies by a tenth. Given back at once, what is in memory is what TensorFlow asked for.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(2**18))
    best = Outcome("fp32", "off", shapes=[[256, 24]])
    tune.largest(tune.Config(timeout=200), TINY, best, 1.0)
    out = capsys.readouterr().out
    rows, predicted, seen = re.search(
        r"largest batch in 1\.0 GiB: (\d+)x24; predicted peak (\d+) MiB, seen (\d+) MiB", out
    ).groups()
    assert int(rows) > 800 and int(predicted) <= 1024
    assert 900 < int(seen) <= 1024
    assert int(seen) == pytest.approx(int(predicted), rel=0.1)


@pytest.mark.slow
@pytest.mark.once
def test_a_batch_that_does_not_fit_is_told_from_one_that_cannot_be_measured():
    said = []
    with pytest.raises(DoesNotFit):
        Peak("classification", TINY, "fp32", address_space=3 * 2**30, say=said.append)(20000, 24)
    assert said[0].startswith("memory probe 20000x24: out of memory")
    with pytest.raises(AmpXlaError, match="8x24 could not be measured: .*give both"):
        Peak("classification", [*TINY, "--train", "none.tsv"], "fp32")(8, 24)


def test_a_few_batches_go_from_the_shortest_to_the_longest():
    sizes = [5, 100, 50, 1, 75, 25, 90, 10]
    assert [sizes[i] for i in evenly(sizes, 4)] == [5, 25, 75, 100]
    assert sorted(evenly(sizes, 8)) == list(range(8))
    assert evenly([7], 3) == [0, 0, 0]


def test_names_read_like_the_ladder():
    assert Outcome("amp", "off").name == "amp" and Outcome("amp", "lite").name == "amp + xla lite"
