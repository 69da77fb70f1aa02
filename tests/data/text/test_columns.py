"""What the columns of a file are: no header is read as a sample, no id as a text."""

import json
import re
import subprocess

import pytest

from amp_xla.data.labelled import BatchOptions, Preparation
from amp_xla.data.text.layout import LABELLED_PAIRS, TARGETS, Layout
from amp_xla.data.text.options import TextFiles, VocabularyOptions
from amp_xla.data.text.readers import questions, read
from amp_xla.errors import DataError
from amp_xla.tasks.classification.data import read as read_labelled
from amp_xla.tasks.seq2seq.data import TargetFiles

pytestmark = pytest.mark.once

TARGET = dict(needs=("text", "pair"), known=TARGETS)
PAIR = dict(needs=LABELLED_PAIRS, numbers=True)


def rows(kinds, count=12, separator="\t"):
    """Rows of columns: t a text, l a label of two, n a number from 0 to 4, i an id, e nothing."""
    cell = {
        "t": lambda i, j: f"some words {i * 7} and more {j}",
        "l": lambda i, j: "good" if i % 2 else "bad",
        "n": lambda i, j: str(i * 3 % 5),
        "i": lambda i, j: str(1001 + i),
        "c": lambda i, j: f"eeb{i * 37 % 1000:03d}x",
        "w": lambda i, j: "sports" if i % 3 else "news",
        "e": lambda i, j: "",
        "s": lambda i, j: "very good" if i % 2 else "not so good",
        "d": lambda i, j: f"{i + 1}/3/2023 9:{i:02d} PM",
        "p": lambda i, j: f"{i},50 €",
        "z": lambda i, j: f"-{i},25",
        "f": lambda i, j: f"2023-03-0{i % 4} 12:00:00",
    }
    table = ([cell[k](i, j) for j, k in enumerate(kinds)] for i in range(count))
    return "".join(separator.join(row) + "\n" for row in table)


# (header, kinds of its columns, arguments): 36 headers, most of them of public files.
HEADERS = [
    ("comment,label", "tl", {}), ("comment,sentiment", "tl", {}), ("text,intent", "tl", {}),
    ("评论内容,标签", "tl", {}), ("s1,s2,label", "ttl", {}), ("class,message,,,", "lteee", {}),
    ("v1,v2,,,", "lteee", {}), ("label,review", "lt", {}), ("utterance,goal", "tl", {}),
    ("id,comment_text,toxic", "itn", {}), ("tweet,airline_sentiment", "tl", {}),
    ("Summary,Score", "tn", {}), ("Überschrift,Klasse", "tl", {}), ("文章,分类", "tl", {}),
    ("q1,q2,same", "ttn", {}), ("q1,q2,same", "ttn", PAIR), ("sent_a,sent_b,gold", "ttl", {}),
    (",text,label", "itl", {}), ("0,1", "tl", {}), ("text,label", "tl", {}),
    ("headline,is_sarcastic", "tn", {}), ("Message,Category", "tl", {}), ("body,stars", "tn", {}),
    ("question,answer", "tt", TARGET), ("frage,antwort", "tt", TARGET), ("en,de", "tt", TARGET),
    ("input,output", "tt", TARGET), ("dialogue,headline", "tt", TARGET),
    ("原文,摘要", "tt", TARGET),
    ("sentence1,sentence2,similarity", "ttn", PAIR), ("a,b,score", "ttn", PAIR),
    ("premise,hypothesis,label", "ttl", {}), ("index,sentence1,sentence2,score", "ittn", PAIR),
    ("qid,label,text_a", "ilt", {}), ("title,content,label", "ttl", {}),
    ("text,label,category", "tll", {}),
]  # fmt: skip


@pytest.mark.parametrize("end", [".csv", ".tsv", ".CSV"])
@pytest.mark.parametrize("number", range(len(HEADERS)))
def test_no_header_is_a_sample(file, number, end):
    header, kinds, how = HEADERS[number]
    separator = "\t" if end == ".tsv" else ","
    header = header.replace(",", separator)
    path = file(f"a{end}", f"{header}\n{rows(kinds, separator=separator)}")
    try:
        data = read(path, **how)
    except DataError as error:
        assert "--header no" in str(error) or "-field" in str(error)
        assert "\n" not in str(error)
        return
    assert len(data) == 12 and data.layout.header
    assert set(data.labels or []) <= {"good", "bad", *"01234"}
    assert all(text.startswith("some words") for text in data.all_texts)


