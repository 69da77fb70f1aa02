"""Every format gives the samples that were written; every bad line is named."""

import bz2
import gzip
import io
import json
import lzma
import os
import re
import sys
import tarfile
import zipfile

import pytest

from amp_xla.data.text import entities as tagged
from amp_xla.data.text import lines, unpacked
from amp_xla.data.text.labels import Scale
from amp_xla.data.text.layout import TARGETS, Layout
from amp_xla.data.text.lines import every_line
from amp_xla.data.text.options import TaggedFiles, TextFiles
from amp_xla.data.text.readers import Dataset, read
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import DataError
from amp_xla.tasks.pretraining.data.units import Reading, units
from amp_xla.tasks.reading.data import ReadingFiles
from amp_xla.tasks.relations.data import RelationFiles
from amp_xla.tasks.seq2seq.data import TargetFiles
from amp_xla.tasks.similarity.data import PairFiles

pytestmark = pytest.mark.once

TEXTS = ["good book", 'a "quoted" one', "第三本 很好\u2028really"]
PAIRS = ["yes", "no, why?", "也许"]
LABELS = ["1", "0", "1"]


def rows(*columns):
    return "".join("\t".join(row) + "\n" for row in zip(*columns))


def objects(**columns):
    names = list(columns)
    return "".join(
        json.dumps(dict(zip(names, row)), ensure_ascii=False) + "\n"
        for row in zip(*columns.values())
    )


FORMATS = {
    "plain.tsv": rows(TEXTS, LABELS),
    "pairs.tsv": rows(TEXTS, PAIRS, LABELS),
    "mrpc.tsv": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    + rows(LABELS, ["7"] * 3, ["8"] * 3, TEXTS, PAIRS),
    "cola.tsv": rows(["gj04"] * 3, LABELS, ["*"] * 3, TEXTS),
    "comma.csv": 'label,review\n1,good book\n0,"a ""quoted"" one"\n\n1,第三本 很好\u2028really\n',
    "own_names.tsv": "Stars\tWhat they said\n" + rows(LABELS, TEXTS),
    "clue.json": objects(sentence1=TEXTS, sentence2=PAIRS, label=LABELS),
    "own_keys.jsonl": objects(a=TEXTS, b=PAIRS, c=LABELS),
    "json_by_content.txt": objects(text=TEXTS, label=LABELS),
    "gzip_by_content.tsv": gzip.compress(rows(TEXTS, LABELS).encode()),
    "two_marks.csv": "\ufeff\ufeff"
    'text,label\n"good book",1\n"a ""quoted"" one",0\n'
    "第三本 很好\u2028really,1\n",
    "appended.tsv": "\ufeff" + rows(TEXTS, LABELS).replace("\n", "\n\ufeff", 2),
    "two_marks.json": "\ufeff\ufeff" + objects(text=TEXTS, label=LABELS),
    "windows.tsv": rows(TEXTS, LABELS).replace("\n", "\r\n"),
    "blank_lines.tsv": "\n" + rows(TEXTS, LABELS).replace("\n", "\n\n  \n"),
}
WITH_PAIRS = ("pairs.tsv", "mrpc.tsv", "clue.json", "own_keys.jsonl")
FIELDS = {
    "cola.tsv": {"text_field": "3", "label_field": "1"},
    "own_names.tsv": {"text_field": "What they said", "label_field": "Stars"},
    "own_keys.jsonl": {"text_field": "a", "pair_field": "b", "label_field": "c"},
}


@pytest.mark.parametrize("name", [*sorted(FORMATS), "plain.tsv.gz", "clue.json.gz"])
def test_formats(file, name):
    plain = name.replace(".gz", "")
    data = read(file(name, FORMATS[plain]), **FIELDS.get(plain, {}))
    assert (data.texts, data.labels) == (TEXTS, LABELS)
    assert data.pairs == (PAIRS if plain in WITH_PAIRS else None)
    assert data.bad_lines == []


