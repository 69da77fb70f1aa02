"""Planted copies are left out, the first of each stays, whoever does which part of the work."""

from __future__ import annotations

import gzip
import json
import random

import numpy as np
import pytest

from amp_xla.data.pretraining import prepare
from amp_xla.data.pretraining.duplicates import copies, firsts
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


def near_copies(folder):
    """Their numbers in the whole corpus, and how many documents that has."""
    files, reading = files_of(str(folder)), Reading()
    found, total = copies(units(files, reading), reading, prepare._Here(), 3, near=True)
    begins = np.cumsum([0, *(len(texts_of(unit, reading)[0]) for unit in units(files, reading))])
    return np.concatenate([begin + some for begin, some in zip(begins, found.values())]), total


def test_near_copies_are_found_and_no_others(tmp_path):
    """800 texts of 200 words; 200 more with 2 words changed, 200 that share half, each of one."""
    rng = random.Random(3)
    vocabulary = [f"word{i}" for i in range(5000)]
    originals = [[rng.choice(vocabulary) for _ in range(200)] for _ in range(800)]
    near = [list(text) for text in originals[:200]]
    for text in near:
        for place in rng.sample(range(200), 2):
            text[place] = "another"
    half = [text[:100] + rng.sample(vocabulary, 100) for text in originals[200:400]]
    punctuated = "; ".join(originals[0]).upper()
    texts = [*map(" ".join, originals), *map(" ".join, near), *map(" ".join, half), punctuated]
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\n")
    left_out, total = near_copies(tmp_path)
    assert total == len(texts) == 1201
    assert left_out.min() >= 800 and 1200 in left_out
    # 2 of 200 words are 10 of 196 runs, on both sides: 0.9 of all runs are shared.
    assert 198 <= ((left_out >= 800) & (left_out < 1000)).sum() <= 200
    # A third of all runs: 14 * (1/3)^8, 0.2% of them.
    assert ((left_out >= 1000) & (left_out < 1200)).sum() <= 3


def test_near_copies_of_chinese_and_of_short_texts(tmp_path):
    sign = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕调阳"
    texts = [sign * 2, "好", "ab", "Ab!", "", "ab c", sign * 2 + "了", sign[::-1] * 2]
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    left_out, total = near_copies(tmp_path)
    assert total == 7 and left_out.tolist() == [3, 5]  # the empty line is no document


def test_like_what_is_like_it():
    """0-2 by the first key, 2-3 by the second, 3-1 by the first again; 4 is alone."""
    keys = np.array([[1, 10], [2, 11], [1, 12], [2, 12], [3, 13]], np.uint64)
    assert firsts(keys).tolist() == [0, 0, 0, 0, 4]
    assert firsts(keys[:0]).tolist() == []