@pytest.mark.parametrize("name, kinds, how, columns", [
    ("a.tsv", "itl", {}, "columns: text = 1, label = 2 (no header); 0 unused"),
    ("a.tsv", "ttl", {}, "columns: text = 0, pair = 1, label = 2 (no header)"),
    ("a.tsv", "ittl", {}, "columns: text = 1, pair = 2, label = 3 (no header); 0 unused"),
    ("a.csv", "tlee", {}, "columns: text = 0, label = 1 (no header); 2, 3 unused"),
    ("a.tsv", "tlc", {}, "columns: text = 0, label = 1 (no header); 2 unused"),
    ("a.tsv", "tnc", {}, "columns: text = 0, label = 1 (no header); 2 unused"),  # GoEmotions
    ("a.tsv", "itt", TARGET, "columns: text = 1, pair = 2 (no header); 0 unused"),
    ("a.tsv", "ittn", PAIR, "columns: text = 1, pair = 2, label = 3 (no header); 0 unused"),
    ("a.tsv", "ntl", {}, None), ("a.tsv", "lt", {}, None), ("a.tsv", "twl", {}, None),
    ("a.tsv", "tli", {}, None), ("a.tsv", "nt", {}, None), ("a.csv", "wt", {}, None),
    ("a.tsv", "it", {}, None), ("a.tsv", "ct", {}, None), ("a.tsv", "ttt", {}, None),
    ("a.tsv", "cl", {}, "columns: text = 0, label = 1 (no header)"),
    ("a.tsv", "dtl", {}, "columns: text = 1, label = 2 (no header); 0 unused"),
    ("a.tsv", "itz", {}, "columns: text = 1, label = 2 (no header); 0 unused"),
    ("a.tsv", "tlp", {}, "columns: text = 0, label = 1 (no header); 2 unused"),
    ("a.tsv", "ftl", {}, None), ("a.tsv", "pt", {}, None), ("a.tsv", "dl", {}, "columns: text = 0"),
    ("a.tsv", "tsl", {}, None), ("a.csv", "tsn", {}, None), ("a.csv", "st", {}, None),
])  # fmt: skip
def test_without_a_header_ids_are_not_texts(file, name, kinds, how, columns):
    separator = "," if name == "a.csv" else "\t"
    path = file(name, rows(kinds, separator=separator))
    if columns is not None:
        assert str(read(path, **how).layout).startswith(columns)
    else:
        with pytest.raises(DataError, match=r"--text-field . .*, or --text-field . "):
            read(path, **how)


def test_flags_decide(file):
    lines = rows("lt")
    path = file("a.tsv", "class\tmessage\n" + lines)
    data = read(path, text_field="1", label_field="0")
    assert len(data) == 12 and set(data.labels or []) == {"good", "bad"}
    assert str(data.layout) == 'columns: text = 1 "message", label = 0 "class" (header)'
    assert len(read(path, text_field="1", label_field="0", header="no")) == 13
    path = file("a.tsv", "utterance\tgoal\n" + rows("tl"))
    assert len(read(path, header="yes")) == 12 and len(read(path, header="no")) == 13
    data = read(path, text_field="utterance", label_field="goal")
    assert str(data.layout) == 'columns: text = 0 "utterance", label = 1 "goal" (header)'
    path = file("spam.csv", "v1,v2,,,\n" + rows("lteee", separator=","))
    assert str(read(path, "v2", None, "v1").layout).endswith('; 2 "", 3 "", 4 "" unused')
    header = "text\tlabel\n"  # of two files that were joined
    path = file("a.tsv", header + rows("tl") + header + rows("tl"))
    with pytest.raises(DataError, match="the header again"):
        read(path)
    assert len(read(path, on_bad_line="skip")) == 24


