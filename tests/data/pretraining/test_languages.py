"""Documents in other languages are left out and counted."""

from __future__ import annotations

import pytest

from amp_xla.data.pretraining import prepare, selection
from amp_xla.errors import DataError

pytest.importorskip("py3langid", reason="telling languages apart is an extra")

TEXTS = {
    "en": [
        "The quick brown fox jumps over the lazy dog while seventeen cats are watching it.",
        "Returns a copy of the array, with its elements sorted along the given axis.",
    ],
    "zh": [
        "我来到北京清华大学，学习自然语言处理。",
        "这家酒店的服务很好，房间也很干净，下次还会再来。",
    ],
    "de": ["Der schnelle braune Fuchs springt über den faulen Hund, und alle sehen ihm zu."],
    "fr": ["Le vif renard brun saute par-dessus le chien paresseux, et tout le monde le regarde."],
    "ja": ["素早い茶色の狐がのろまな犬を飛び越えるのを、みんなで見ていました。"],
}


@pytest.mark.parametrize("code", sorted(TEXTS))
def test_a_language_is_found(code):
    assert [selection.language_of(text) for text in TEXTS[code]] == [code] * len(TEXTS[code])


@pytest.mark.parametrize("language, kept", [("en", ["en"]), ("zh, de", ["zh", "de"])])
def test_others_are_left_out_and_counted(tmp_path, language, kept):
    path = tmp_path / "some.txt"
    path.write_text("\n".join(t for texts in TEXTS.values() for t in texts) + "\nab\n", "utf-8")

    def prepared(out, language, vocab=None):
        config = prepare.Config(
            out=str(tmp_path / out), corpus=str(path), vocab_size=256, heldout=0.0, workers=1,
            shortest=10, language=language, vocab=vocab,
        )  # fmt: skip
        return prepare.prepare(config)

    found = prepared("out", language)
    count = sum(len(TEXTS[code]) for code in kept)
    assert found.counts["train"]["documents"] == count
    assert found.counts["other_languages"] == 7 - count and found.counts["other_lengths"] == 1
    assert f"{7 - count} documents in other languages left out" in found.describe()
    # The vocabulary is learnt from what stays.
    assert ("的" in found.tokenizer().tokens) == ("zh" in kept)
    with pytest.raises(DataError, match="language is"):
        prepared("out", None)
    with pytest.raises(DataError, match="is empty: no text of the given lengths and languages"):
        prepared("none", "sw")
    vocab = str(tmp_path / "out" / "vocab.txt")
    with pytest.raises(DataError, match="is empty.* 7 documents in other languages"):
        prepared("none", "sw", vocab)


def test_a_code_that_is_none_is_named(tmp_path):
    with pytest.raises(DataError, match=r"--language english: allowed are af, .*, zh, zu"):
        prepare.prepare(prepare.Config(out=str(tmp_path / "out"), language="en,english"))
    assert not (tmp_path / "out").exists()
