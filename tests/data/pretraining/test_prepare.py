"""From text to shards: every machine's share adds up, whatever stops, breaks or is missing."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from amp_xla.backend import tf
from amp_xla.data.pretraining import prepare, records
from amp_xla.data.pretraining.prepared import Manifest, Sequences
from amp_xla.data.pretraining.records import DamagedShard, RecordLayout
from amp_xla.data.pretraining.units import Reading, files_of, units
from amp_xla.data.pretraining.words import Jieba, Pieces
from amp_xla.errors import DataError
from tests.data.pretraining.corpus import corpus_texts
from tests.process import trees

ROOT = Path(__file__).parents[3]
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs", "while", "seventeen"]
WORDS += ["sleepy", "cats", "watch", "unbelievably"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def sentences(n, seed=0):
    rng = np.random.RandomState(seed)
    return [" ".join(rng.choice(WORDS, rng.randint(3, 40))) + f" {i}" for i in range(n)]


@pytest.fixture
def vocab(tmp_path):
    path = tmp_path / "vocab.txt"
    pieces = ["un", "##believ", "##ably", "seven", "##teen", *(w for w in WORDS if len(w) < 8)]
    digits = [str(d) for d in range(10)] + [f"##{d}" for d in range(10)]
    path.write_text("\n".join(SPECIAL + sorted(set(pieces)) + digits) + "\n")
    return str(path)


@pytest.fixture
def small_units(monkeypatch):
    """Cuts corpora of some kilobytes into several units; workers are told by what they are sent."""
    monkeypatch.setattr("amp_xla.data.pretraining.units.UNIT_BYTES", (4096, 4096))


def config(tmp_path, vocab, corpus, out="out", **options):
    options = {"length": 32, "heldout": 0.1, "workers": 1, **options}
    return prepare.Config(out=str(tmp_path / out), corpus=str(corpus), vocab=vocab, **options)


def contents(folder):
    """file name -> bytes, of everything that training reads."""
    return {p.name: p.read_bytes() for p in sorted(Path(folder).glob("*.tfrecord"))}


def written(folder):
    return sorted(p.name for p in Path(folder).rglob("*") if p.is_file())


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(sentences(400)) + "\n")
    return path


# -- records -----------------------------------------------------------------------------------


@pytest.mark.parametrize("length, vocab_size", [(128, 8000), (61, 100_000), (1024, 21128)])
def test_tensorflow_reads_the_records(tmp_path, length, vocab_size):
    layout = RecordLayout(length, vocab_size)
    rng = np.random.RandomState(0)
    ids, starts = rng.randint(0, vocab_size, (9, length)), rng.rand(9, length) < 0.5
    path = str(tmp_path / "a.tfrecord")
    records.write_whole(path, layout.encode(ids, starts))
    assert os.path.getsize(path) == 9 * layout.stride
    found = list(tf.io.tf_record_iterator(path))  # verifies TFRecord's own checksums
    for record, row, begins in zip(found, ids, starts):
        features = tf.train.Example.FromString(record).features.feature
        raw = features["token_ids"].bytes_list.value[0]
        np.testing.assert_array_equal(np.frombuffer(raw, layout.id_dtype), row)
        bits = np.frombuffer(features["starts"].bytes_list.value[0], np.uint8)
        np.testing.assert_array_equal(np.unpackbits(bits)[:length], begins)
    assert len(found) == 9
    again, begins = layout.read(path, 2, 5)
    np.testing.assert_array_equal(again, ids[2:7])
    np.testing.assert_array_equal(begins, starts[2:7])


@pytest.mark.parametrize("place", ["length", "tokens", "checksum", "truncated"])
def test_damage_anywhere_names_file_and_record(tmp_path, place):
    layout = RecordLayout(32, 8000)
    data = bytearray(layout.encode(np.full((6, 32), 7), np.ones((6, 32), bool)))
    at = {"length": 0, "tokens": 40, "checksum": layout.stride - 1, "truncated": 0}[place]
    data[4 * layout.stride + at] ^= 1
    path = tmp_path / "train-7.tfrecord"
    path.write_bytes(bytes(data[: -layout.stride - 3] if place == "truncated" else data))
    layout.read(str(path), 0, 4)
    with pytest.raises(DamagedShard, match=r"train-7\.tfrecord.*record 4.*run prepare again"):
        layout.read(str(path), 0, 6)


# -- documents ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("unit", [1, 7, 64, 10_000])
def test_units_cut_anywhere_and_documents_stay_whole(tmp_path, monkeypatch, unit, ending):
    monkeypatch.setattr("amp_xla.data.pretraining.units.UNIT_BYTES", (unit, unit))
    texts = sentences(30)
    path = tmp_path / "a.txt"
    path.write_bytes((ending.join(texts)).encode())  # no line end at the end
    assert corpus_texts(path) == texts
    blocks = [f"{a}{ending}{b}" for a, b in zip(texts[::2], texts[1::2])]
    path.write_bytes((ending * 2 + (ending * 3).join(blocks) + ending * 4).encode())
    found = corpus_texts(path, documents="blank")
    assert [t.split() for t in found] == [b.split() for b in blocks]
    assert [t.split() for t in corpus_texts(path, documents="file")] == [" ".join(blocks).split()]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.bz2", ".jsonl.zst"])
def test_json_lines_and_compression(tmp_path, small_units, suffix):
    texts = sentences(300)
    data = "".join(json.dumps({"id": i, "body": t}) + "\n" for i, t in enumerate(texts)).encode()
    if suffix.endswith(".gz"):
        data = gzip.compress(data)
    elif suffix.endswith(".bz2"):
        data = bz2.compress(data)
    elif suffix.endswith(".zst"):
        zstandard = pytest.importorskip("zstandard", reason="reading .zst is an extra")
        data = zstandard.ZstdCompressor().compress(data)
    path = tmp_path / f"a{suffix}"
    path.write_bytes(data)
    assert len(list(units([str(path)], Reading()))) > 3
    assert corpus_texts(tmp_path, field="body") == texts
    with pytest.raises(DataError, match="'text'.*'id', 'body'"):
        corpus_texts(path)


def test_folders_globs_and_lists_are_read_in_one_order(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "a.txt", "sub/c.txt", "sub/notes.md"):
        (tmp_path / name).write_text(f"text of {name}\n")
    expected = ["text of a.txt", "text of b.txt", "text of sub/c.txt"]
    assert corpus_texts(tmp_path) == expected
    assert corpus_texts(f"{tmp_path}/*.txt, {tmp_path}/sub") == expected
    with pytest.raises(DataError, match=r"nothing\.txt: no such file"):
        files_of(f"{tmp_path}/nothing.txt")


def test_a_column_of_a_table_is_a_text(tmp_path):
    path = tmp_path / "reviews.data"
    path.write_text("fine\t1\npoor\t0\n")
    assert corpus_texts(path, field="0") == ["fine", "poor"]


BAD = {
    "nul": (b"good text\nbad \0 text\nmore\n", "byte 10: a NUL"),
    "utf8": (b"good text\nbad \xff\xfe text\nmore\n", "byte 10: not UTF-8 .0xff"),
}


@pytest.mark.parametrize("kind", sorted(BAD))
def test_bad_text_is_named_or_left_out(tmp_path, vocab, kind):
    data, message = BAD[kind]
    path = tmp_path / "bad.txt"
    path.write_bytes(data)
    with pytest.raises(DataError, match=rf"bad\.txt, {message}.*--on-bad-line skip"):
        prepare.prepare(config(tmp_path, vocab, path), show=False)
    assert not contents(tmp_path / "out") and Manifest.found(str(tmp_path / "out")) is None
    found = prepare.prepare(config(tmp_path, vocab, path, on_bad_line="skip", heldout=0.0), False)
    assert found.counts["bad_lines"] == 1 and found.counts["train"]["documents"] == 2
    assert "1 bad lines left out" in found.describe()


def test_documents_of_other_lengths_are_left_out_and_counted(tmp_path, vocab):
    path = tmp_path / "some.txt"
    path.write_text("ab\n" + "a b c d e\n" * 3 + "a b c d e f g h\n")
    bounds = {"heldout": 0.0, "shortest": 9, "longest": 10}
    found = prepare.prepare(config(tmp_path, vocab, path, **bounds), False)
    assert found.counts["train"]["documents"] == 3 and found.counts["other_lengths"] == 2
    assert "2 documents of other lengths left out" in found.describe()
    with pytest.raises(DataError, match="longest"):  # the same folder with other texts
        prepare.prepare(config(tmp_path, vocab, path, heldout=0.0, shortest=9), False)
    with pytest.raises(DataError, match="--longest 8: allowed is 0, or --shortest and more"):
        config(tmp_path, vocab, path, shortest=9, longest=8)


# -- the whole way -----------------------------------------------------------------------------


def test_sequences_hold_the_corpus_and_hardly_any_padding(tmp_path, vocab, corpus):
    found = prepare.prepare(config(tmp_path, vocab, corpus), show=False)
    counts = found.counts
    assert counts["train"]["documents"] + counts["heldout"]["documents"] == 400
    assert counts["train"]["padding"] <= 0.02 * counts["train"]["sequences"] * 32
    tokenizer = Pieces(prepare.words.load_tokenizer(vocab, True))
    held = set(prepare._split(sentences(400), 0.1)[1])
    texts = [t for t in sentences(400) if t not in held]
    token_ids, starts, _ = tokenizer(texts)
    ids, begins = Sequences(found).read(0, counts["train"]["sequences"])
    np.testing.assert_array_equal(ids[ids > 4], token_ids[token_ids > 4])
    pieces = np.array(tokenizer.tokenizer.tokens)[token_ids]
    assert (starts == np.array([not p.startswith("##") for p in pieces])).all()
    assert begins[ids > 4].sum() >= starts[token_ids > 4].sum()
    words = found.describe()
    assert "400" not in words and "padding 0." in words and "held out" in words
    # Again: nothing to do, nothing touched.
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").glob("*.tfrecord")}
    assert prepare.prepare(config(tmp_path, vocab, corpus), show=False) == found
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "out").glob("*.tfrecord")}


def test_any_number_of_machines_writes_the_same(tmp_path, vocab, corpus, small_units):
    one = prepare.prepare(config(tmp_path, vocab, corpus), show=False)
    expected = contents(one.folder)
    assert len(expected) > 4
    for n in (2, 3):
        order = list(range(n))[::-1]
        results = [
            prepare.prepare(
                config(tmp_path, vocab, corpus, out=f"of{n}", shard=f"{i}/{n}"), show=False
            )
            for i in order
        ]
        assert results[:-1] == [None] * (n - 1)  # the manifest comes with the last
        assert contents(tmp_path / f"of{n}") == expected
        assert results[-1].shards == one.shards and results[-1].counts == one.counts


def test_shards_need_one_vocabulary(tmp_path, corpus):
    alone = config(tmp_path, None, corpus, vocab_size=128)
    with pytest.raises(DataError, match="--vocab-only"):
        prepare.prepare(config(tmp_path, None, corpus, shard="0/2"), show=False)
    only = config(tmp_path, None, corpus, vocab_size=128, vocab_only=True)
    assert prepare.prepare(only, show=False) is None
    assert written(tmp_path / "out") == ["vocab.txt"]
    first = (tmp_path / "out" / "vocab.txt").read_text()
    tokens = first.split()
    assert len(tokens) % 64 == 0 and tokens[:5] == SPECIAL
    for i in (1, 0):
        found = prepare.prepare(config(tmp_path, None, corpus, shard=f"{i}/2"), show=False)
    assert found.settings["vocab_size"] == len(tokens)
    again = prepare.prepare(dataclass_replace(alone, out=str(tmp_path / "alone")), show=False)
    assert (tmp_path / "alone" / "vocab.txt").read_text() == first and again.counts == found.counts


def dataclass_replace(value, **changes):
    import dataclasses

    return dataclasses.replace(value, **changes)


def run_command(*args, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "amp_xla", "prepare", *map(str, args)], cwd=str(ROOT),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options,
    )  # fmt: skip


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_command_continues(tmp_path, vocab, how):
    path = tmp_path / "large.txt"
    path.write_text("\n".join(sentences(16_000)) + "\n")  # several units of 256 KB
    args = ("--corpus", path, "--vocab", vocab, "--length", 32, "--workers", 1)
    process = run_command("--out", tmp_path / "out", *args, start_new_session=True)
    deadline = time.monotonic() + 60
    units_folder = tmp_path / "out" / "units"
    while not list(units_folder.glob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, how)
    output = process.communicate(timeout=60)[0].decode()
    done = contents(tmp_path / "out")
    assert done and Manifest.found(str(tmp_path / "out")) is None
    if how == signal.SIGINT:
        assert process.returncode == 130 and "the same command continues" in output, output
    stamps = {n: (tmp_path / "out" / n).stat().st_mtime_ns for n in done}
    again = run_command("--out", tmp_path / "out", *args)
    output = again.communicate(timeout=120)[0].decode()
    assert again.returncode == 0, output
    kept = [n for n, stamp in stamps.items() if (tmp_path / "out" / n).stat().st_mtime_ns == stamp]
    assert kept  # what was finished was not done again
    clean = run_command("--out", tmp_path / "clean", *args)
    output = clean.communicate(timeout=120)[0].decode()
    assert clean.returncode == 0, output
    assert contents(tmp_path / "clean") == contents(tmp_path / "out")


@pytest.mark.parametrize("who", ["worker", "parent"])
def test_killed_processes(tmp_path, vocab, who):
    """A worker is replaced, and the files are the same; a parent takes its workers along."""
    path = tmp_path / "large.txt"
    path.write_text("\n".join(sentences(16_000)) + "\n")
    args = ("--corpus", path, "--vocab", vocab, "--length", 32)
    process = run_command("--out", tmp_path / "out", *args, "--workers", 2)
    workers = trees.wait_for_children(process.pid, 2)
    units_folder = tmp_path / "out" / "units"
    while not list(units_folder.glob("*.json")) and process.poll() is None:
        time.sleep(0.01)
    os.kill(workers[1] if who == "worker" else process.pid, signal.SIGKILL)
    output = process.communicate(timeout=120)[0].decode()
    if who == "parent":
        assert process.returncode == -signal.SIGKILL and trees.gone(workers)
        return
    assert process.returncode == 0, output
    assert f"(process {workers[1]}) ended with SIGKILL over piece 00000-0" in output, output
    clean = run_command("--out", tmp_path / "clean", *args, "--workers", 1)
    assert clean.wait(120) == 0
    assert contents(tmp_path / "clean") == contents(tmp_path / "out")


@pytest.mark.parametrize("sent, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_make_passes_signals_through(tmp_path, vocab, sent, code):
    """What Ctrl-C and Slurm do: every process of the group is told; none is left."""
    path = tmp_path / "large.txt"
    path.write_text("\n".join(sentences(16_000)) + "\n")
    words = f"--vocab {vocab} --length 32 --workers 2"
    command = ["make", "-s", "prepare", f"PYTHON={sys.executable}", f"CORPUS={path}"]
    make = subprocess.Popen(
        [*command, f"OUT={tmp_path / 'out'}", f"ARGS={words}"], cwd=str(ROOT),
        start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    (ours,) = trees.wait_for_children(make.pid, 1)
    workers = trees.wait_for_children(ours, 2)
    os.killpg(make.pid, sent)
    output = make.communicate(timeout=60)[0].decode()
    assert make.returncode == -sent, output  # as it was asked, which a shell shows as
    assert f"Error {code}" in output and "Traceback" not in output, output
    assert trees.gone([ours, *workers])


def test_a_lost_shard_is_made_again_and_a_damaged_one_named(tmp_path, vocab, corpus, small_units):
    found = prepare.prepare(config(tmp_path, vocab, corpus), show=False)
    expected = contents(found.folder)
    name = sorted(n for n in expected if n.startswith("train"))[2]
    path = tmp_path / "out" / name
    data = bytearray(expected[name])
    data[60] ^= 4
    path.write_bytes(bytes(data))
    sequences = Sequences(found)
    with pytest.raises(DamagedShard, match=name):
        sequences.read(0, len(sequences))
    path.unlink()
    with pytest.raises(DataError, match="lacks shards"):
        Manifest.load(found.folder)
    prepare.prepare(config(tmp_path, vocab, corpus), show=False)
    assert contents(found.folder) == expected
    Sequences(Manifest.load(found.folder)).read(0, len(sequences))


def test_other_settings_do_not_mix_into_a_folder(tmp_path, vocab, corpus):
    prepare.prepare(config(tmp_path, vocab, corpus), show=False)
    with pytest.raises(DataError, match="length is 32, not 64"):
        prepare.prepare(config(tmp_path, vocab, corpus, length=64), show=False)
    with pytest.raises(DataError, match="not prepared"):
        Manifest.load(str(tmp_path / "elsewhere"))


def test_a_corpus_is_known_by_its_content(tmp_path, vocab, corpus):
    """One that moved is the same; one with a letter changed, of the same size, is another."""
    first = prepare.prepare(config(tmp_path, vocab, corpus), show=False)
    moved = tmp_path / "elsewhere" / "renamed.txt"
    moved.parent.mkdir()
    shutil.move(str(corpus), str(moved))
    assert prepare.prepare(config(tmp_path, vocab, moved), show=False) == first
    text = moved.read_bytes()
    moved.write_bytes(text[:-3] + (b"q" if text[-3:-2] != b"q" else b"x") + text[-2:])
    before = contents(tmp_path / "out")
    with pytest.raises(DataError, match="corpus_sha256 is"):
        prepare.prepare(config(tmp_path, vocab, moved), show=False)
    assert contents(tmp_path / "out") == before
    other = prepare.prepare(config(tmp_path, vocab, moved, out=str(tmp_path / "other")), show=False)
    assert other.settings["corpus_sha256"] != first.settings["corpus_sha256"]


def test_a_folder_from_before_contents_were_hashed_goes_on(tmp_path, vocab, corpus):
    first = prepare.prepare(config(tmp_path, vocab, corpus), show=False)
    listed = json.dumps([[str(corpus), corpus.stat().st_size]])
    old = hashlib.sha256(listed.encode()).hexdigest()
    paths = [tmp_path / "out" / "manifest.json", *(tmp_path / "out" / "units").glob("*.json")]
    for path in paths:
        path.write_text(path.read_text().replace(first.settings["corpus_sha256"], old))
    assert (
        prepare.prepare(config(tmp_path, vocab, corpus), show=False).settings["corpus_sha256"]
        == old
    )
    paths[0].unlink()  # half done
    again = prepare.prepare(config(tmp_path, vocab, corpus), show=False)
    assert again.settings["corpus_sha256"] == old and again.shards == first.shards


def test_another_vocabulary_in_the_folder_is_noticed(tmp_path, vocab, corpus):
    settings = config(tmp_path, vocab, corpus)
    manifest = prepare.prepare(settings, show=False)
    assert manifest.tokenizer().tokens == Path(vocab).read_text().split("\n")[:-1]
    assert manifest.warnings(manifest.tokenizer()) == ""
    path = tmp_path / "out" / "vocab.txt"
    tokens = path.read_text().split("\n")
    tokens[10], tokens[11] = tokens[11], tokens[10]  # as many tokens, the same ones
    path.write_text("\n".join(tokens))
    with pytest.raises(DataError, match=r"vocab.txt is not the vocabulary .*vocab_sha256"):
        Manifest.load(settings.out).tokenizer()


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_bomb_is_not_unpacked(tmp_path, suffix):
    path = tmp_path / ("bomb.txt" + suffix)
    data = b"x" * (80 << 20)
    if suffix == ".gz":
        path.write_bytes(gzip.compress(data))
    else:
        path.write_bytes(pytest.importorskip("zstandard").ZstdCompressor().compress(data))
    with pytest.raises(DataError, match=r"unpacks to more than \d+ MiB"):
        list(units([str(path)], Reading()))


def test_a_folder_that_cannot_be_written_is_named(tmp_path, vocab, corpus):
    settings = config(tmp_path, vocab, corpus, out="/sys/kernel/data")  # not even for root
    with pytest.raises(DataError, match="^/sys/kernel/data: "):
        prepare.prepare(settings, show=False)


def test_a_single_document_is_a_single_sequence(tmp_path, vocab):
    path = tmp_path / "one.txt"
    path.write_text("the quick fox\n")
    found = prepare.prepare(config(tmp_path, vocab, path, heldout=0.0), show=False)
    assert found.counts["train"]["sequences"] == len(Sequences(found)) == 1
    assert len(found.shards["train"]) == 1 and not found.shards["heldout"]


@pytest.mark.parametrize("text", ["", "\n\n  \n"])
def test_an_empty_corpus_is_an_error_and_leaves_no_manifest(tmp_path, vocab, text):
    path = tmp_path / "empty.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=r"empty\.txt is empty"):
        prepare.prepare(config(tmp_path, vocab, path), show=False)
    assert Manifest.found(str(tmp_path / "out")) is None and not contents(tmp_path / "out")


def test_a_vocabulary_without_mask_is_refused_before_the_work(tmp_path, corpus):
    path = tmp_path / "plain.txt"
    path.write_text("\n".join(SPECIAL[:4] + WORDS))
    with pytest.raises(DataError, match=r"no \[MASK\]"):
        prepare.prepare(config(tmp_path, str(path), corpus), show=False)
    assert not contents(tmp_path / "out")


def test_a_full_disk_leaves_nothing_that_looks_whole(tmp_path, vocab, corpus):
    # The kernel refuses to let any file grow beyond 8 KB: the error that a full disk gives.
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

    args = ("--out", tmp_path / "out", "--corpus", corpus, "--vocab", vocab, "--length", 32)
    process = run_command(*args, "--workers", 1, preexec_fn=limit)
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 2 and "cannot write" in output and "too large" in output, output
    assert "Traceback" not in output
    left = written(tmp_path / "out")
    assert not [n for n in left if n.endswith((".tmp", ".tfrecord", "manifest.json"))], left
    again = run_command(*args, "--workers", 2)
    output = again.communicate(timeout=60)[0].decode()
    assert again.returncode == 0, output  # and with room it goes on


@pytest.mark.parametrize(
    "options, word",
    [
        ({"length": 20}, "steps of 8"),
        ({"shard": "2/2"}, "0 to n - 1"),
        ({"heldout": 1.0}, "0 to below 1"),
        ({"heldout": float("nan")}, "0 to below 1"),
        ({"vocab_size": 63}, "64 or more"),
        ({"workers": -1}, "0 or more"),
    ],
)
def test_settings_out_of_range_are_named(options, word):
    with pytest.raises(DataError, match=word):
        prepare.Config(**options)


# -- words -------------------------------------------------------------------------------------


def test_chinese_words_are_those_of_jieba(tmp_path):
    pytest.importorskip("rjieba", reason="cutting Chinese words is an extra")
    text = "我来到北京清华大学,非常喜欢 transformers 模型"
    characters = sorted(set("我来到北京清华大学非常喜欢模型"))
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(SPECIAL + characters + [",", "transform", "##ers"]) + "\n")
    tokenizer = prepare.words.load_tokenizer(str(path), True)
    assert prepare.words.resolve("auto", tokenizer) == "jieba"
    token_ids, starts, counts = Jieba(tokenizer)([text, "", text[:2]])
    words, tokens = [], [tokenizer.tokens[i] for i in token_ids]
    for token, start in zip(tokens[: counts[0]], starts):
        if start:
            words.append(token)
        else:
            words[-1] += token.replace("##", "")
    assert words == ["我", "来到", "北京", "清华大学", ",", "非常", "喜欢", "transformers", "模型"]
    assert counts.tolist() == [18, 0, 2]
