"""Vocabularies are read as bert4keras reads them, and learned identically in every process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


def test_another_process_has_the_same_texts_and_learns_the_same_in_another_order() -> None:
    train, dev = corpora.pydoc()
    tokens = Tokenizer.train(train.texts, 3000).tokens
    assert len(tokens) == 3000
    done = run_python("-c", SCRIPT, env={"PYTHONHASHSEED": "1"})
    assert done.code == 0, done.err
    assert done.out.split() == [train.fingerprint(), dev.fingerprint(), fingerprint(tokens)]


def test_ids_are_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes("\ufeff[PAD]\r\n[UNK]\r\n\r\n[CLS] 17\r\n[SEP]\r\n\u2028\r\na\r\na".encode())
    assert load_vocab(str(path)) == ["[PAD]", "[UNK]", "", "[CLS]", "[SEP]", "", "a", "a"]
    tokenizer = Tokenizer.load(str(path))
    assert (tokenizer.cls_id, tokenizer.sep_id, tokenizer.vocab_size) == (3, 4, 8)
    # Of equal tokens the last counts, as in Google's tokenizer.
    assert ids_of(tokenizer.encode(["a b"]), 0)[0] == [3, 7, 1, 4]


def test_a_warning_about_jieba_is_printed_once(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    settings = '{"tokenizer_class": "RoFormerTokenizer", "do_lower_case": true}'
    (tmp_path / "tokenizer_config.json").write_text(settings)
    options = VocabularyOptions()
    for _ in range(2):
        assert options.defaults(str(tmp_path)) == {"lowercase": True}
    options.tokenizer([], str(tmp_path))
    assert capsys.readouterr().err.count("with jieba") == 1
