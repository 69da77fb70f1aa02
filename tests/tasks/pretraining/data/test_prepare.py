"""From text to shards: the result is the same however the work is divided or interrupted."""

import functools
import json
import operator
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import psutil
import pytest

from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import DataError
from amp_xla.tasks.pretraining.data import masking, prepare
from amp_xla.tasks.pretraining.data.prepared import Manifest, Sequences
from amp_xla.tasks.pretraining.data.units import Reading
from tests.support.running import ROOT, until

pytestmark = pytest.mark.once
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs", "while", "seventeen"]
WORDS += ["sleepy", "cats", "watch", "unbelievably"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def sentences(n, seed=0):
    rng = np.random.RandomState(seed)
    return [" ".join(rng.choice(WORDS, rng.randint(3, 40))) + f" {i}" for i in range(n)]


@pytest.fixture(scope="module")
def vocab(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    pieces = ["un", "##believ", "##ably", "seven", "##teen", *(w for w in WORDS if len(w) < 8)]
    digits = [str(d) for d in range(10)] + [f"##{d}" for d in range(10)]
    path.write_text("\n".join(SPECIAL + sorted(set(pieces)) + digits) + "\n")
    return str(path)


@pytest.fixture
def small_units(monkeypatch):
    """Corpora of some kilobytes have several units."""
    monkeypatch.setattr("amp_xla.tasks.pretraining.data.units.UNIT_BYTES", (4096, 4096))


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(sentences(400)) + "\n")
    return path


def config(tmp_path, vocab, corpus, out="out", **options):
    options = {"length": 32, "heldout": 0.1, "workers": 1, **options}
    return prepare.Config(out=str(tmp_path / out), corpus=str(corpus), vocab=vocab, **options)


def prepared(*args, **options):
    return prepare.prepare(config(*args, **options))


def contents(folder):
    """File name -> bytes, of all shards."""
    return {p.name: p.read_bytes() for p in sorted(Path(folder).glob("[a-z]*.npy"))}


def stamps(folder):
    return {p.name: p.stat().st_mtime_ns for p in Path(folder).glob("[a-z]*.npy")}


def test_sequences_hold_the_corpus_and_hardly_any_padding(tmp_path, vocab, corpus):
    manifest = prepared(tmp_path, vocab, corpus)
    train, held = (manifest.total("documents", split) for split in ("train", "heldout"))
    assert train + held == 400 and 10 < held < 90
    held_out = set(prepare._split(sentences(400), 0.1)[1])
    cutter = masking.cutter(vocab, True, "pieces")
    tokens = np.concatenate([cutter(text) for text in sentences(400) if text not in held_out])
    sequences = Sequences(manifest)
    ids, begins = sequences.read(range(len(sequences)))
    np.testing.assert_array_equal(ids[ids > 4], abs(tokens)[abs(tokens) > 4])
    assert (ids == 0).sum() <= 0.02 * ids.size
    assert begins[ids > 4].sum() >= (tokens > 4).sum()
    assert f"{len(ids)} sequences of 32 tokens" in manifest.describe()
    # Again: there is nothing to do, and nothing is touched.
    before = stamps(tmp_path / "out")
    assert prepared(tmp_path, vocab, corpus) == manifest and stamps(tmp_path / "out") == before


def test_any_number_of_machines_and_processes_writes_the_same(tmp_path, corpus, small_units):
    """Each of them learns the same vocabulary."""
    texts = sentences(800)
    corpus.write_text("\n".join(texts) + "\n")

    def run(out, **options):
        options = {"vocab_size": 128, **options}
        return prepared(tmp_path, None, corpus, out=out, **options)

    one = run("one")
    assert one.total("documents", "train") + one.total("documents", "heldout") == len(texts)
    expected, tokens = contents(one.folder), one.tokenizer().tokens
    assert len(expected) > 4 and len(tokens) % 64 == 0 and tokens[:5] == SPECIAL
    three = run("three", workers=3)
    assert contents(three.folder) == expected and three.units == one.units
    assert run("shards", shard="1/2") is None
    (tmp_path / "shards" / "vocab.txt").unlink()
    last = run("shards", shard="0/2")
    assert contents(last.folder) == expected and last.units == one.units
    assert last.tokenizer().tokens == tokens


def run_command(*args, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "amp_xla", "prepare", *map(str, args)], cwd=str(ROOT),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options,
    )  # fmt: skip


def ended(process):
    """Return whether a process has ended, also if nobody has waited for it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(scope="module")
def large(tmp_path_factory, vocab):
    """Arguments for a corpus of several units, and its shards."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "large.txt").write_text("\n".join(sentences(10_000)) + "\n")
    shards = contents(prepared(folder, vocab, folder / "large.txt").folder)
    words = ("--corpus", folder / "large.txt", "--vocab", vocab, "--length", 32, "--heldout", 0.1)
    return words, shards


