"""Labels have the same ids in every file; labelled texts become batches, tokens are hidden."""

import shlex

import numpy as np
import pytest

from amp_xla.data import labelled
from amp_xla.data.batches.buckets import Batches, PackedBatches
from amp_xla.data.labelled import BatchOptions
from amp_xla.data.text.labels import Labels
from amp_xla.data.text.options import TextFiles, VocabularyOptions
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import DataError, SettingsError
from amp_xla.tasks.classification import data as classification
from amp_xla.tasks.classification.data import MultiLabelTextFiles
from amp_xla.tasks.seq2seq import data as seq2seq
from amp_xla.tasks.seq2seq.data import TargetFiles
from tests.support.encoded import digest, ids_of

pytestmark = pytest.mark.once

LINES = {
    "train": [f"{x} text number {i}\t{x}" for i in range(20) for x in ("bad", "good")],
    "dev": ["a good one\tgood", "a bad one, and a rather long one too\tbad"],
}


@pytest.fixture
def files(tmp_path):
    for name, lines in LINES.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    return TextFiles(train=str(tmp_path / "train"), dev=str(tmp_path / "dev"))


HEADER = "text\tpair\tlabel\n"
HOW = labelled.Preparation(
    VocabularyOptions(vocab_size=200), BatchOptions(batch_size=4, max_length=16), None, 0.0, 1
)


def read(files, token_dropout=0.0, packed=False):
    how = HOW._replace(token_dropout=token_dropout, packed=packed)
    return classification.read(files, how)


@pytest.mark.parametrize("packed", [False, True])
def test_a_share_of_the_ordinary_tokens_is_hidden_as_seed_epoch_and_step_decide(packed):
    words = [f"word{i}" for i in range(200)]
    tokenizer = Tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
    random, mask = np.random.RandomState(0), tokenizer.mask_id
    texts = [" ".join(random.choice(words, random.randint(1, 40))) for _ in range(700)]
    encoded = tokenizer.encode(texts, max_length=48)
    kind = PackedBatches if packed else Batches
    batches = kind(encoded, None, [48] if packed else [16, 48])
    whole = list(labelled.token_dropout(batches, 0.1, tokenizer, seed=3).epoch(1))
    hidden, ordinary = 0, 0
    for before, after in zip(batches.epoch(1), whole):
        changed = before["token_ids"] != after["token_ids"]
        assert (after["token_ids"][changed] == mask).all()
        assert (before["token_ids"][changed] > mask).all()
        hidden += changed.sum()
        ordinary += (before["token_ids"] > mask).sum()
        for name in set(before) - {"token_ids"}:
            np.testing.assert_array_equal(before[name], after[name])
    assert abs(hidden / ordinary - 0.1) < 4 * np.sqrt(0.09 / ordinary)
    rest = labelled.token_dropout(batches, 0.1, tokenizer, seed=3).epoch(1, start=2)
    assert digest(rest) == digest(whole[2:])
    others = labelled.token_dropout(batches, 0.1, tokenizer, seed=4)
    assert digest(others.epoch(1)) != digest(whole)


def test_tokens_are_hidden_in_training_only_and_a_line_is_independent_of_others(files):
    tokenizer = read(files).tokenizer
    encoded = tokenizer.encode_lines(["good", "good\tbad text", "good\t", "text " * 20], 16)
    assert ids_of(encoded, 0) == ids_of(tokenizer.encode(["good"]), 0)
    assert ids_of(encoded, 1) == ids_of(tokenizer.encode(["good"], ["bad text"]), 0)
    assert ids_of(encoded, 2) == ids_of(tokenizer.encode(["good"], [""]), 0)
    assert ids_of(encoded, 3) == ids_of(tokenizer.encode(["text " * 20], max_length=16), 0)
    plain, hidden = read(files), read(files, 0.5)

    def tokens(batches):
        return np.concatenate([batch["token_ids"].ravel() for batch in batches.epoch(0)])

    assert not np.array_equal(tokens(plain.batches), tokens(hidden.batches))
    assert np.array_equal(tokens(plain.dev_batches), tokens(hidden.dev_batches))


@pytest.mark.parametrize("packed", [False, True])
def test_a_text_has_any_number_of_labels(tmp_path, packed):
    (tmp_path / "train.tsv").write_text("a cat\tpet, small\nno animal\t\na dog\tpet\n" * 9)
    lines = ['{"text": "a mouse", "label": ["small"]}', '{"text": "a stone", "label": []}']
    (tmp_path / "dev.jsonl").write_text("\n".join(lines))
    paths = dict(train=str(tmp_path / "train.tsv"), dev=str(tmp_path / "dev.jsonl"))
    data = read(MultiLabelTextFiles(**paths, multilabel=","), packed=packed)
    assert data.labels.names == ("pet", "small")
    assert data.ids[:3].tolist() == [[1, 1], [0, 0], [1, 0]]
    (dev,) = data.dev_batches.epoch(0)
    rows = zip(dev["sample_ids"].ravel().tolist(), dev["labels"].reshape(-1, 2).tolist())
    by_id = dict(rows)
    assert (by_id[0], by_id[1], by_id[-1]) == ([0, 1], [0, 0], [0, 0])
    with pytest.raises(DataError, match="a label contains ',', which separates labels"):
        (tmp_path / "dev.jsonl").write_text('{"text": "a cow", "label": ["pet,large"]}')
        read(MultiLabelTextFiles(**paths, multilabel=","))
    with pytest.raises(SettingsError, match="--multilabel ' ': allowed is"):
        MultiLabelTextFiles(multilabel=" ")


