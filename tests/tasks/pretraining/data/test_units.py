"""Documents of a corpus: all file formats, cut anywhere; bad input is named."""

from __future__ import annotations

import bz2
import gzip
import json
import sys

import pytest

from amp_xla.errors import DataError
from amp_xla.tasks.pretraining.data.units import Reading, files_of, texts_of, units

pytestmark = pytest.mark.once
TEXTS = [f"text {i} " + "of several words " * (i % 7) + "." for i in range(300)]


def corpus_texts(corpus, **options):
    """Return all documents of files, folders or globs, read with ``Reading(**options)``."""
    reading = Reading(**options)
    return [t for u in units(files_of(str(corpus)), reading) for t in texts_of(u, reading)[0]]


@pytest.fixture
def small_units(monkeypatch):
    monkeypatch.setattr("amp_xla.tasks.pretraining.data.units.UNIT_BYTES", (4096, 4096))


def compressed(suffix, data):
    if suffix == ".zst":
        zstandard = pytest.importorskip("zstandard", reason="reading .zst is an extra")
        return zstandard.ZstdCompressor().compress(data)
    return {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}[suffix](data)


@pytest.mark.parametrize("unit, ending", [(1, "\r\n"), (7, "\n"), (64, "\r\n"), (10_000, "\n")])
def test_units_cut_anywhere_and_documents_stay_whole(tmp_path, monkeypatch, unit, ending):
    monkeypatch.setattr("amp_xla.tasks.pretraining.data.units.UNIT_BYTES", (unit, unit))
    texts = TEXTS[:30]
    path = tmp_path / "a.txt"
    path.write_bytes((ending.join(texts)).encode())  # no line end at the end
    assert corpus_texts(path) == texts
    blocks = [f"{a}{ending}{b}" for a, b in zip(texts[::2], texts[1::2])]
    path.write_bytes((ending * 2 + (ending * 3).join(blocks) + ending * 4).encode())
    documents = corpus_texts(path, documents="blank")
    assert [text.split() for text in documents] == [block.split() for block in blocks]
    (whole,) = corpus_texts(path, documents="file")
    assert whole.split() == " ".join(blocks).split()


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".zst"])
def test_json_lines_and_compression(tmp_path, small_units, suffix):
    rows = [json.dumps({"id": i, "body": text}) for i, text in enumerate(TEXTS)]
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(compressed(suffix, "".join(row + "\n" for row in rows).encode()))
    assert len(list(units([str(path)], Reading()))) > 3
    assert corpus_texts(tmp_path, field="body") == TEXTS
    with pytest.raises(DataError, match="no field 'text'; found: 'id', 'body'; .*--field"):
        corpus_texts(path)
    with pytest.raises(DataError, match="id is 0; a text is a string"):
        corpus_texts(path, field="id")
    # A bad line is named by its place in the decompressed file.
    data = "".join(row + "\n" for row in [*rows[:200], "{", *rows[200:]]).encode()
    path.write_bytes(compressed(suffix, data))
    place = data.index(b"{\n")
    with pytest.raises(DataError, match=rf"a\.jsonl{suffix}, byte {place}: not JSON"):
        corpus_texts(path, field="body")


def test_parquet_is_read_as_json_lines(tmp_path, small_units):
    parquet = pytest.importorskip("pyarrow.parquet", reason="reading Parquet is an extra")
    table = sys.modules["pyarrow"].table({"id": list(range(len(TEXTS))), "text": TEXTS})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert corpus_texts(tmp_path) == TEXTS
    assert len(list(units([str(tmp_path / "a.parquet")], Reading()))) > 3


def test_several_fields_are_paragraphs_of_a_text(tmp_path):
    """As in CLUE's news2016zh, where a title or a description may be empty."""
    rows = [{"title": "标题", "desc": "", "content": "正文。"}, {"title": "", "content": "二"}]
    path = tmp_path / "news2016zh_valid.json"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    assert corpus_texts(path, field="title,content") == ["标题\n正文。", "二"]


@pytest.mark.parametrize("documents, count", [("line", 3), ("blank", 2), ("file", 1)])
def test_each_line_of_a_document_is_a_row(tmp_path, documents, count):
    path = tmp_path / "table.tsv"
    path.write_bytes("\ufeffa\tb\r\nc\td\r\n\r\n \n\ufeffe\tf\n".encode())
    for field, texts in (("0", "a c e"), ("1,0", "b a d c f e")):
        found = corpus_texts(path, field=field, documents=documents)
        assert len(found) == count and "\n".join(found).split("\n") == texts.split()
    with pytest.raises(DataError, match="2 tab-separated columns; none has number 3"):
        corpus_texts(path, field="0,3", documents=documents)


