"""Planted copies are left out, the first of each stays, whoever does which part of the work."""

from __future__ import annotations

import gzip
import json
import random

import pytest

from amp_xla.data.pretraining import prepare
from amp_xla.data.pretraining.duplicates import copies
from amp_xla.data.pretraining.units import Reading, files_of, texts_of, units
from amp_xla.errors import DataError


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Three files of 3 MB: 20,000 texts in all, every fourth a copy of one before it."""
    folder = tmp_path_factory.mktemp("planted")
    rng = random.Random(1)
    texts, originals = [], []
    for i in range(20000):
        if i % 4 == 3:
            words = rng.choice(originals).split(" ")
            texts.append(("  " if i % 8 == 3 else " ").join(words))
        else:
            originals.append(f"text {i} " + " ".join(rng.choice("abcdefgh") * 3 for _ in range(30)))
            texts.append(originals[-1])
    a, b = texts[:7000], texts[7000:14000]
    (folder / "a.txt").write_text("\n".join(a) + "\n")
    with gzip.open(str(folder / "b.txt.gz"), "wt") as file:
        file.write("\n".join(b) + "\n")
    rows = (json.dumps({"text": text}) for text in texts[14000:])
    (folder / "c.jsonl").write_text("\n".join(rows) + "\n")
    return folder, originals


def test_the_first_of_each_text_stays(planted):
    folder, originals = planted
    reading = Reading()
    files = files_of(str(folder))
    found, total = copies(units(files, reading), reading, prepare._Here(), 3)
    assert total == 20000 and sum(map(len, found.values())) == 5000
    kept = []
    for unit in units(files, reading):
        left_out = set(found[unit.name].tolist())
        texts, _ = texts_of(unit, reading)
        kept += [text for number, text in enumerate(texts) if number not in left_out]
    assert len(found) > 3 and kept == originals


def prepared(folder, out, **settings):
    config = prepare.Config(corpus=str(folder), out=str(out), vocab_size=128, length=32, **settings)
    return prepare.prepare(config, show=False)


def test_shards_on_two_machines_leave_out_what_one_does(planted, tmp_path):
    folder, originals = planted
    one = prepared(folder, tmp_path / "one", dedup="exact", workers=2)
    assert sum(one.counts[name]["documents"] for name in ("train", "heldout")) == len(originals)
    prepared(folder, tmp_path / "two", dedup="exact", workers=1, vocab_only=True)
    for shard in ("1/2", "0/2"):
        last = prepared(folder, tmp_path / "two", dedup="exact", workers=1, shard=shard)
    assert last is not None
    names = sorted(path.name for path in (tmp_path / "one").glob("*.tfrecord"))
    assert names == sorted(path.name for path in (tmp_path / "two").glob("*.tfrecord")) != []
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    with pytest.raises(DataError, match="dedup"):  # the same folder, copies and all
        prepared(folder, tmp_path / "one", workers=1)
