"""Planted copies are left out, and the first of each stays; so are texts of other lengths."""

from __future__ import annotations

import random

import numpy as np
import pytest

from amp_xla.errors import DataError
from amp_xla.tasks.pretraining.data import prepare
from amp_xla.tasks.pretraining.data.pool import Pool
from amp_xla.tasks.pretraining.data.units import Reading, files_of, texts_of, units


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Two files with 2,000 texts in all; each fourth is a copy of an earlier one."""
    folder = tmp_path_factory.mktemp("planted")
    rng = random.Random(1)
    texts, originals = [], []
    for i in range(2000):
        if i % 4 == 3:
            words = rng.choice(originals).split(" ")
            texts.append(("  " if i % 8 == 3 else " ").join(words))
        else:
            originals.append(f"text {i} " + " ".join(rng.choice("abcdefgh") * 3 for _ in range(30)))
            texts.append(originals[-1])
    for name, part in (("a", texts[:700]), ("b", texts[700:])):
        (folder / f"{name}.txt").write_text("\n".join(part) + "\n")
    return folder, originals


def left_out(folder):
    """Numbers of the copies in the whole corpus, and all texts."""
    corpus, reading = list(units(files_of(str(folder)), Reading())), Reading()
    texts = [texts_of(unit, reading)[0] for unit in corpus]
    numbers, total = prepare.copies_in(corpus, reading, Pool(1))
    assert total == sum(map(len, texts)) and list(numbers) == [unit.name for unit in corpus]
    begins = np.cumsum([0, *map(len, texts)])
    found = np.concatenate([begin + some for begin, some in zip(begins, numbers.values())])
    return found.tolist(), [text for part in texts for text in part]


def prepared(folder, out, **settings):
    settings = {"vocab_size": 128, "length": 32, **settings}
    return prepare.prepare(prepare.Config(corpus=str(folder), out=str(out), **settings))


@pytest.mark.once
def test_shards_on_two_machines_leave_out_what_one_does(planted, tmp_path):
    folder, originals = planted
    one = prepared(folder, tmp_path / "one", dedup="exact", workers=2)
    assert sum(one.total("documents", name) for name in ("train", "heldout")) == len(originals)
    for shard in ("1/2", "0/2"):
        last = prepared(folder, tmp_path / "two", dedup="exact", workers=1, shard=shard)
    assert last is not None
    one_files, two_files = (
        {path.name: path.read_bytes() for path in (tmp_path / name).glob("[a-z]*.npy")}
        for name in ("one", "two")
    )
    assert one_files == two_files != {}
    with pytest.raises(DataError, match="dedup"):
        prepared(folder, tmp_path / "one", workers=1)


@pytest.mark.once
def test_copies_of_chinese_and_of_short_texts(tmp_path):
    line = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕调阳"
    texts = [line, "好", "ab", "a  b", "", "a b ", "Ab", line, line[::-1]]
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    numbers, documents = left_out(tmp_path)
    assert len(documents) == 8 and numbers == [4, 6]  # the empty line is no document


@pytest.mark.once
def test_texts_of_other_lengths_are_left_out_and_counted(tmp_path):
    (tmp_path / "some.txt").write_text("quick brown\n的\nfoxes jump over it\nab\n", "utf-8")
    options = dict(vocab_size=256, heldout=0.0, workers=1, shortest=10)
    found = prepared(tmp_path / "some.txt", tmp_path / "out", **options)
    assert found.total("documents", "train") == 2 and found.total("other_lengths") == 2
    assert "2 documents of other lengths left out" in found.describe()
    assert "的" not in found.tokenizer().tokens  # the vocabulary is learnt from what stays
    with pytest.raises(DataError, match="is empty: no text of the given lengths"):
        prepared(tmp_path / "some.txt", tmp_path / "none", **{**options, "shortest": 100})
