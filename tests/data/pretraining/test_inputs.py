"""The forms that published corpora have: CLUE's fields, names without an ending, bzip2."""

from __future__ import annotations

import bz2
import gzip
import json

import pytest

from amp_xla.errors import DataError
from tests.data.pretraining.corpus import corpus_texts


def test_several_fields_are_paragraphs_of_a_text(tmp_path):
    """As in CLUE's news2016zh, where a title or a description may be empty."""
    rows = [{"title": "标题", "desc": "", "content": "正文。"}, {"title": "", "content": "二"}]
    path = tmp_path / "news2016zh_valid.json"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    assert corpus_texts(path, field="title,content") == ["标题\n正文。", "二"]
    with pytest.raises(
        DataError, match=r"byte \d+: no text under 'desc' .--field.; found: 'title'"
    ):
        corpus_texts(path, field="title, desc")
    table = tmp_path / "table.tsv"
    table.write_text("a\tb\tc\n")
    assert corpus_texts(table, field="2,0") == ["c\na"]
    with pytest.raises(DataError, match="3 tab-separated columns, none is number 3"):
        corpus_texts(table, field="0,3")


@pytest.mark.parametrize("suffix", ["", ".bz2"])
def test_json_lines_are_known_by_their_first_sign(tmp_path, monkeypatch, suffix):
    """As in CLUE's wiki_zh: AA/wiki_00, AA/wiki_01, ..., found in a folder by these names."""
    monkeypatch.setattr("amp_xla.data.pretraining.units.UNIT_BYTES", (4096, 4096))
    for name in ("AA/wiki_00", "AA/wiki_01", "AB/wiki_00", "AB/notes"):
        path = tmp_path / (name + suffix)
        path.parent.mkdir(exist_ok=True)
        rows = (json.dumps({"id": i, "text": f"{name} {i}"}) + "\n" for i in range(200))
        data = ("\ufeff" * (name == "AA/wiki_01") + "".join(rows)).encode()
        path.write_bytes(bz2.compress(data) if suffix else data)
    expected = [
        f"{name} {i}" for name in ("AA/wiki_00", "AA/wiki_01", "AB/wiki_00") for i in range(200)
    ]
    assert corpus_texts(tmp_path) == expected
    assert "AB/notes 199" in corpus_texts(f"{tmp_path}/A?/*{suffix}")
    plain = tmp_path / f"clue_corpus{suffix}"  # as CLUECorpus2020: blank lines between documents
    data = "第一段\n第二段\n\n另一篇\n".encode()
    plain.write_bytes(bz2.compress(data) if suffix else data)
    found = corpus_texts(plain, documents="blank")
    assert [text.split() for text in found] == [["第一段", "第二段"], ["另一篇"]]


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2"])
def test_a_bad_line_has_its_place_in_the_unpacked_file(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr("amp_xla.data.pretraining.units.UNIT_BYTES", (4096, 4096))
    lines = [json.dumps({"text": f"text {i} " * 9}) for i in range(300)]
    lines[200] = "{"
    data = "".join(line + "\n" for line in lines).encode()
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes({"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}[suffix](data))
    place = data.index(b"{\n")
    with pytest.raises(DataError, match=rf"a\.jsonl{suffix}, byte {place}: not JSON"):
        corpus_texts(path)