def test_labels_of_any_kind(file):
    labels = ["体育", 3, 0.5, True, False, " padded "]
    path = file("a.jsonl", objects(text=["x"] * 6, label=labels))
    assert read(path).labels == ["体育", "3", "0.5", "true", "false", "padded"]


def test_standard_input(monkeypatch):
    class Stdin:
        buffer = io.BytesIO("one\t1\ntwo 二\t0\n".encode())

    monkeypatch.setattr("sys.stdin", Stdin)
    data = read("-")
    assert data.texts == ["one", "two 二"] and data.labels == ["1", "0"]
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(DataError, match="standard input is closed"):
        read("-")


BAD = [
    (b"no tab at all", "1 column, not 2"),
    (b"a\tb\tc", "3 columns, not 2"),
    (b"\t1", "text is empty"),
    (b"text\t ", "label is empty"),
    (b"caf\xe9\t1", "not UTF-8: byte 4 is 0xe9"),
    (b"nul \0 byte\t0", "NUL"),
    (b'{"text": "cut off', "not JSON"),
    (b'["text", 1]', "not an object"),
    (b'{"label": 1}', "no field 'text'"),
    (b'{"text": "x"}', "no field 'label'"),
    (b'{"text": 7, "label": 1}', "text is 7"),
    (b'{"text": "x", "label": null}', "label is null"),
    (b'{"text": "x", "label": [1, 2]}', "several labels need --multilabel ,"),
    (b'{"text": "x", "label": [1, 0, 0]}', "needed: names of labels, not 0 or 1 per label"),
    (b'{"text": "x", "label": []}', "label is []"),
    (b'{"text": "x", "label": NaN}', "label is NaN"),
    (b'{"text": "", "label": 1}', "text is empty"),
    (b'{"text": "\\ud83d", "label": 1}', "half a surrogate pair"),
    (b'{"text": "a\\u0000b", "label": 1}', "NUL"),
]


@pytest.mark.parametrize("line, reason", BAD)
def test_bad_lines_are_named_with_file_and_number(file, line, reason):
    good = [b"good\t1\n\n", b"\ngood too\t0\n"]
    if line[:1] in b"{[":
        good = [b'{"text": "good", "label": 1}\n\n', b'\n{"text": "good too", "label": 0}\n']
    path = file("a.txt", line.join(good))
    with pytest.raises(DataError) as error:
        read(path)
    assert f"{path}:3: " in str(error.value) and reason in str(error.value)
    assert "1 of 3 lines" in str(error.value) and "--on-bad-line skip" in str(error.value)
    assert "\n" not in str(error.value)  # an error is one line
    data = read(path, on_bad_line="skip")
    assert data.texts == ["good", "good too"] and data.labels == ["1", "0"]
    ((name, number, why),) = data.bad_lines
    assert (name, number) == (path, 3) and reason in why
    assert data.warnings().startswith(f"\nwarning: 1 lines left out, such as {path}:3: ")


def test_a_reason_is_given_once(file):
    path = file("a.tsv", "a\t1\nb\t0\n" + "c\n" * 40 + "d\t \n")
    with pytest.raises(DataError) as error:
        read(path)
    assert str(error.value) == (
        f"{path}: 41 of 43 lines cannot be used: {path}:3: 1 column, not 2 (40 times); "
        "line 43: label is empty; correct them, or leave them out with --on-bad-line skip"
    )
    objects = '{"text": 1, "label": 1}\n' * 9
    with pytest.raises(DataError, match="no sample is left: is it the right file") as error:
        read(file("a.json", objects))
    assert "UTF-8" not in str(error.value) and "(9 times)" in str(error.value)
    for objects in ('{"text": "x", "label": {"%s": 1}}', '{"text": ["%s"], "label": 1}'):
        lines = "".join(objects % f"a {n}" + "\n" for n in range(9))
        with pytest.raises(DataError, match="cannot be used: [^;]*(; a [^;]*)?9 times.;"):
            read(file("a.json", lines))
    for labels, advice in (("good bad", "recipe classification"), ("good 2", "correct them")):
        lines = "".join(f"some text\t{label}\n" for label in labels.split())
        with pytest.raises(DataError, match=f"a number is needed, .*; {advice}"):
            read(file("a.tsv", lines), numbers=True, header="no")


