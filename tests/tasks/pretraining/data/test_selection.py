"""Planted copies are left out, and the first of each stays; so are documents in other languages."""

from __future__ import annotations

import random

import numpy as np
import pytest

from amp_xla.errors import DataError
from amp_xla.tasks.pretraining.data import prepare
from amp_xla.tasks.pretraining.data.pool import Pool
from amp_xla.tasks.pretraining.data.selection import copies
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


def left_out(folder, near=False):
    """Numbers of the copies in the whole corpus, and all texts."""
    corpus, reading = list(units(files_of(str(folder)), Reading())), Reading()
    texts = [texts_of(unit, reading)[0] for unit in corpus]
    numbers, total = copies(corpus, reading, Pool(1), near)
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
    numbers = np.array(left_out(tmp_path, near=True)[0])
    assert numbers.min() >= 800 and 1200 in numbers
    # 2 of 200 words are 10 of 196 runs, on both sides: 0.9 of all runs are shared.
    assert 198 <= ((numbers >= 800) & (numbers < 1000)).sum() <= 200
    # A third of all runs: 14 * (1/3)^8, 0.2% of them.
    assert ((numbers >= 1000) & (numbers < 1200)).sum() <= 3


@pytest.mark.once
def test_near_copies_of_chinese_and_of_short_texts(tmp_path):
    line = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕调阳"
    texts = [line * 2, "好", "ab", "Ab!", "", "ab c", line * 2 + "了", line[::-1] * 2]
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    numbers, documents = left_out(tmp_path, near=True)
    assert len(documents) == 7 and numbers == [3, 5]  # the empty line is no document


TEXTS = [
    "The quick brown fox jumps over the lazy dog while seventeen cats are watching it.",
    "Returns a copy of the array, with its elements sorted along the given axis.",
    "Der schnelle braune Fuchs springt über den faulen Hund, und alle sehen ihm zu.",
    "Le vif renard brun saute par-dessus le chien paresseux, et tout le monde le regarde.",
    "这家酒店的服务很好，房间也很干净，下次还会再来。",
]


@pytest.mark.once
def test_others_are_left_out_and_counted(tmp_path):
    pytest.importorskip("py3langid", reason="telling languages apart is an extra")
    path = tmp_path / "some.txt"
    path.write_text("\n".join(TEXTS) + "\nab\n", "utf-8")

    def leaving_out(out, language):
        options = dict(vocab_size=256, heldout=0.0, workers=1, shortest=10)
        return prepared(path, tmp_path / out, language=language, **options)

    found = leaving_out("out", "en, de")
    assert found.total("documents", "train") == 3
    assert found.total("other_languages") == 2 and found.total("other_lengths") == 1
    assert "2 documents in other languages left out" in found.describe()
    # The vocabulary is learnt from what stays.
    assert "的" not in found.tokenizer().tokens
    with pytest.raises(DataError, match="language is"):
        leaving_out("out", None)
    with pytest.raises(DataError, match="is empty: no text of the given lengths and languages"):
        leaving_out("none", "sw")
    with pytest.raises(DataError, match=r"--language english: allowed are af, .*, zh, zu"):
        leaving_out("wrong", "en,english")
    assert not (tmp_path / "wrong").exists()
