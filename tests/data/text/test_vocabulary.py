"""Vocabularies are read as bert4keras reads them, and learned identically in every process."""

import collections

import pytest

from amp_xla.data.text import corpora
from amp_xla.data.text.options import VocabularyOptions
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.data.text.vocabulary import fingerprint, load_vocab
from tests.support.encoded import ids_of
from tests.support.running import run_python

SCRIPT = """
from amp_xla.data.text import corpora
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.data.text.vocabulary import fingerprint
train, dev = corpora.pydoc()
tokens = Tokenizer.train(train.texts[::-1], 3000).tokens
print(train.fingerprint(), dev.fingerprint(), fingerprint(tokens))
"""


def test_another_process_has_the_same_texts_and_learns_the_same_in_another_order():
    train, dev = corpora.pydoc()
    tokens = Tokenizer.train(train.texts, 3000).tokens
    assert len(tokens) == 3000
    done = run_python("-c", SCRIPT, env={"PYTHONHASHSEED": "1"})
    assert done.out.split() == [train.fingerprint(), dev.fingerprint(), fingerprint(tokens)]


@pytest.mark.once
def test_ids_are_line_numbers(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes(
        "\ufeff\ufeff[PAD]\r\n[UNK]\r\n\r\n[CLS] 17\r\n[SEP]\r\n\u2028\r\na\r\na".encode()
    )
    assert load_vocab(str(path)) == ["[PAD]", "[UNK]", "", "[CLS]", "[SEP]", "", "a", "a"]
    tokenizer = Tokenizer.load(str(path))
    assert (tokenizer.cls_id, tokenizer.sep_id, tokenizer.vocab_size) == (3, 4, 8)
    # Of equal tokens the last counts, as in Google's tokenizer.
    assert ids_of(tokenizer.encode(["a b"]), 0)[0] == [3, 7, 1, 4]


@pytest.mark.once
def test_a_warning_about_jieba_is_printed_once(tmp_path, capsys):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    settings = '{"tokenizer_class": "RoFormerTokenizer", "do_lower_case": true}'
    (tmp_path / "tokenizer_config.json").write_text(settings)
    options = VocabularyOptions()
    for _ in range(2):
        assert options.defaults(str(tmp_path)) == {"lowercase": True}
    options.tokenizer([], str(tmp_path))
    assert capsys.readouterr().err.count("with jieba") == 1


def test_texts_are_distinct_and_without_the_name_of_their_package():
    train, dev = corpora.pydoc()
    counts = collections.Counter(train.labels)
    assert len(counts) == 12 == len(set(dev.labels)) and set(dev.labels) == set(counts)
    assert 2000 < len(train) < 6000
    assert 0.10 < len(dev) / (len(train) + len(dev)) < 0.20
    assert min(counts.values()) >= 40
    assert len({*train.texts, *dev.texts}) == len(train) + len(dev)  # no copies, none across
    for side in (train, dev):
        for text, label in zip(side.texts, side.labels):
            assert label.lower() not in text.lower()
            assert text == " ".join(text.split()) and len(text.split()) >= corpora.MIN_WORDS