UNUSABLE = [
    ("a.tsv", b"", {}, "empty"),
    ("a.tsv", "text\tlabel\n", {}, "no sample below"),
    ("a.csv", 'gut,"so, ""so""",1\n', {"header": "yes"}, "no sample below"),
    ("a.tsv", "gut\t7 x\n", {"header": "yes"}, "no sample below"),
    ("a.tsv", "text\t1\n".encode("utf-16-le"), {}, "UTF-16"),
    ("a.tsv.gz", "text\t1\n".encode("utf-16-be"), {}, "UTF-16"),
    ("a.tsv", "text\t1\n".encode("utf-32"), {}, "is UTF-32; .* -f UTF-32"),
    ("a.tsv", "text\t1\rtwo\t0\r", {}, "a.tsv: only carriage returns end its lines; .*[(]tr "),
    ("a.csv", "text,label\ra,1", {}, "a.csv: only carriage returns"),
    ("a.csv", "text,label\ra,1\r\n", {}, "a.csv: only carriage returns"),
    ("a.csv", b'review,label\n"never closed,1\n' + b"x\n" * 70_000, {}, "a.csv:.*quotation mark"),
    ("a.tsv", b"a\tb\tc\td\n", {}, "4 columns separated"),
    ("a.tsv", b"1\ta\tb\n", dict(needs=("text", "pair"), known=TARGETS), "3 columns separated"),
    ("a.json", b'[{"text": "x", "label": 1},\n{"text"', {}, "a.json:2: not JSON"),
    ("a.json", b'[{"text": "x", "label": 1},\n', {}, "a.json:1: the JSON array has no end"),
    ("a.json", b"hello\n", {}, "not a JSON object"),
    ("a.jsonl", b'{"x": "a", "y": 1}\n', {}, "found: 'x', 'y'"),
    ("a.json", '{"text": "x", "label": 1}\n{"pair": "z"}', {}, "a.json:1: no field 'pair'"),
    ("a.jsonl", b'{"text": "a", "y": 1}\n', {"label_field": "z"}, "'z'.*found: 'text', 'y'"),
    ("a.tsv", b"s\tl\na\t1\n", {"text_field": "t"}, "'t' for --text-field; found: 's', 'l'"),
    ("a.tsv", b"a\t1\n", dict(text_field="0", label_field="2"), "'2' for --lab.*found: '0', '1'"),
    ("a.tsv", b"a\t1\n", {"text_field": "0"}, "which field is the label"),
    ("a.tsv", b"text\ttext\tlabel\nx\ty\t1\n", {}, "2 columns are named 'text'; rename them"),
    ("a.csv", b"N,q,N\nx,y,1\n", dict(text_field="1", label_field="0", header="yes"), "named 'N'"),
    ("a.tsv", b"text\tLABEL\tlabel\nx\ty\t1\n", {}, "LABEL and label may be the label"),
    ("a.tsv", b"s\tl\na\t1\n", {"text_field": "s", "label_field": "0"}, "'s' .* text and label"),
]


@pytest.mark.parametrize("name, content, options, message", UNUSABLE)
def test_unusable_files(file, name, content, options, message):
    with pytest.raises(DataError, match=message):
        read(file(name, content), **options)


