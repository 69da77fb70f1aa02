"""Samples with slots: lines of Criteo's format, blocks, hashes, what is refused."""

import os

import numpy as np
import pytest

from amp_xla.errors import DataError
from amp_xla.report.scores import auc
from amp_xla.tasks.recommendation.data import Columns, Lines, SlotBatches, SlotFiles, parse_line

pytestmark = pytest.mark.once

DRAW = np.random.RandomState(3)
CRITEO_NUMBERS = 13
_WRONG = ("x", "nan", "inf")


def criteo(lines):
    found = []
    for _ in range(lines):
        numbers = [str(n) if n else "" for n in DRAW.randint(-2, 50, CRITEO_NUMBERS)]
        slots = [f"{v:08x}" if v % 7 else "" for v in DRAW.randint(0, 2**31, 26)]
        found.append("\t".join([str(DRAW.randint(2)), *numbers, *slots]))
    return found


@pytest.fixture
def lines_in(file):
    return lambda lines, name="day.tsv": file(name, "".join(f"{line}\n" for line in lines))


def ids_of(batches, epoch, start=0):
    return [batch["sample_ids"].tolist() for batch in batches.epoch(epoch, start)]


def test_each_sample_occurs_once_per_epoch_and_epochs_differ(lines_in):
    lines = Lines(lines_in(criteo(1003)), CRITEO_NUMBERS, 256)  # four blocks
    batches = SlotBatches(lines, 32, 1000, seed=5)
    assert len(lines) == 1003 and lines.columns == (13, 26)
    first, second = ids_of(batches, 0), ids_of(batches, 1)
    for order in (first, second):
        flat = [i for batch in order for i in batch if i >= 0]
        assert sorted(flat) == list(range(1003))
    assert first != second and len(first) == batches.steps_per_epoch() == 32
    for start in (0, 7, 8, 31, 32):
        assert ids_of(batches, 0, start) == first[start:]
    assert ids_of(SlotBatches(lines, 32, 1000, seed=5), 1) == second


def test_a_value_has_the_same_row_also_in_gzipped_files_and_pipes(lines_in):
    text = criteo(40)
    plain, packed = Lines(lines_in(text), 13, 64), Lines(lines_in(text, "d.gz"), 13, 64)
    end, begin = os.pipe()
    os.write(begin, np.fromfile(packed.path, np.uint8).tobytes())
    os.close(begin)
    each = plain, packed, Lines(f"/dev/fd/{end}", 13, 64)
    os.close(end)
    assert len({x.fingerprint() for x in each}) == len({x.sample() for x in each}) == 1
    one, *others = (next(SlotBatches(x, 40, 10**6, shuffle=False).epoch(0)) for x in each)
    np.testing.assert_array_equal([other["ids"] for other in others], [one["ids"]] * 2)
    fields = text[0].split("\t")
    assert one["numbers"][0, 3] == np.float32(np.log1p(max(float(fields[4] or 0), 0)))
    assert (one["ids"][0, :, 0] == -1).tolist() == [not field for field in fields[14:]]
    assert one["ids"].max() < 10**6 and len(np.unique(one["ids"])) > 800
    # A value is one row in one slot and another in the next.
    same = Lines(lines_in(["1\tabc\tabc"], "s.tsv"), 0, 8)
    ids = next(SlotBatches(same, 1, 10**6).epoch(0))["ids"].reshape(-1)
    assert ids.tolist() == [ids[0], ids[1]] and ids[0] != ids[1]
    lines = (f"1\t{values}".encode() for values in ("a b", "a  b", " a b  c"))
    assert len({str(parse_line(line, Columns(0, 1), 2)) for line in lines}) == 1


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "has no lines"),
        (["1\t2\ta", "1\t2"], "line 2: 1 columns after the label; required: 2"),
        (["1\t2\ta", "yes\t2\ta"], "line 2: the label is 'yes'; allowed: 0 or 1"),
        (
            ["1\t2"],
            "1 columns .* --numbers 1 leaves none of them for slots; allowed: --numbers up to 0",
        ),
        (["1\t2\ta\r0\t3\tb\r"], r"day\.tsv: only carriage returns end its lines"),
        *((["1\t2\ta", f"0\t{n}\tb"], rf"day\.tsv, line 2: '{n}' is not a finite") for n in _WRONG),
    ],
)
def test_wrong_lines_are_refused(lines_in, lines, message):
    with pytest.raises(DataError, match=message):
        Lines(lines_in(lines), 1, 8)
    with pytest.raises(DataError, match="--numbers 1: without --train, only 0 is allowed"):
        SlotFiles(numbers=1).read(8)


def test_auc_is_the_share_of_pairs_in_order():
    labels = DRAW.rand(200) > 0.6
    scores = DRAW.randint(0, 30, 200) / 7.0  # with ties
    above = scores[labels][:, None] - scores[~labels][None, :]
    assert auc(labels, scores) == pytest.approx(((above > 0) + 0.5 * (above == 0)).mean())
    assert auc(np.ones(3, bool), np.arange(3.0)) == 0.5