@pytest.mark.parametrize("train, dev, warned", [
    ("a b\tx\nc d\ty\n", "c d\tx\na b\tx\ne f\ty\n", "2 of 3 _, 1 of them with another label"),
    ("a b\tx\na b\ty\nc d\tx\n", "a b\ty\nc\tx\n", "1 of 2 _"),
    (f"{HEADER}one two\tsee me\tx\nfor all\tto go\ty\n",
     f"{HEADER}for all\tto go\tx\none two\tto go\ty\n", "1 of 2 _, 1 of them with another label"),
    ("a b\tx\nc d\ty\n", "a\tx\nc\ty\n", ""),
    ("a b c\tx y\nd e f\tz\n", "a b c\tx\nd e f\tz\n", "2 of 2 _, 1 of them with another target"),
])  # fmt: skip
def test_dev_texts_in_the_training_file_are_counted(tmp_path, train, dev, warned):
    for name, content in (("train", train * (1 if HEADER in train else 9)), ("dev", dev)):
        (tmp_path / name).write_text(content)
    kind, reading = TextFiles, read
    if "target" in warned:
        kind, reading = TargetFiles, lambda files: seq2seq.read(files, HOW, 8)
    told = reading(kind(train=str(tmp_path / "train"), dev=str(tmp_path / "dev"))).description
    assert told.partition("warning: ")[2] == warned.replace("_", "dev texts are training texts")


def test_class_weights():
    labels, ids = Labels(("a", "b", "c=d")), np.array([0, 0, 0, 1, 2, 0])
    assert classification.class_weights(None, labels, ids) is None
    balanced = classification.class_weights("balanced", labels, ids)
    assert balanced == [0.5, 2.0, 2.0] and np.mean(np.array(balanced)[ids]) == 1.0
    assert classification.class_weights("c=d=3,a=0.5", labels, ids) == [0.5, 1.0, 3.0]
    for spec in ("x, y=2,a=0.5", "a=0.5,x, y=2", "x, y=2,y=1,a=0.5"):
        weights = classification.class_weights(spec, Labels(("a", "x, y", "y")), ids)
        assert weights == [0.5, 2.0, 1.0]
    for spec in ("e=1", "a", "a=nan", "", "a=1,a=2", "a=1,b", "a=1,", "a,b=2"):
        with pytest.raises(SettingsError, match="--class-weights: found .* such as a=2,b=0.5"):
            classification.class_weights(spec, labels, ids)


def test_numbers_are_sorted_by_value_then_text_by_code_point(tmp_path):
    labels = Labels.fit(["10", "b", "2", "a", "-1", "0.5", "nan", "2", "书\n", "1_0", "\ud83d"])
    assert labels.names == ("-1", "0.5", "2", "10", "1_0", "a", "b", "nan", "书\n", "\ud83d")
    (tmp_path / "labels.json").write_bytes(labels.encoded())
    assert Labels.load(str(tmp_path / "labels.json")) == labels
    ids = labels.ids(["10", "a", "-1"])
    assert ids.dtype == np.int32 and ids.tolist() == [3, 5, 0]


def test_unseen_labels_one_class_and_swapped_columns_are_errors():
    labels = Labels.fit(["good", "bad"])
    with pytest.raises(DataError) as error:
        labels.ids(["good", "so-so", "so-so", "awful"])
    message = str(error.value)
    assert "'so-so' (2 times)" in message and "'awful' (1" in message
    assert "'bad', 'good'" in message
    with pytest.raises(DataError, match="3 samples with only this label: 'a'"):
        Labels.fit(["a"] * 3)
    with pytest.raises(DataError, match="none"):
        Labels.fit([])
    with pytest.raises(DataError, match="swapped"):
        Labels.fit([f"a whole sentence {i}" for i in range(200)])


def test_a_hint_if_the_cause_is_a_flag():
    labels = Labels.fit(["good", "bad"])
    with pytest.raises(DataError, match="; did --train-fraction 0.1 leave them out. Give a larger"):
        labels.ids(["so-so"], 0.1)
    for mark, names in (
        (",", ["0", "1", "17", "0,1,17"]), ("|", ["a|b", "a", "b"]),
        (";", ["a; b", "a;c", "b", "c"]),
    ):  # fmt: skip
        hint = f"may be several labels: --multilabel {shlex.quote(mark)}"
        assert hint in Labels.fit(names).warnings(names)
        with pytest.raises(DataError) as error:
            Labels.fit([*names[1:], "z"]).ids(names)
        assert hint in str(error.value) and "add such samples" not in str(error.value)
    assert "'-' is a class here" in Labels.fit(["-", "neutral"]).warnings(["-", "neutral"])
    for names in (["yes, of course", "no"], ["a", "b"], ["hotel, bar", "inn, pub"], ["1, 5", "2"]):
        assert not Labels.fit(names).warnings(names)


@pytest.mark.parametrize("one, other", [
    ("1", "1.0"), ("true", "1"), ("01", "1"), ("good", "Good"), ("a  b", "a b"), ("b", "b\u200b"),
    ("scho\u0308n", "schön"), ("\ufeffb", "b"), ("ｂ", "b"),
])  # fmt: skip
def test_labels_that_differ_only_in_their_form_are_named(one, other):
    assert "are two labels; if they mean one" in Labels.fit([one, other, "c"]).warnings([])
    with pytest.raises(DataError, match="are two labels; if they mean one"):
        Labels.fit([one, "c"]).ids([other])
