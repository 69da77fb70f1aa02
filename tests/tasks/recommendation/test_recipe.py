"""A job with a table over ranks: equal on any number of ranks; kill, resume, prediction, export."""

import shutil

import numpy as np
import psutil
import pytest
import safetensors.numpy

from amp_xla.tasks.recommendation.data import Columns, batch_of, parse_line, two_packages
from amp_xla.training import checkpoint
from tests.integration.test_ranks import Place, alike, disturbed
from tests.support.commands import PREDICT, served
from tests.support.horovod import need_horovod

RECIPE = "recommendation"
FLAGS = "--log-every 1 --precision fp32 --epochs 2 --batch-size 192 --checkpoint-every 30".split()
pytestmark = [pytest.mark.horovod, pytest.mark.slow, pytest.mark.timeout(1500)]


class Job(Place):
    def train_on(self, ranks, name, *flags):
        return self.train(ranks, name, *FLAGS, *flags, recipe=RECIPE)

    def values(self, name):
        return self.losses(name, RECIPE)

    def newest(self, name):
        return checkpoint.steps(self.run(name, RECIPE) / "checkpoints")[-1]

    def table(self, name, part="table"):
        """Return the whole table or optimizer slot, from the shards of all ranks."""
        paths = sorted(self.newest(name).glob("rows-*-of-*.safetensors"))
        shards = [safetensors.numpy.load_file(str(path))[part] for path in paths]
        whole = np.empty((sum(map(len, shards)), shards[0].shape[1]), np.float32)
        for number, shard in enumerate(shards):
            whole[number :: len(shards)] = shard
        return whole

    def same(self, one, other):
        alike(self.values(one), self.values(other), 2e-5)
        losses = [[x.get("loss", 0) for x in self.values(name)] for name in (one, other)]
        np.testing.assert_allclose(*losses, rtol=0, atol=1e-6)
        assert len(losses[0]) > 90
        for part in ("table", "table.m", "table.v"):
            found, wanted = self.table(other, part), self.table(one, part)
            assert np.linalg.norm(found - wanted) <= 1e-4 * np.linalg.norm(wanted), part


@pytest.fixture(scope="module")
def job(server, tmp_path_factory):
    need_horovod()
    here = Job(server, tmp_path_factory.mktemp("recommendation"))
    here.train_on(0, "one")
    return here


@pytest.fixture(scope="module")
def two(job):
    """Return the output of the run ``two`` on two ranks."""
    return job.train_on(2, "two")


@pytest.mark.once
def test_two_ranks_learn_what_one_does_and_each_has_half_the_table(job, two):
    assert "10 MB per rank with Adam's moments" in two
    job.same("one", "two")
    best = max(x.get("dev_auc", 0) for x in job.values("one"))
    assert best > 0.98
    shards = sorted(p.name for p in job.newest("two").glob("rows-*"))
    assert shards == ["rows-0-of-2.safetensors", "rows-1-of-2.safetensors"]


@pytest.mark.once
def test_it_answers_and_is_exported_whole(job, two, tmp_path):
    """One process reads the shards of two ranks; the SavedModel gives predict's probabilities."""
    command = job.command
    run = ["--run", str(job.run("two", RECIPE))]
    lines = two_packages()[1].decode().splitlines()[:40]
    (job.folder / "lines.tsv").write_text("".join(f"\t{x[2:]}\n" for x in lines))  # no labels
    said = command(PREDICT, *run, "--file", "lines.tsv").out
    answers = [row.split("\t")[:2] for row in said.splitlines() if row[:2] in ("0\t", "1\t")]
    assert len(answers) == 40
    (job.folder / "wrong.tsv").write_text(f"\t{lines[0][2:]}\n\n\tone column\n")
    said = command(PREDICT, *run, "--file", "wrong.tsv").error
    assert "error: wrong.tsv, line 3: 1 columns after the label; required: 2" in said
    assert sum(answer == line[0] for (answer, _), line in zip(answers, lines)) >= 37
    exported = command("amp_xla.commands.export", *run, "--to", tmp_path / "it")
    assert exported.code == 0 and "written: " in exported.out + exported.err, exported.err
    parsed = [parse_line(line.encode(), Columns(0, 2), 64) for line in lines]
    made = batch_of(parsed, Columns(0, 2), 100_000, 64, np.arange(40), 40)
    chances = served(tmp_path / "it", made)["probability"]
    for (answer, probability), chance in zip(answers, chances):
        assert float(probability) == pytest.approx(
            chance if answer == "1" else 1 - chance, abs=1e-4
        )


@pytest.mark.long
def test_a_killed_rank_stops_all_and_other_numbers_of_ranks_go_on(job, two):
    process = job.start(2, "killed", *FLAGS, recipe=RECIPE)
    done = disturbed(process, job.run("killed", RECIPE), 50, psutil.Process.kill, 1)
    assert done.code == 137, done.out
    assert done.out.count("error: ") == 1 and "rank 1" in done.out, done.out
    assert not checkpoint.problems(job.newest("killed"))
    shutil.copytree(str(job.run("killed", RECIPE)), str(job.run("as-two", RECIPE)), symlinks=True)
    job.train_on(0, "killed", "--resume")
    job.same("one", "killed")
    job.train_on(2, "as-two", "--resume")
    assert job.values("as-two") == job.values("two")
    assert (job.table("as-two") == job.table("two")).all()
    assert not list((job.run("as-two", RECIPE) / "checkpoints").glob(".tmp-*"))


@pytest.mark.long
def test_a_rank_that_cannot_write_its_rows_ends_all_with_one_word(job, tmp_path):
    """The second rank cannot write a file of its rows, as on a full disk."""

    def fill(rank):
        rank.rlimit(psutil.RLIMIT_FSIZE, (1 << 20, 1 << 20))  # no file larger than 1 MiB

    process = job.start(2, "full", *FLAGS, "--rows", "3000000", recipe=RECIPE)
    done = disturbed(process, job.run("full", RECIPE), 1, fill, 1)
    assert done.code != 0, done.out
    assert "cannot write the tables of a checkpoint: rank 1" in done.out, done.out
    assert not list((job.run("full", RECIPE) / "checkpoints").glob("step-*"))