def test_parquet_is_read_as_the_json_lines_that_it_would_be(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="reading Parquet is an extra")
    file = tmp_path / "train-00000-of-00001"  # any name
    path = str(file)
    columns = {"idx": [3, 1, 2], "sentence1": TEXTS, "sentence2": PAIRS, "label": LABELS}
    arrow = sys.modules["pyarrow"]
    parquet.write_table(arrow.table(columns), path, row_group_size=2)
    data = read(path)
    assert (data.texts, data.pairs, data.labels) == (TEXTS, PAIRS, LABELS)
    assert every_line(path) == (objects(**columns).split("\n")[:-1], [])
    content = file.read_bytes()
    odd = {
        "at": arrow.array([1, 2, 3], arrow.timestamp("ns")), "image": [b"\xff", None, b"x"],
        "zone": arrow.array([0] * 3, arrow.timestamp("us", "Mars/Phobos")), "label": LABELS,
        "day": arrow.array([2**30] * 3, arrow.date32()), "text": [text.encode() for text in TEXTS],
    }  # fmt: skip
    parquet.write_table(arrow.table(odd), path, version="2.6")
    assert read(path).texts == TEXTS
    name = content.replace(b"sentence1", b"\xffentence1")
    for damaged in (content[:-20], content[:200] + bytes(200) + content[400:], name):
        (tmp_path / "damaged.parquet").write_bytes(damaged)
        with pytest.raises(DataError, match="damaged Parquet file[^\n]*$"):
            read(str(tmp_path / "damaged.parquet"))


@pytest.mark.parametrize("kind, how, train, dev", [
    (TextFiles, {}, rows(TEXTS, LABELS), "good\t1\n"),
    (PairFiles, {"needs": ("text",)}, "one\ntwo\n三\n", "a\tb\t1\n"),
    (TargetFiles, {}, rows(TEXTS, PAIRS), "good\tyes\n"),
    (TaggedFiles, {"nested": False}, "a B-x\n\nb O\n\nc O\n", "a B-x\n"),
    (RelationFiles, {}, 3 * '{"text": "a", "spo_list": []}\n', '{"text": "b", "spo_list": []}'),
])  # fmt: skip
def test_counted_files_are_not_read_again(kind, how, train, dev, file, monkeypatch):
    """``--bert`` has defaults that depend on the number of texts."""
    names = file("a.txt", train), file("b.txt", dev)
    opened = []

    def read_bytes(path, *rest):
        opened.append(path)
        return original(path, *rest)

    original = lines.read_bytes
    monkeypatch.setattr(lines, "read_bytes", read_bytes)
    files = [kind(train=names[0], dev=names[1], train_fraction=part) for part in (1.0, 1.0, 0.1)]
    assert files[0].count(**how) == 3
    assert [len(part) for part in files[1].read(1, **how)] == [3, 1]
    assert sorted(opened) == sorted(names)
    assert files[2].count(**how) == 1 and len(files[2].read(1, **how)[0]) == 1
    file("a.txt", b"\xff\xfe")
    assert files[0].count(**how) == 0  # and ``read`` names the damage
    with pytest.raises(DataError, match="UTF-16"):
        files[0].read(1, **how)


def test_fingerprint_sees_where_a_text_ends():
    values = [Dataset(["ab"], None, ["c"]), Dataset(["a", "b"], None, ["c", "c"]), Dataset(["abc"])]
    values += [Dataset(["ab"], ["c"]), Dataset(["ab"], ["c"], ["c"])]
    values += [Dataset([]), Dataset([], [], [])]
    assert len({value.fingerprint() for value in values}) == len(values)
    # Runs are recognised by it and by these files: they must not change with the version.
    expected = "8e0f2228adeb9a751df661f56f2837817f662a6f8f01f2d59d119fccca6baf27"
    assert values[0].fingerprint() == expected
    assert Scale(0.5, 5.0, True).encoded() == b'{"low": 0.5, "high": 5.0, "binary": true}\n'
    layout = Layout("json", False, ("\ud800中",), 0).encoded().decode()
    assert layout.startswith('{"format": "json", "header": false, "columns": ["\\ud800中"], "text"')
    settings = Tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]"]).assets["tokenizer_config.json"]
    assert settings.startswith(b'{"do_lower_case": true, "strip_accents": null, "tokenize_')


