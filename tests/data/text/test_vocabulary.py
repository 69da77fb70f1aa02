"""Vocabularies are read as bert4keras reads them, and learned identically in every process."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_xla.data.text import corpora
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.data.text.vocabulary import SPECIAL_TOKENS, fingerprint, load_vocab, train_vocab
from amp_xla.errors import DataError
from tests.running import run_python

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


words = st.lists(
    st.text(st.sampled_from("abc的好é"), min_size=1, max_size=6), min_size=1, max_size=20
)


@given(st.lists(words, min_size=1, max_size=5), st.integers(6, 60))
def test_size_and_spelling(texts: list, size: int) -> None:
    tokens = train_vocab(texts, size)
    assert tokens[:5] == list(SPECIAL_TOKENS)
    assert 5 < len(tokens) <= size and len(set(tokens)) == len(tokens)
    characters = {"##" + c for text in texts for word in text for c in word[1:]}
    characters |= {word[0] for text in texts for word in text}
    if 2 * len(characters) <= size - 5:  # then every word can be spelled
        assert characters <= set(tokens)
        tokenizer = Tokenizer(tokens, lowercase=False)
        for text in texts:
            ids, _ = tokenizer.encode([" ".join(text)]).row(0)
            assert tokenizer.unk_id not in ids


def test_ids_are_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes("\ufeff[PAD]\r\n[UNK]\r\n\r\n[CLS] 17\r\n[SEP]\r\n\u2028\r\na\r\na".encode())
    assert load_vocab(str(path)) == ["[PAD]", "[UNK]", "", "[CLS]", "[SEP]", "", "a", "a"]
    tokenizer = Tokenizer.load(str(path))
    assert (tokenizer.cls_id, tokenizer.sep_id, tokenizer.vocab_size) == (3, 4, 8)
    assert tokenizer.encode(["a b"]).row(0)[0] == [3, 7, 1, 4]  # of copies the last, as Google's


def test_files_that_are_no_vocabulary_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    with pytest.raises(DataError, match="no such file"):
        Tokenizer.load(str(path))
    for content, message in ((b"\xff\xfe\x00\x01", "not a UTF-8 voc"), (b"", r"without \[PAD\]")):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            Tokenizer.load(str(path))


def test_many_unknown_tokens_cause_a_warning_or_an_error() -> None:
    tokenizer = Tokenizer([*SPECIAL_TOKENS, "a", "b"])

    def warnings(text: str) -> str:
        return tokenizer.warnings(tokenizer.encode([text]))

    assert warnings("a b a b a b a b a 的") == ""
    said = warnings("a b a b a b 的 的")
    assert "25% of the tokens" in said and said.count("\n") == 1
    with pytest.raises(DataError, match="75% of the tokens of the training texts are .UNK."):
        warnings("a 的 的 的")