@pytest.mark.parametrize(
    "who, sent, code, says",
    [
        ("group", signal.SIGTERM, 143, "the same command continues"),  # Slurm
        ("parent", signal.SIGKILL, -9, ""),
        ("worker", signal.SIGKILL, 2, "error: a worker process was killed"),
    ],
)
def test_an_interrupted_command_leaves_no_process_and_continues(
    tmp_path, large, who, sent, code, says
):
    words, shards = large
    out = tmp_path / "out"
    process = run_command("--out", out, *words, "--workers", 2, start_new_session=True)
    until(lambda: list((out / "units").glob("[0-9]*.json")) or process.poll() is not None)
    children = sorted(psutil.Process(process.pid).children(), key=lambda child: child.pid)
    if who == "group":
        os.killpg(process.pid, sent)
    else:
        os.kill(children[-1].pid if who == "worker" else process.pid, sent)
    output = process.communicate(timeout=120)[0].decode()
    assert process.returncode == code and says in output and "Traceback" not in output, output
    until(lambda: all(map(ended, children)))
    assert contents(out) and not (out / "manifest.json").exists()
    before = stamps(out)
    again = run_command("--out", out, *words, "--workers", 2)
    output = again.communicate(timeout=120)[0].decode()
    assert again.returncode == 0, output
    after = stamps(out)
    assert any(after[name] == stamp for name, stamp in before.items())  # not done again
    assert contents(out) == shards


def test_a_lost_shard_is_made_again_and_a_damaged_one_named(
    tmp_path, vocab, corpus, small_units, monkeypatch
):
    manifest = prepared(tmp_path, vocab, corpus)
    expected = contents(manifest.folder)
    name = sorted(n for n in expected if n.startswith("train"))[2]
    path = tmp_path / "out" / name
    data = bytearray(expected[name])
    data[-60] ^= 4
    path.write_bytes(bytes(data))
    numbers = range(len(Sequences(manifest)))
    with pytest.raises(DataError, match=rf"{name}: damaged.*checksum.*run amp-xla prepare again"):
        Sequences(manifest).read(numbers)
    path.unlink()
    with pytest.raises(DataError, match=rf"{name}: damaged .*No such file"):
        Sequences(Manifest.load(manifest.folder)).read(numbers)
    prepared(tmp_path, vocab, corpus)
    assert contents(manifest.folder) == expected
    monkeypatch.setattr("amp_xla.tasks.pretraining.data.prepared.OPEN_FILES", 3)
    assert len(manifest.units) > 10
    before = len(os.listdir("/proc/self/fd"))
    sequences = Sequences(Manifest.load(manifest.folder))
    in_order, _ = sequences.read(numbers)
    order = np.random.RandomState(0).permutation(len(sequences))
    np.testing.assert_array_equal(sequences.read(order)[0], in_order[order])
    assert len(os.listdir("/proc/self/fd")) <= before + 3  # few are open at a time


def test_a_folder_has_one_setting_and_one_corpus_known_by_its_content(tmp_path, vocab, corpus):
    """A moved corpus is the same; one with another letter and the same size is not."""
    first = prepared(tmp_path, vocab, corpus)
    with pytest.raises(DataError, match="length is 32, not 64"):
        prepared(tmp_path, vocab, corpus, length=64)
    with pytest.raises(DataError, match="not prepared"):
        Manifest.load(str(tmp_path / "elsewhere"))
    moved = tmp_path / "elsewhere" / "renamed.txt"
    moved.parent.mkdir()
    shutil.move(str(corpus), str(moved))
    assert prepared(tmp_path, vocab, moved) == first
    text = moved.read_bytes()
    moved.write_bytes(text[:-3] + (b"q" if text[-3:-2] != b"q" else b"x") + text[-2:])
    before = contents(tmp_path / "out")
    with pytest.raises(DataError, match="corpus_sha256 is"):
        prepared(tmp_path, vocab, moved)
    assert contents(tmp_path / "out") == before


def test_a_bad_line_may_be_skipped_after_an_error(tmp_path, vocab, corpus, small_units):
    with corpus.open("ab") as file:
        file.write(b"bad \xff line\n")
    with pytest.raises(DataError, match="with --on-bad-line skip"):
        prepared(tmp_path, vocab, corpus)
    before = stamps(tmp_path / "out")
    manifest = prepared(tmp_path, vocab, corpus, reading=Reading(on_bad_line="skip"))
    assert manifest.total("bad_lines") == 1
    after = stamps(tmp_path / "out")
    assert before and all(after[name] == stamp for name, stamp in before.items())