REVIEW = '<sentence><text>some {1}</text><Opinions><Opinion polarity="{0}"/></Opinions></sentence>'


@pytest.mark.parametrize("line, around", [
    ("__label__{} some {}, words", "{}"), ("__label__a __label__{} some {} words", "{}"),
    ("ABC:{} some {} words?", "{}"), (REVIEW, "<?xml version='1.0'?><a>{}</a>"),
    (REVIEW, "<sentences>{}</sentences>"),
])  # fmt: skip
def test_the_program_that_converts_another_format(file, tmp_path, line, around):
    lines = (line.format("bad" if i % 2 else "good", i) for i in range(18))
    path = file("a.txt", around.format("\n".join(lines)))
    with pytest.raises(DataError) as error:
        read(path)
    words = re.search("(sed|python) .*new-file", str(error.value)).group().replace("FILE", path)
    subprocess.run(["sh", "-c", words], cwd=str(tmp_path), check=True)
    data = read(str(tmp_path / "new-file"))
    assert len(data) == 18 and data.texts[7].startswith("some 7")
    assert data.labels[1].endswith("bad") and "_" not in data.labels[0]


@pytest.mark.parametrize("content, columns, count", [
    ('[{"text": "x", "label": 1},\n {"text": "y", "label": 0}]\n', "text = \"text\"", 2),
    ('{\n "text": "x",\n "label": 1\n}\n{\n "text": "y",\n "label": 0\n}\n', "text = \"text\"", 2),
    ('{"text": "x", "label": 1}{"text": "y", "label": 0}', "text = \"text\"", 2),
    ('{"text": "x", "label": 1, "\\ud83d": 0}\n', '"\ud83d" unused', 1),
    ('{"id": 1, "text_a": "x", "text_b": "", "label": 1}\n' * 3, '"id", "text_b" unused', 3),
    ('{"text_a": "x", "text_b": null, "label": 1}\n' * 3, '"text_b" unused', 3),
    ('{"data": [{"text": "x", "label": 1}, {"text": "y", "label": 0}]}', "text = \"text\"", 2),
    ('{"v": 1,\n "data": [\n{"text": "x", "label": ["a"]}]}', "text = \"text\"", 1),
    ('{"data": "x", "text": "y", "label": 1}', '"data" unused', 1),
    ('{"label": 1, "label_desc": "a", "sentence": "x", "keywords": ""}\n' * 3,  # TNEWS
     'text = "sentence", label = "label" (JSON); "label_desc", "keywords" unused', 3),
])  # fmt: skip
def test_json(file, content, columns, count):
    data = read(file("a.json", content))
    assert len(data) == count and data.pairs is None and columns in str(data.layout)
    assert Layout.load(file("layout.json", data.layout.encoded().decode())) == data.layout


FEW = ["body,topic", "留言,标注", "Satz,Etikett", "étoiles,avis", "q1,q2,is_dup"]


@pytest.mark.parametrize("header", FEW)
@pytest.mark.parametrize("count", [3, 4, 6])
def test_the_header_of_a_small_file_is_no_sample(file, header, count):
    kinds = {"q1,q2,is_dup": "ttw", "étoiles,avis": "wt"}.get(header, "tw")
    content = f"{header}\n{rows(kinds, count, ',')}"
    with pytest.raises(DataError, match="a header. .*--header no"):
        read(file("a.csv", content))


def test_an_english_header_above_short_chinese_texts_is_no_sample(file):
    lines = "".join(f"{word}很好,class_{n}\n" for n, word in enumerate("天地人大中小上下"))
    with pytest.raises(DataError, match="only 'body' is ASCII"):
        read(file("a.csv", "body,topic\n" + lines))
    assert len(read(file("a.csv", lines))) == 8


def test_keys_that_are_texts_are_one_short_line(file):
    labels = {f"some words {i}": "good" for i in range(5000)}
    with pytest.raises(DataError, match="which field is the text") as error:
        read(file("a.json", json.dumps(labels)))
    assert len(str(error.value)) < 700


