"""Tables spread over ranks equal the whole table: SparseOperationKit's unit tests.

One process, and two ranks over Gloo; in graphs on TensorFlow 1.15, in tf.function on 2.x.
"""

import json

import numpy as np
import pytest

import amp_xla.sok as sok
from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.errors import AmpXlaError
from amp_xla.sok import ranks, saver
from amp_xla.sok.table import Rows
from tests.support.horovod import on_two_ranks
from tests.support.running import run_python

FIGURES = ["two_tables", "dense_odd_mixed"]
WORKER = "tests.support.sok_worker"
pytestmark = pytest.mark.timeout(1500)


def results(folder, count, *cases):
    return {
        case: [json.loads((folder / f"{case}-{count}-{r}.json").read_text()) for r in range(count)]
        for case in cases
    }


def check_figures(found, plain):
    """Compare losses and rows with those of plain tables; ranks have equal copies of the rest."""
    for case in set(FIGURES) & set(found):
        (whole,), close = plain[f"plain_{case}"], 1e-3 if "mixed" in case else 1e-5
        for rank, result in enumerate(found[case]):
            for step, expected in zip(result["steps"], whole["steps"]):
                assert step["loss"] == pytest.approx(expected["loss"], rel=close), case
            for rows, table in zip(result["tables"], whole["tables"]):
                np.testing.assert_allclose(rows, table[rank :: len(found[case])], atol=1e-3)
        kernels = [[step["kernel"] for step in result["steps"]] for result in found[case]]
        assert all(kernel == kernels[0] for kernel in kernels), case


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="module")
def alone(folder):
    cases = [*(f"plain_{case}" for case in FIGURES), "two_tables", "saved"]
    run_python("-m", WORKER, str(folder), *cases)
    return results(folder, 1, *cases)


@pytest.fixture(scope="module")
def two(folder):
    cases = [*FIGURES, "nan", "saved", "tutorial"]
    on_two_ranks(WORKER, folder, *cases)
    return results(folder, 2, *cases)


def test_alone_it_is_an_embedding(alone):
    check_figures(alone, alone)


@pytest.mark.horovod
@pytest.mark.slow
def test_two_ranks_hold_what_one_process_would(alone, two):
    check_figures(two, alone)


@pytest.mark.horovod
@pytest.mark.slow
def test_a_nan_on_one_rank_is_a_skipped_step_on_both(two):
    ranks = [result["steps"] for result in two["nan"]]
    for steps in ranks:
        # A step reports the scale before or after its decision, the same in all steps.
        assert sorted({step["scale"] for step in steps}, reverse=True) == [2.0**15, 2.0**14]
        assert steps[4]["kernel"] == steps[3]["kernel"] != steps[2]["kernel"]
        assert np.isfinite([step["kernel"] for step in steps]).all()
    assert [s["kernel"] for s in ranks[0]] == [s["kernel"] for s in ranks[1]]


@pytest.mark.horovod
@pytest.mark.slow
def test_shards_are_read_on_another_number_of_ranks(alone, two, folder):
    whole = np.arange(303, dtype=np.float32).reshape(101, 3)
    for found in (alone["saved"], two["saved"]):
        for rank, rows in enumerate(found):
            assert np.array_equal(np.array(rows), whole[rank :: len(found)])
    again = saver.read_rows(folder / "saved-2", "kept", "kept", Rows(101, 3, "kept"))
    assert np.array_equal(again, whole)


@pytest.mark.horovod
@pytest.mark.slow
def test_the_tutorial_learns_on_two_ranks(two):
    """Its label is the parity of one id, which a table can only learn by heart."""
    losses = two["tutorial"][0]
    assert len(losses) == 100 and losses[0] == pytest.approx(0.693, abs=0.01)
    assert losses[-1] < 0.66


def test_what_is_not_allowed_is_named(cleared):
    shared = tf.get_variable("shared", [2, 2], use_resource=True)
    layer = sok.All2AllDenseEmbedding(0, 2, 3, 2, vocabulary_size=7, name="range")
    table, ids = layer.embedding_variable, tf.constant([[[1, 2], [3, 9], [0, 1]]])
    lazy, rows = sok.optimizers.LazyAdam(amsgrad=True), tf.IndexedSlices([[1.0, 1.0]], [0], [2, 2])
    for refused, words in (
        (lambda: backend.session().run(layer(ids)), "range: slot.*1.*has id.*9.*allowed: 0 to 6"),
        (lambda: sok.DistributedEmbedding("max", 1, 1, 1), "combiner is 'max'; allowed: sum, mean"),
        (lambda: sok.OptimizerScope([shared]).__enter__(), "shared.* is not a table"),
        (lambda: lazy.apply_gradients([(rows, shared)]), "has no amsgrad; allowed: amsgrad=False"),
        (
            lambda: Rows(7, 2, "t").taken(np.ones((6, 2))),
            r"\(6, 2\) do not fit a table of \[7, 2\]",
        ),
    ):
        with pytest.raises((AmpXlaError, tf.errors.InvalidArgumentError), match=words):
            refused()
    assert sok.split_embedding_variable_from_others([shared, table]) == ([table], [shared])


def test_lazy_adam_leaves_rows_outside_the_batch_alone(cleared):
    after = []
    for kind in (sok.optimizers.Adam, sok.optimizers.LazyAdam):
        table = tf.get_variable(kind.__name__, initializer=tf.ones([3, 2]), use_resource=True)
        rows = tf.placeholder(tf.int32, [None])
        gradient = tf.ones([tf.shape(rows)[0], 2]) * tf.cast(rows + 1, tf.float32)[:, None]
        update = kind(0.1).apply_gradients([(tf.IndexedSlices(gradient, rows, [3, 2]), table)])
        session = backend.session()
        session.run(tf.global_variables_initializer())
        for batch in ([0, 1], [0], [0, 0]):
            session.run(update, {rows: batch})
        after.append(session.run(table))
    adam, lazy = after
    np.testing.assert_allclose(adam[0], lazy[0], rtol=1e-6)  # in every batch
    assert (adam[1] < lazy[1]).all() and np.allclose(lazy[1], 0.9, atol=1e-6)
    assert (lazy[2] == 1).all() and (adam[2] == 1).all()


def test_files_of_another_table_are_refused(tmp_path):
    saver.write_rows(tmp_path, "t", {"t": np.zeros((5, 3), np.float32)})
    with pytest.raises(AmpXlaError, match=r"needs float32 \[5, 2\]"):
        saver.read_rows(tmp_path, "t", "t", Rows(5, 2, "t"))
    (tmp_path / "t-0-of-1.safetensors").rename(tmp_path / "t-0-of-2.safetensors")
    with pytest.raises(AmpXlaError, match="has no t-1-of-2.safetensors"):
        saver.read_rows(tmp_path, "t", "t", Rows(5, 3, "t"))


def test_files_are_replaced_when_the_last_rank_has_written(tmp_path, monkeypatch):
    def written(rank, size):
        monkeypatch.setattr(ranks, "place", lambda: (rank, size))
        saver.write_rows(tmp_path, "t", {"t": np.float32([[size]] * len(range(rank, 9, size)))})
        monkeypatch.setattr(ranks, "place", lambda: (0, 1))
        return set(saver.read_rows(tmp_path, "t", "t", Rows(9, 1, "t")).ravel())

    found = [written(rank, size) for size in (1, 3, 2) for rank in reversed(range(size))]
    assert found == [{1}, {1}, {1}, {3}, {3}, {2}]  # so a kill between loses nothing
    assert len(list(tmp_path.iterdir())) == 2