def test_a_vocabulary_is_learned_anew_if_no_unit_is_finished(tmp_path, corpus, monkeypatch):
    """A command that is stopped early may be repeated with other flags."""
    monkeypatch.setattr(prepare, "_write_units", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        prepared(tmp_path, None, corpus, vocab_size=128)
    monkeypatch.undo()
    corpus.write_text(corpus.read_text().upper())
    manifest = prepared(tmp_path, None, corpus, vocab_size=128, lowercase=False)
    assert "THE" in manifest.tokenizer().tokens and manifest.total("unknown", "train") == 0


@pytest.mark.parametrize("out, corpus", [("data/x/out", "data"), ("data", "data/*.txt")])
def test_out_inside_the_corpus_is_refused(tmp_path, vocab, monkeypatch, out, corpus):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("the quick fox\n")
    with pytest.raises(DataError, match=f"--out {tmp_path / out}: inside the corpus"):
        prepared(tmp_path, vocab, corpus, out=out)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["a.txt"]


def test_texts_of_other_lengths_are_counted_and_a_corpus_without_text_is_an_error(tmp_path):
    (tmp_path / "some.txt").write_text("quick brown\n的\nfoxes jump over it\nab\n", "utf-8")
    options = dict(vocab_size=256, heldout=0.0, shortest=10)
    found = prepared(tmp_path, None, tmp_path / "some.txt", **options)
    assert found.total("documents", "train") == 2 and found.total("other_lengths") == 2
    assert "2 documents of other lengths left out" in found.describe()
    assert "的" not in found.tokenizer().tokens  # the vocabulary is learnt from what stays
    with pytest.raises(DataError, match="or no document has a length from --shortest"):
        prepared(tmp_path, None, tmp_path / "some.txt", out="no", **{**options, "shortest": 100})
    with pytest.raises(DataError, match=r"no document to train on \(4 held out; skipped: 0 bad"):
        prepared(tmp_path, None, tmp_path / "some.txt", out="all", heldout=0.99999, vocab_size=256)
    (tmp_path / "empty.txt").write_text("\n\n  \n")
    with pytest.raises(DataError, match=r"corpus .*empty\.txt: empty, or"):
        prepared(tmp_path, None, tmp_path / "empty.txt", out="no")
    with pytest.raises(DataError, match="corpus built-in: empty, or no document"):
        prepare._sample(prepare.Config(shortest=100), [str(tmp_path / "some.txt")])
    assert not (tmp_path / "no" / "manifest.json").exists()


def test_chinese_words_are_those_of_jieba(tmp_path):
    pytest.importorskip("rjieba", reason="cutting Chinese words is an extra")
    text = "我来到北京清华大学,非常喜欢 transformers 模型"
    characters = sorted(set("我来到北京清华大学非常喜欢模型"))
    tokenizer = Tokenizer([*SPECIAL, *characters, ",", "transform", "##ers"])
    assert masking.resolve_words("auto", tokenizer) == "jieba"
    cutter = masking.Cutter(tokenizer, "jieba")
    assert cutter("").tolist() == []
    cut = []
    for token in cutter(text):
        piece = tokenizer.tokens[abs(token)].replace("##", "")
        if token > 0:
            cut.append(piece)
        else:
            cut[-1] += piece
    assert cut == ["我", "来到", "北京", "清华大学", ",", "非常", "喜欢", "transformers", "模型"]


@pytest.mark.parametrize("file, field, value", [
    ("manifest", "units.0.train.file", "../x.npy"), ("manifest", "units.0.heldout.file", 3),
    *(("manifest", "units.0.train.tokens", count) for count in (10**12, -1, 1.5)),
    ("manifest", "units.0", []), ("manifest", "units", {"a": 1}),
    ("manifest", "units.0.bad_lines", None), ("manifest", "units.0.train.crc32", "x"),
    *(("settings", "length", length) for length in (2, 10**9, "32")),
    ("settings", "cls_id", 10**6), ("settings", "vocab_size", 10),
    ("settings", "vocab_sha256", None), ("settings", "lowercase", "no"),
])  # fmt: skip
def test_a_foreign_folder_is_checked(tmp_path, vocab, corpus, file, field, value):
    prepared(tmp_path, vocab, corpus)
    path = tmp_path / "out" / f"{file}.json"
    content = json.loads(path.read_text())
    *outer, last = [int(part) if part.isdigit() else part for part in field.split(".")]
    functools.reduce(operator.getitem, outer, content)[last] = value
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=rf"out/|{last}"):
        manifest = Manifest.load(str(tmp_path / "out"))
        manifest.tokenizer()
        sequences = Sequences(manifest)
        sequences.read(range(len(sequences)))