def test_quotation_marks_of_a_table_with_tabs_are_named(file):
    quoted = "text\tlabel\n" + '"some words"\tgood\n' * 12
    assert "12 texts are between quotation marks" in read(file("a.tsv", quoted)).remark
    data = read(file("a.tsv", quoted.replace("good", '"good"')))
    assert data.texts == ["some words"] * 12 and data.labels == ["good"] * 12 and not data.remark
    lines = rows("tl", 9) + '"he said ""so"""\tgood\n'
    assert read(file("a.tsv", lines)).texts[-1] == 'he said "so"'
    data = read(file("a.tsv", lines + '"so" he said\tgood\n'))
    assert "1 texts are between quotation marks" in data.remark and data.texts[-1] == '"so" he said'
    assert not read(file("a.tsv", rows("tl") + '"so" he said\tgood\n')).warnings()
    long = '"{}",good\n'.format("a document " * 20_000) + rows("tl", separator=",")
    assert len(read(file("a.csv", long))) == 13


def layout_of(file, name, content, **how):
    layout = read(file(name, content), **how).layout
    assert Layout.load(file("layout.json", layout.encoded().decode())) == layout
    return layout


@pytest.mark.parametrize("stored", [
    "", "[]", "{}", '{"format": "tab", "header": false, "columns": ["0"], "text": 1}',
    '{"format": "tab", "header": false, "columns": ["0"], "text": "0"}',
    '{"format": "tab", "header": false, "columns": 7, "other": 1}',
])  # fmt: skip
def test_a_layout_that_somebody_made_up_is_one_line(file, stored):
    with pytest.raises(DataError, match="cannot use .*layout.json: "):
        Layout.load(file("layout.json", stored))


GLUE = "index,sentence1,sentence2,label"
STS_B = "index,genre,filename,year,old_index,source1,source2,sentence1,sentence2,score"
NAMES = 'the training file has: columns: text = 1 "review", label = 0 "label"'
QUESTIONS = [
    # header of the training file, its kinds, file to predict, its inputs or why it is refused
    ("", "tl", "x.txt", "a text\n\nanother\n", ["a text", "", "another"]),
    ("", "tl", "x.txt", " a\x0cb \x1b\n", [" a\x0cb \x1b"]),
    ("", "tl", "x.tsv", "a text\tgood\nb\tbad\n", ["a text", "b"]),
    ("", "itl", "x.tsv", "7\ta text\tgood\n", ["a text"]),
    ("", "itl", "x.tsv", "7\ta text\n8\tanother\n", ["a text", "another"]),
    ("label,review", "lt", "x.csv", 'label,review\n1,"a, b"\n0,c\n', ["", "a, b", "c"]),
    ("label,review", "lt", "-", 'label,review\n1,"a, b"\n0,c\n', ["", "a, b", "c"]),
    ("label,review", "lt", "x.csv", ',review\n0,"a\nb"\n1,\n', ["", "", "a b", ""]),
    ("label,review", "lt", "x.txt", "a, b\n2023\n", ["a, b", "2023"]),
    ("label,review", "lt", "x.json", '[{"review": "x"}, {"review": ""}]', ["x", ""]),
    ("label,review", "lt", "x.jsonl", '{"id": 3, "text": "x"}\n\n{"text":null}\n', ["x", "", ""]),
    ("label,review", "lt", "x.jsonl", '{"text": "x"}\n{"id": 3}\n', "line 2: no field 'text'"),
    ("label,review", "lt", "x.jsonl", '{"text": "x"}\n{"text": 0}\n', "line 2: text is 0"),
    ("label,review", "lt", "x.json", '[{"text": "x"}, {"text": 0}]\n', "object 2: text is 0"),
    (GLUE, "ittl", "x.tsv", "index\tsentence1\tsentence2\n0\ta\tb\n", ["", "a\tb"]),
    (GLUE, "ittl", "x.tsv", "a\tb\n", ["a\tb"]),
    (STS_B, "iwwniwwttn", "x.tsv", STS_B.replace(",", "\t")[:-6] + "\n0\tm\tM\t2\t0\tn\tn\ta\tb\n",
     ["", "a\tb"]),
    ("", "tnc", "x.tsv", "a text\t4\teeb1\n", ["a text"]),  # GoEmotions
    ("label,text_a", "lt", "x.tsv", "qid\ttext_a\n0\ta text\n", ["", "a text"]),  # ChnSentiCorp
    ("", "ttl", "x.tsv", "a\tb\tgood\n", ["a\tb"]),
    ("", "tl", "x.txt", "a text\nwith\ttab\n", "x.txt, line 2: 2 columns, not 1"),
    ("", "tl", "x.tsv", "a\tb\tc\td\n", "x.tsv:1: 4 columns separated by tabs"),
    ("", "tl", "x.tsv", "a b\tc d\tgood\n", "x.tsv has other columns .columns: text = 0, pair = 1"),
    ("", "itl", "x.csv", "a, b\n", "x.csv has other columns .*; the training file has: columns: "),
    ("", "itl", "x.csv", "a,b,c,d,e\n", "x.csv:.*; the training file has: columns: text = 1"),
    ("", "tl", "x.jsonl", '{"other": "x"}\n', "which field is the text. found: 'other'"),
    ("", "ttl", "x.txt", "one text\n",
     "x.txt:1: 1 column separated by tabs, .* Needed: text<TAB>second"),
    ("", "tl", "x.tsv", rows("it"), "x.tsv has other columns .columns: text = 1 "),
    ("", "tl", "x.tsv", rows("lt"), "column 0 .'bad', .* does not look like a text; the training "),
    ("", "ttl", "x.tsv", rows("it"), "column 0 .'1001', .* does not look like a text"),
    ("", "ttl", "x.tsv", rows("itt"), "x.tsv has other columns .columns: text = 1, pair = 2 "),
    ("label,review", "lt", "x.csv", "a text, and more\n", NAMES),
    ("label,review", "lt", "x.csv", "1,good\n0,bad\n", NAMES),
    ("label,review", "lt", "x.csv", "a,b,c\n", NAMES),
]  # fmt: skip