def zipped(**members):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return content.getvalue()


COMMAS = "text,label\n" + "".join(f'"{text}, {i}",{i % 2}\n' for i, text in enumerate("abc"))


@pytest.mark.parametrize("name, content", [
    ("a.csv.xz", lzma.compress(COMMAS.encode())), ("a.csv", lzma.compress(COMMAS.encode())),
    ("a.csv", COMMAS.encode()),
    ("a.csv", bz2.compress(COMMAS.encode())), ("a.csv.zip", zipped(**{"a.csv": COMMAS})),
    ("archive.zip", zipped(**{"IMDB Dataset.csv": COMMAS, "__MACOSX/._IMDB": "x"})),
    ("archive.zip", zipped(**{"a/a.csv": COMMAS, "a/.DS_Store": "x"})),
    ("a.csv", zipped(**{"data/": "", "data/train.txt": COMMAS})),
])  # fmt: skip
def test_compressed_files_are_known_by_content(file, name, content):
    data = read(file(name, content))
    assert data.texts == ["a, 0", "b, 1", "c, 2"] and data.labels == ["0", "1", "0"]
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    assert TextFiles(train=f"/dev/fd/{reading}").count() == 0  # it can be read only once
    assert unpacked.read_bytes(f"/dev/fd/{reading}").decode() == COMMAS
    os.close(reading)


BOMB = "text,label\n" + "a" * (8 << 20)
BOMBS = [gzip.compress(BOMB.encode()), bz2.compress(BOMB.encode()), lzma.compress(BOMB.encode())]


@pytest.mark.parametrize("content", [*BOMBS, zipped(**{"a.csv": BOMB}), BOMB.encode()])
def test_a_file_that_would_fill_the_memory_is_refused(file, monkeypatch, content):
    path = file("a.csv", content)
    assert len(unpacked.read_bytes(path)) == len(BOMB)
    for name in ("_SMALL", "MEMORY"):
        monkeypatch.setattr(unpacked, name, 1 << 20)
    for use in (read, tagged.read, unpacked.read_bytes):
        with pytest.raises(DataError, match=r"1,048,576 bytes, (over 100 times|a quarter)"):
            use(path)
    reading, writing = os.pipe()
    os.write(writing, b"PK\x03\x04" + bytes(1000))
    os.close(writing)
    monkeypatch.setattr(unpacked, "MEMORY", 1000)
    with pytest.raises(DataError, match="larger than 1,000 bytes, a quarter of the memory"):
        unpacked.read_bytes(f"/dev/fd/{reading}")
    os.close(reading)


def archive(name):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name), None)
    return content.getvalue()


PACKED = gzip.compress(rows(TEXTS, LABELS).encode() * 50)
NEWER = zipped(x=COMMAS).replace(b"PK\x01\x02\x14\x03\x14", b"PK\x01\x02\x14\x03\x86")
FLIPPED = PACKED[:60] + bytes([PACKED[60] ^ 16]) + PACKED[61:]


