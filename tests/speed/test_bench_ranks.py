"""``make bench-ranks``: the paper's arithmetic, which rows it misses, a small measured run."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import bench_ranks
from tests.horovod import need_horovod
from tests.running import run_python

SMALL = "--layers 1 --hidden 64 --max-length 16 --vocab-size 100 --shapes 1 --train-fraction 1"


def test_a_step_on_paper_is_one_gpus_and_the_ring():
    """By hand: 334 million gradients of 4 bytes, 7 / 4 of them through 150 GB/s."""
    assert bench_ranks.ring("V100 32GB", 8) == pytest.approx(15.6, abs=0.1)
    assert bench_ranks.ring("V100 32GB", 8, 2) == pytest.approx(7.8, abs=0.1)
    assert bench_ranks.ring("V100 32GB", 64) == pytest.approx(52.6, abs=0.3)
    alone = bench_ranks.Row("squad", "V100 32GB", 1, 384, 10, 1, "fp32", 10.0)
    found = bench_ranks.predicted(alone, 8, 1, 2.0)
    assert found == pytest.approx(80 / (1 + 2 * 0.0156), rel=1e-3)


def test_the_published_rows_that_are_missed_are_known(capsys):
    assert bench_ranks.paper() == 0
    out = capsys.readouterr().out
    missed = [" ".join(line.split()[:8]) for line in out.splitlines() if "MISSED" in line]
    assert missed == [
        "pretrain 128 V100 16GB amp 16 x 4",
        "pretrain 512 V100 16GB amp 4 x 8",
        "squad 384 V100 32GB amp 24 x 8",
    ]
    assert "rows of several machines: 12 of 12 within 15%" in out


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.once
@pytest.mark.horovod
@pytest.mark.timeout(1500)  # the first on a machine builds Horovod
def test_two_ranks_are_measured(tmp_path: Path):
    need_horovod()
    for name, count in (("train.tsv", 256), ("dev.tsv", 16)):
        rows = [
            f"{'rain wind' if i % 3 else 'soup salt'} w{i % 7}\t{i % 3 > 0}" for i in range(count)
        ]
        (tmp_path / name).write_text("\n".join(rows) + "\n")
    data = ["--train", str(tmp_path / "train.tsv"), "--dev", str(tmp_path / "dev.tsv")]
    words = ["--rounds", "1", "--batch-size", "8", "--", *SMALL.split(), *data]
    done = run_python("-m", "scripts.bench_ranks", *words)
    assert done.code == 0, done.err
    for says in ("2 ranks, --reduce fp16", "2 ranks - 2 processes", "--reduce none: "):
        assert says in done.out