@pytest.mark.parametrize("header, kinds, name, content, expected", QUESTIONS)
def test_a_file_to_predict_is_read_as_the_training_file(
    file, header, kinds, name, content, expected
):
    separator, train = (",", "a.csv") if "review" in header else ("\t", "a.tsv")
    header = header.replace(",", separator) + "\n" * bool(header)
    run = layout_of(file, train, header + rows(kinds, separator=separator))
    fields = ("text",) if run.pair is None else ("text", "pair")
    words = (name, content.split("\n")[:-1] or [content], run, fields, TextFiles.known)
    if isinstance(expected, str):
        with pytest.raises(DataError, match=expected):
            questions(*words)
        return
    inputs, layout = questions(*words)
    assert inputs == expected
    assert (layout is None) == (name == "x.txt" or content == "a\tb\n")


def prepared(file, train, dev):
    files = TextFiles(train=file("train.tsv", train), dev=file("dev.tsv", dev))
    vocabulary = VocabularyOptions(vocab_size=500)
    return read_labelled(files, Preparation(vocabulary, BatchOptions(max_length=16), None, 0.0, 1))


def test_the_dev_file_is_read_as_the_training_file(file):
    train = "label\ttext_a\n" + rows("lt")
    data = prepared(file, train, "qid\tlabel\ttext_a\n" + rows("ilt", 4))
    assert len(data.dev) == 4 and data.dev.labels == ["bad", "good"] * 2
    assert data.description.startswith(
        'columns: text = 1 "text_a", label = 0 "label" (header)\n'
        'dev columns: text = 2 "text_a", label = 1 "label" (header); 0 "qid" unused\n'
        'sample: text = "some words 0 and more 1", label = "bad"\n12 training'
    )
    stored = file("x", data.assets["layout.json"].decode())
    assert Layout.load(stored) == data.train.layout
    data = prepared(file, rows("itl"), rows("itl", 2))
    assert data.description.startswith(
        "columns: text = 1, label = 2 (no header); 0 unused\nsample: text = "
    )
    ids = "".join(
        f"{i // 9},{i % 9}00\t{line}\n" for i, line in enumerate(rows("tl", 20).split("\n")[:-1])
    )
    assert prepared(file, ids, ids).train.layout.columns == ("0", "1", "2")
    columns, run = (
        "; the training file has: columns: text = 0",
        read(file("a.tsv", rows("tl"))).layout,
    )
    for wrong, said in (
        (rows("lt"), columns), (rows("t"), columns), (rows("tlt"), columns),
        ("id\ttext\tx\n", "below its header$"), ("a text\t\n" + rows("tl"), "label is empty$"),
        (rows("tl") + "a\n", "1 column, not 2$"), (None, "no such file [^;]*$"),
        (b"\x1f\x8b\x08damaged", "[^;]*$"), ("a\0" * 99, "UTF-16|first bytes are 0$"),
    ):  # fmt: skip
        path = "missing.tsv" if wrong is None else file("x.tsv", wrong)
        with pytest.raises(DataError, match=said) as error:
            TextFiles().examples(path, run)
        assert " --" not in str(error.value)  # flags of training
    with pytest.raises(DataError, match="; the training file has: columns: text = 0.* --text-fie"):
        prepared(file, rows("tl"), rows("lt"))
    with pytest.raises(DataError, match="has single texts, .*dev.tsv has pairs of texts"):
        prepared(file, rows("tl"), rows("ttl"))
    with pytest.raises(DataError, match="never seen in training: 'goal'"):
        prepared(file, rows("tl"), "frage\tgoal\n" + rows("tl"))
    lines = "".join(f"the same words {i % 3}\tother{i} thing{i}\t{i % 2}\n" for i in range(10))
    data = prepared(file, lines, lines)
    unknown = data.tokenizer.encode(data.train.texts, data.train.pairs).token_ids
    assert not (unknown == data.tokenizer.unk_id).any()