@pytest.mark.parametrize("name, content, said", [
    ("two.zip", zipped(**{"train.csv": COMMAS, "dev.csv": COMMAS}), "of 2 files .train.csv, dev"),
    ("a.xlsx", zipped(**{"[Content_Types].xml": "", "xl/workbook.xml": ""}), "save it as CSV"),
    ("a.zip", zipped(x=COMMAS)[:-30], "damaged zip file"), ("a.zip", NEWER, "zip file version 13"),
    ("a.xz", b"abc", "damaged xz file"), ("a.gz", PACKED[:-20], "damaged gz file"),
    ("a.gz", FLIPPED, "damaged gz file"),
    ("a.tsv.gz", b"a\t1\n", "damaged gz file: Not a gzipped file"),
    ("a.parquet.gz", gzip.compress(b"PAR1\x15\x04"), "is Parquet that was compressed again"),
    ("a.xls", b"\xd0\xcf\x11\xe0\xa1\xb1", "is Excel: save it as CSV"),
    ("a.tar.gz", gzip.compress(archive("train.csv")), "is an archive: unpack it"),
    ("a.csv", b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS: `git lfs"),
    ("a.gz", gzip.compress(PACKED), "compressed twice"),
    ("a.zip", zipped(x=lzma.compress(PACKED)), "compressed twice"),
    ("a.txt", b"%PDF-1.4\n%\xc4\xe5", "is no text; text, CSV or JSON lines are needed"),
    ("a.bin", bytes(range(256)) * 2 + bytes(400), "not text: 402 of its first 912 bytes"),
])  # fmt: skip
def test_other_formats_are_named_with_the_way_to_read_them(file, tmp_path, name, content, said):
    path = str(tmp_path / name)
    (tmp_path / name).write_bytes(content)
    for use in (read, tagged.read, lambda path: list(units([path], Reading()))):
        with pytest.raises(DataError, match=said) as error:
            use(path)
        assert "iconv" not in str(error.value) and "\n" not in str(error.value)


TRIPLES = {"text": "Ann leads Corp", "spo_list": [["Ann", "leads", "Corp"]]}
ANSWERS = {"question": "Where?", "context": "Ann is in Rome", "answers": ["Rome"]}


@pytest.mark.parametrize("good, changes, message", [
    (TRIPLES, {"spo_list": None}, "the field spo_list or triple_list must be a list"),
    (TRIPLES, {"spo_list": "x"}, "the field spo_list or triple_list must be a list"),
    (TRIPLES, {"spo_list": [["x", "y"]]}, 'triple ["x", "y"]'),
    (TRIPLES, {"spo_list": [{"subject": "x", "object": "y"}]}, "these keys"),
    (TRIPLES, {"spo_list": [["x", "y", ""]]}, "three texts"),
    (TRIPLES, {"spo_list": [["x", "y", {}]]}, "three texts"),
    (TRIPLES, {"spo_list": [3]}, "triple 3"), (TRIPLES, {"text": None}, "text is null"),
    (ANSWERS, {"context": None}, "context is null"), (ANSWERS, {"question": " "}, "is empty"),
    (ANSWERS, {"answers": None}, "answers: null; needed: a list of texts"),
    (ANSWERS, {"answers": [{"text": 3}]}, 'answers: [{"text": 3}]'),
    (ANSWERS, {"answers": ["\ud83d"]}, "answers: character 1 is half a surrogate pair"),
    (ANSWERS, {"answers": [{"text": "a", "answer_start": "0"}]}, "text and answer_start"),
    (ANSWERS, {"answers": {"text": ["a"], "answer_start": []}}, "text and answer_start"),
    (ANSWERS, {"paragraphs": "x"}, "must be lists of objects"),
    (ANSWERS, {"paragraphs": [{"qas": 1}]}, "must be lists of objects"),
])  # fmt: skip
def test_a_bad_record_is_named_with_its_line(file, good, changes, message):
    kind = RelationFiles if good is TRIPLES else ReadingFiles
    path = file("bad.jsonl", "".join(f"{json.dumps(x)}\n" for x in (good, {**good, **changes})))
    with pytest.raises(DataError, match=f"{path}:2:.*{re.escape(message)}"):
        kind().dataset(path)
    assert len(kind(on_bad_line="skip").dataset(path)) == 1
    named = "spo_list or triple_list" if good is TRIPLES else "question, context and answers"
    with pytest.raises(DataError, match=f"a.tsv:1: not JSON.*{named}"):
        kind().dataset(file("a.tsv", "Ann leads\tB-person\n"))