def test_json_lines_are_known_by_their_first_character(tmp_path, small_units):
    """As in CLUE's wiki_zh: AA/wiki_00, AA/wiki_01, ..."""
    for name in ("AA/wiki_00", "AA/wiki_01", "AB/wiki_00", "AB/notes"):
        path = tmp_path / f"{name}.bz2"
        path.parent.mkdir(exist_ok=True)
        rows = (json.dumps({"id": i, "text": f"{name} {i}"}) + "\n" for i in range(200))
        data = ("\ufeff" * (name == "AA/wiki_01") + "".join(rows)).encode()
        path.write_bytes(bz2.compress(data))
    names = ("AA/wiki_00", "AA/wiki_01", "AB/wiki_00")
    assert corpus_texts(tmp_path) == [f"{name} {i}" for name in names for i in range(200)]
    assert "AB/notes 199" in corpus_texts(f"{tmp_path}/A?/*.bz2")


@pytest.mark.parametrize("name, content, expected", [
    ("a.txt", '{"text": "x"}\n', "x"), ("A.JSONL", '{"text": "x"}\n', "x"),
    ("A.TXT", "x\n", "x"), ("a.txt", "{x}\ty\n", "{x}\ty"),
])  # fmt: skip
def test_the_kind_of_a_file(tmp_path, name, content, expected):
    (tmp_path / name).write_text(content)
    assert corpus_texts(tmp_path / name) == corpus_texts(tmp_path) == [expected]


UTF16 = "a text\nand another\n".encode("utf-16")
RETURNS = b"a text\rand another\r", r"a\.txt: only carriage returns end its lines"


@pytest.mark.parametrize("name, content, message, how", [
    ("A.XML", b"<page>\n<x>\n</page>\n", "A.XML is XML; needed: text, JSON lines, Parquet", {}),
    ("a.csv", b"text,label\nx,1\n", "a.csv is CSV; needed: text, JSON lines, Parquet", {}),
    ("a.tsv", b"text\tlabel\nx\t1\n",
     "a.tsv has columns separated by tabs; --field 0 reads the first", {}),
    ("a.txt.gz", UTF16, r"a\.txt.*: the file is UTF-16; UTF-8 is needed .iconv",
     {"on_bad_line": "skip"}),
    ("a.txt", *RETURNS, {}), ("a.txt", *RETURNS, {"documents": "file"}),
])  # fmt: skip
def test_what_cannot_be_read_is_named(tmp_path, name, content, message, how):
    # Compressed here: the file has the time, and workers compare the names of the cases.
    content = gzip.compress(content) if name.endswith(".gz") else content
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        corpus_texts(tmp_path / name, **how)


def test_folders_globs_and_lists_are_read_in_one_order(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "empty").mkdir()
    for name in ("b.txt", "a.txt", "sub/c.txt", "sub/notes.md", ".hidden.txt"):
        (tmp_path / name).write_text(f"text of {name}\n")
    expected = ["text of a.txt", "text of b.txt", "text of sub/c.txt"]
    assert corpus_texts(tmp_path) == expected
    assert corpus_texts(f"{tmp_path}/*.txt, {tmp_path}/sub") == expected
    with pytest.raises(DataError, match=r"nothing\.txt: no such file"):
        files_of(f"{tmp_path}/nothing.txt")
    with pytest.raises(DataError, match=r"corpus .*: has no file ending in \.txt"):
        files_of(f"{tmp_path}/empty")


@pytest.mark.parametrize(
    "bad, message", [(b"\0", "contains a NUL byte"), (b"\xff\xfe", "is not UTF-8: byte 5 is 0xff")]
)
def test_bad_text_is_named_or_left_out(tmp_path, bad, message):
    path = tmp_path / "bad.txt"
    path.write_bytes(b"good text\nbad " + bad + b" text\nmore\n")
    with pytest.raises(DataError, match=rf"bad\.txt, byte 10: {message}.*--on-bad-line skip"):
        corpus_texts(path)
    assert corpus_texts(path, on_bad_line="skip") == ["good text", "more"]