@pytest.mark.parametrize("train", [rows("tt"), '{"source": "a b", "target": "c"}\n' * 6])
def test_no_header_of_a_dev_file_without_labels_is_a_sample(file, train):
    run = layout_of(file, "a.tsv", train, **TARGET)
    with pytest.raises(DataError, match="is 'frage.*antwort' a header"):
        read(file("dev.tsv", "frage\tantwort\n" + rows("tt")), **TARGET, run=run)
    assert len(read(file("dev.tsv", rows("tt", 6)), **TARGET, run=run)) == 6


@pytest.mark.parametrize("header", ["", "text{}label\n", "Kommentar{}Note\n"])
@pytest.mark.parametrize("name, mark", [
    ("a.csv", ";"), ("a.txt", ","), ("a.tsv", "|"), ("a.txt", "||"),
])  # fmt: skip
def test_another_separator_is_named(file, name, mark, header):
    path = file(name, header.format(mark) + rows("tl", separator=mark))
    for how in ({}, {"header": "yes"}, {"text_field": "text", "label_field": "label"}):
        with pytest.raises(DataError, match=f"every line has '[{mark[0]}]'; only tabs and, in "):
            read(path, **how)
    path = file(name, rows("t"))
    with pytest.raises(DataError, match="1 column separated by"):
        read(path)


@pytest.mark.parametrize("name, header", [
    ("a.csv", "分类,评论"), ("a.tsv", "标签\t正文"), ("a.csv", "text,label"), ("a.csv", ""),
])  # fmt: skip
def test_an_encoding_is_named_before_the_columns(file, name, header):
    separator = "\t" if name == "a.tsv" else ","
    content = "".join(f"{header}\n" * bool(header)) + f"很好的电影{separator}正\n" * 6
    with pytest.raises(DataError, match=r"lines cannot be used: .* is not UTF-8.*iconv -f GB18030"):
        read(file(name, content.encode("gb18030")))


def test_targets_are_not_read_by_predict(file):
    run = layout_of(file, "a.tsv", "question\tanswer\n" + rows("tt"), **TARGET)
    files = TargetFiles()
    assert files.questions("x", ["a", "", "b"], run)[0] == ["a", "", "b"]
    assert files.questions("x", ["answer\tquestion", "a\tb"], run)[0] == ["", "b"]
    for record in ('{"text": "a"}', '{"source": "a", "target": "b"}', '{"content": "a", "id": 3}'):
        assert files.questions("x.json", [record], run)[0] == ["a"]
