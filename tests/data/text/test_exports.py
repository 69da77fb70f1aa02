"""Files as R, Excel, pandas and tools for labelling write them: read right, refused, or named."""

import csv
import io
import json
from pathlib import Path

import pytest

from amp_xla.data.labelled import BatchOptions, Preparation
from amp_xla.data.text import entities
from amp_xla.data.text.layout import LABELLED_PAIRS, TARGETS, USUAL
from amp_xla.data.text.lines import Table
from amp_xla.data.text.options import TaggedFiles, TextFiles, VocabularyOptions
from amp_xla.data.text.readers import questions, read
from amp_xla.errors import DataError
from amp_xla.tasks.classification.data import read as read_labelled
from amp_xla.tasks.relations.data import RelationFiles
from amp_xla.tasks.relations.data import read as read_relations
from amp_xla.tasks.seq2seq.data import TargetFiles
from amp_xla.tasks.seq2seq.data import read as read_targets
from amp_xla.tasks.tagging.data import read as read_tagged

pytestmark = pytest.mark.once

HOW = Preparation(VocabularyOptions(vocab_size=500), BatchOptions(max_length=16), None, 0.0, 1)
TARGET = dict(needs=("text", "pair"), known=TARGETS)
PAIR = dict(needs=LABELLED_PAIRS, numbers=True)
TEXTS = [f"Das Zimmer {i}, und das Bad, waren sauber" for i in range(12)]
LABELS = ["gut" if i % 3 else "schlecht" for i in range(12)]


def table(rows, mark=","):
    file = io.StringIO()
    csv.writer(file, delimiter=mark, lineterminator="\n").writerows(rows)
    return file.getvalue()


def objects(*records):
    return "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records)


PLAIN = list(zip(TEXTS, LABELS))
NUMBERED = [(i + 1, *row) for i, row in enumerate(PLAIN)]


@pytest.mark.parametrize("name, content", [
    ("r.tsv", "text\tlabel\n" + table(NUMBERED, "\t")),  # write.table: no name for the row names
    ("r.csv", "text,label\n" + table(NUMBERED)),
    ("r.tsv", '"text"\t"label"\n' + "".join('"{}"\t"{}"\t"{}"\n'.format(*r) for r in NUMBERED)),
    ("r.tsv", "Kommentar\tlabel\n" + table(NUMBERED, "\t")),
    ("sep.csv", "\ufeffsep=,\n" + table([("text", "label"), *PLAIN])),
    ("sep.csv", "SEP=,\n" + table([("Kommentar", "label"), *PLAIN])),
])  # fmt: skip
def test_headers_of_r_and_excel(file, name, content):
    files = TextFiles()
    path = file(name, content)
    data = files.dataset(path)
    assert (data.texts, data.labels, data.pairs) == (TEXTS, LABELS, None)
    assert files.dataset(path, data.layout) == data
    lines = content.lstrip("\ufeff").splitlines()
    inputs, _ = files.questions(path, lines, data.columns)
    assert len(inputs) == len(lines) and [text for text in inputs if text] == TEXTS


@pytest.mark.parametrize("name, how", [
    ("a.tsv", dict(delimiter="\t")), ("a.txt", dict(delimiter="\t", quoting=csv.QUOTE_ALL)),
    ("a.csv", dict(delimiter="\t")), ("a.csv", dict(doublequote=False, escapechar="\\")),
    ("a.tsv", dict(delimiter="\t", doublequote=False, escapechar="\\")), ("a.csv", {}),
])  # fmt: skip
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("header", [("text", "label"), ("Kommentar", "label"), ()])
def test_quotation_marks_and_line_breaks_as_programs_write_them(file, name, how, order, header):
    """pandas, Excel and Spark; the file to predict has an answer per line, the last of a row."""
    texts = [f'{text}\n\n"so" it\'s' if i % 4 else text for i, text in enumerate(TEXTS)]
    written = io.StringIO()
    rows = [header] * bool(header) + list(zip(texts, LABELS))
    csv.writer(written, lineterminator="\n", **how).writerows([r[i] for i in order] for r in rows)
    path, names = file(name, written.getvalue()), [str(order.index(i)) for i in (0, 1)]
    data = read(path, names[0], None, names[1], header="yes" if header else "no")
    if header == ("text", "label"):
        assert read(path) == data
    assert (data.texts, data.labels, data.remark) == (texts, LABELS, "")
    lines = written.getvalue().split("\n")[:-1]
    inputs, _ = TextFiles().questions(path, lines, data.columns)
    assert len(inputs) == len(lines)
    assert [text for text in inputs if text] == [text.replace("\n", " ") for text in texts]


def test_a_mark_that_is_not_closed_is_one_bad_line(file):
    rows = [f'"{text}",{label}' for text, label in PLAIN]
    rows[3:5] = f'"{TEXTS[3]},gut', f'"{TEXTS[4]} "so" it is",gut'
    path = file("a.csv", "\n".join(["text,label", *rows]))
    data = read(path, on_bad_line="skip")
    with pytest.raises(DataError, match="a.csv:5: .*is a quotation mark missing, or not doubled"):
        read(path)
    with pytest.raises(DataError, match="a.csv:5: .*is a quotation mark missing, or not doubled"):
        TextFiles().questions(path, ["text,label", *rows], data.columns)
    assert data.texts == TEXTS[:3] + TEXTS[5:] and [bad.line for bad in data.bad_lines] == [5, 6]
    stray = "".join(f'"{text}\t{label}\n' for text, label in PLAIN)  # GLUE's MRPC
    assert read(file("a.tsv", stray)).texts == [f'"{text}' for text in TEXTS]
    with pytest.raises(DataError, match="a.tsv:13: 1 column, not 2"):
        read(file("a.tsv", f"{stray}no label\n"))


@pytest.mark.parametrize("odd", [None, 0, 5])
@pytest.mark.parametrize("shapes", [
    ['"{}'], ['{}"'], ['"{}"'], ['""{}""'], ['"{}" sagte er'], ['{} "so"'], ['{} \\"so\\"'],
    ['"{}', '{}"'], ['"{}', "{}", '"{}"', '{}"'], ['""{}""', '"{}'], ['"{}"', '"', '"{}" "so"'],
])  # fmt: skip
def test_marks_in_texts_stay_also_beside_a_line_with_other_columns(file, shapes, odd):
    texts = [shapes[i % len(shapes)].format(text) for i, text in enumerate(TEXTS)]
    rows = [f"{label}\t{text}" for label, text in zip(LABELS, texts)]
    if odd is not None:
        rows.insert(odd, '"Hotels"')
    read_back = Table.read(file("a.tsv", "\n".join(rows)))
    assert read_back.format == "tab" and [row for _, row in read_back.rows] == rows


@pytest.mark.parametrize("header", [[], [["text", "pair", "label"]]])
@pytest.mark.parametrize("line", '"so ""so"" so"|"so"|"""so"""|""""|"so" he said|"'.split("|"))
def test_plain_lines_to_predict_keep_their_marks(file, header, line):
    rows = [*header, *((text, f"{text}!", label) for text, label in PLAIN)]
    for name, mark in (("a.tsv", "\t"), ("a.csv", ",")):
        pairs = read(file(name, table(rows, mark)), needs=LABELLED_PAIRS).columns
        one = read(file(name, table([(a, c) for a, _, c in rows], mark))).columns
        assert questions("-", [line, "so"], one, ("text",), USUAL) == ([line, "so"], None)
        both = [f"{line}\t{line}"]
        assert questions("-", both, pairs, ("text", "pair"), USUAL) == (both, None)


@pytest.mark.parametrize("head", ["text,label", "label,text", "Satz,Note"])
@pytest.mark.parametrize("line", ["gut{}, aber klein,x", "‘gut{}, klein’,x", "很{}好,但是小,x"])
def test_a_part_of_a_text_is_no_name_of_a_row(file, head, line):
    with pytest.raises(DataError, match="12 of 1[23] lines .*a.csv:2: 3 columns, not 2"):
        read(file("a.csv", "\n".join([head, *map(line.format, range(12))])))


def test_a_carriage_return_in_a_cell_stays(file):
    path = file("a.csv", 'text,label\r\none\rtwo,0\r\n"four, ""five\r""",1\r\n\rsix,0\r\n')
    assert read(path).texts == ["one\rtwo", 'four, "five\r"', "\rsix"]


def test_spaces_behind_marks_and_backslashes_before_other_letters(file):
    content = 'text,label\n"C:\\new, \\"so\\"" , gut \n"a\\\\b, c" ,"gut" \n'
    data = read(file("a.csv", content))
    assert data.texts == ['C:\\new, "so"', "a\\b, c"] and data.labels == ["gut", "gut"]


def test_a_mark_between_columns_is_named_though_texts_have_commas(file):
    rows = [(label, text[: 12 + 5 * i]) for i, (text, label) in enumerate(PLAIN)]
    marked = "".join(f'"{label}";"{text}"\n' for label, text in rows)
    said = "(columns?, but every line has|no comma, but) ';'.*; only tabs and, in "
    for content in (table(rows, ";"), table([("Klasse, grob", "Text"), *rows], ";"), marked):
        with pytest.raises(DataError, match=said):
            read(file("a.csv", content), on_bad_line="skip")


@pytest.mark.parametrize("label, single, several", [
    ("['a']", "a", "a"), ('["a"]', "a", "a"), ("[27]", "27", "27"), ("[]", None, ""),
    ("['a', 'b']", None, "a,b"), ('["a", "it\'s"]', None, "a,it's"), ("[3, 27]", None, "3,27"),
    ("[3 27]", None, None), ("['a' 'b']", None, None), ("[0, 1, 0]", None, None),
    ("[\"don't\", 'b']", None, "don't,b"), ("['say \"x\"', \"it's\"]", None, "say \"x\",it's"),
    ("['a' \"b's\", 'c']", None, None), ("['a', ..., \"it's\"]", None, None),
    ("[POS]", "[POS]", "[POS]"), ("[a] b", "[a] b", "[a] b"),
])  # fmt: skip
def test_lists_as_text_in_a_table(file, label, single, several):
    path = file("a.csv", table([("text", "labels"), ("x", label), ("y", label)]))
    for separator, expected in ((None, single), (",", several)):
        if expected is not None:
            assert read(path, separator=separator).labels == [expected] * 2
            continue
        with pytest.raises(DataError, match=r"a.csv:2: labels is \["):
            read(path, separator=separator)


@pytest.mark.parametrize("absent", ["nan", "NaN", "NULL", "None", "N/A", "\\N", "-"])
def test_missing_labels_as_text_are_named(file, absent):
    rows = [(text, absent if i % 5 == 1 else label) for i, (text, label) in enumerate(PLAIN)]
    path = file("a.csv", table([("text", "label"), *rows]))
    description = read_labelled(TextFiles(train=path, dev=path), HOW).description
    assert f"warning: {absent!r} is a class here" in description
    assert "a class here" not in read_labelled(TextFiles(), HOW).description


@pytest.mark.parametrize("labels, numbers", [
    (["True", "False"], ["1", "0"]), ([True, False], ["1", "0"]), (["0.50", 4], ["0.5", "4"]),
    (["1,5", "2"], None), (["yes", "no"], None), (["1_0", "2"], None),
    (["1e-3", "+2E1"], ["0.001", "20"]),
])  # fmt: skip
def test_scores_of_pairs(file, labels, numbers):
    rows = [("a b", "c d", labels[0]), ("e f", "g h", labels[1])]
    names = ("sentence1", "sentence2", "label")
    for path in (
        file("a.tsv", table([names, *rows], "\t")),
        file("a.jsonl", objects(*(dict(zip(names, row)) for row in rows))),
    ):
        if numbers is not None:
            assert read(path, **PAIR).labels == numbers
            continue
        with pytest.raises(DataError, match="a number is needed, such as 0.75"):
            read(path, **PAIR)


@pytest.mark.parametrize("names", ["source,target,domain", "headline,title,text", "text,summary,a"])
def test_a_third_column_is_no_label_of_a_target(file, names):
    rows = [(f"so viele {i}", f"Worte {i}", LABELS[i]) for i in range(12)]
    files = TargetFiles()
    path = file("a.csv", table([names.split(","), *rows]))
    data = files.dataset(path)
    assert data.labels is None and data.columns.label is None
    inputs, targets = files.examples(path, data.layout)
    assert inputs == data.texts and targets == data.pairs
    asked = files.questions(path, Path(path).read_text().splitlines(), data.columns)[0]
    assert asked[1:] == data.texts


@pytest.mark.parametrize("record, columns", [
    ({"text": "a b", "title": "a", "summary": "b"}, None),  # XLSum
    ({"instruction": "a b", "input": "b", "output": "c"}, None),  # Alpaca
    ({"instruction": "a b", "input": "", "output": "c"}, "instruction output"),  # Belle
    ({"kind": "x", "input": "a b", "target": "c"}, "input target"),
    ({"prompt": "a b", "completion": "c"}, "prompt completion"),
    ({"query": "a b", "response": "c", "history": []}, "query response"),
    ({"id": "1", "summary": "c", "dialogue": "a b"}, "dialogue summary"),
])  # fmt: skip
def test_sources_and_targets(file, record, columns):
    path = file("a.jsonl", objects(*[record] * 3))
    if columns is not None:
        names = read(path, **TARGET).columns.names
        assert [names["text"], names["pair"]] == columns.split()
        return
    with pytest.raises(DataError, match="which are the texts. Name them: --text-field") as error:
        read(path, **TARGET)
    words = str(error.value).partition("Name them: ")[2].partition(", or ")[0].split()
    assert len(read(path, words[1], words[3], **TARGET)) == 3


def test_a_title_above_the_header_is_to_be_deleted(file):
    content = table([("Umfrage 2023", ""), ("Kommentar", "Note"), *PLAIN])
    with pytest.raises(DataError, match="if it is neither, such as a title, delete it"):
        read(file("a.csv", content))
    for how in ({}, {"header": "yes"}):  # a title is no header without a name of row names
        with pytest.raises(DataError, match="a.csv"):
            read(file("a.csv", content.replace("2023,", "2023")), **how)


REJECTED = {"text": "Ann came", "_task_hash": 7, "answer": "reject"}


@pytest.mark.parametrize("answer", ["reject", "ignore"])
def test_labels_that_a_user_of_prodigy_rejected_are_left_out(file, answer):
    spans, label = {"spans": [{"start": 0, "end": 3, "label": "x"}]}, {"label": "x"}
    for how, fields in ((entities.read, spans), (read, label)):
        record = {**REJECTED, **fields, "answer": answer}
        content = objects({**record, "answer": "accept"}, record, {"text": "b a", **fields})
        path = file("a.jsonl", content)
        with pytest.raises(DataError, match=f"a.jsonl:2: .*Prodigy: answer is '{answer}'"):
            how(path)  # type: ignore[operator]
        data = how(path, on_bad_line="skip")  # type: ignore[operator]
        assert data.texts == ["Ann came", "b a"]


WORDS = "Ann Lee met Bob in New York City".split()
BILOU = "B-PER L-PER O U-PER O B-LOC I-LOC L-LOC".split()


@pytest.mark.parametrize("begin", ["s{i}\t", "{i}\t", "bc/00\t{k}\t", "\t"])
def test_numbers_of_texts_are_no_tokens(file, begin):
    rows = [begin.format(i=i, k=k) + f"{w}\tO\n" for i in range(9) for k, w in enumerate(WORDS)]
    for end in ("", "\n"):
        content = end.join("".join(rows[i : i + 8]) for i in range(0, 72, 8))
        with pytest.raises(DataError, match="column 0 numbers the tokens or the texts"):
            entities.read(file("a.tsv", content))


def test_many_tokens_without_a_blank_line_are_named(file):
    lines = "".join(f"{word} {tag}\n" for word, tag in zip(WORDS, BILOU))
    for content, said in ((lines * 70, True), (lines * 9, False), (f"{lines}\n" * 70, False)):
        remark = entities.read(file("a.txt", content)).remark
        assert ("no blank line ends a text: all 560 tokens" in remark) == said


def test_nothing_to_learn_is_an_error(file):
    triples = [["Ann", "Rome", "lives in"], ["Bob", "Oslo", "lives in"]]  # in another order
    content = objects({"text": "Ann and Bob in Rome and Oslo", "triple_list": triples})
    path = file("a.json", content)
    with pytest.raises(DataError, match="^2 of 2 training triples cannot be found.*'lives in'"):
        read_relations(RelationFiles(train=path, dev=path), HOW)
    content = objects({"text": "word " * 40 + "Ann", "entities": [[200, 203, "PER"]]})
    path = file("a.json", content)
    with pytest.raises(DataError, match="1 of 1 training entities .*--max-length, such as 'Ann'"):
        read_tagged(TaggedFiles(train=path, dev=path), HOW, "crf")


LONG = "Der Rat beschloss nach langer Debatte den Bau"
ARTICLES = [(f"Platz {i}", f"{LONG} {i}") for i in range(9)]


@pytest.mark.parametrize("name, rows, how, said", [
    ("a.tsv", [("classify the text", *row) for row in PLAIN], {}, "column 0 .'classify the t"),
    ("a.tsv", [(["y z", "x y"][i % 2], *row) for i, row in enumerate(PLAIN)], {}, "column 0 .'y z"),
    ("a.csv", [("text", "pair", "label"), *(("judge", *row) for row in PLAIN)], {},
     "'text' has only 'judge'; name the text: --text-field"),
    ("a.tsv", [(text, "nothing", i % 5) for i, text in enumerate(TEXTS)], PAIR, "'1' has only"),
    ("a.tsv", [("do it", text) for text in TEXTS], TARGET, "column '0' has only 'do it'"),
    ("a.tsv", ARTICLES, TARGET, "--text-field 1 --pair-field 0, or --text-field 0 --pair-field 1"),
    ("a.csv", [("headline", "body"), *ARTICLES], TARGET, "--text-field body --pair-field headline"),
    ("a.csv", [("headlines", "text"), *ARTICLES], TARGET, None),
    ("a.csv", [("question", "answer"), *ARTICLES], TARGET, None),
])  # fmt: skip
def test_a_constant_text_and_a_short_source_are_asked_for(file, name, rows, how, said):
    path = file(name, table(rows, "," if name == "a.csv" else "\t"))
    if said is None:
        assert len(read(path, **how).all_texts) == 18
        return
    with pytest.raises(DataError, match=said) as error:
        read(path, **how)
    assert "\n" not in str(error.value)
    first, second = ("0", "1") if rows[0] != ("headline", "body") else rows[0]
    assert read(path, first, second, "2" * (len(rows[-1]) > 2) or None, **how)  # flags decide


@pytest.mark.parametrize("lines, said", [
    ("Ann lives in Rome\tB-PER O O B-LOC\n", "4 tags in a line"),
    ("张三来了\tB-PER I-PER O O\n\n", "4 tags in a line"),
    ("张\x02三\tO\x02B-PER\n", "2 tags in a line"),
    ("Uni\tB-ORG\tO\nRom\tI-ORG\tB-LOC\n\n", "column 1 has tags, too, e.g. of 'ORG', but only"),
    ("Uni\tB-ORG\t\nRom\tO\t\n\n", "column 1 has tags, too, e.g. of 'ORG', .* column, 2"),
    ("Uni B-ORG x O\nRom I-ORG y O\n\n", "column 1 has tags, .* the last column, 3, is read"),
    ("#\tn-tv.de [2009]\n1\tUni\tB-ORG\tO\n2\tRom\tI-ORG\tB-LOC\n\n", "column 0 numbers the"),
    ("# id 5 domain=en\nUni _ _ B-ORG\nRom _ _ I-ORG\n\n", None),
    ("Uni NNP I-NP I-ORG\nRom NNP I-NP I-ORG\n\n", None),
    ("#\tO\n#\tB-creative work\n\n", None),
    ("Ann B-PER\nNew York B-LOC\nRom B-LOC\n\n", "a.txt:2: 3 columns, not 2; needed: a token"),
    ('7\t"\tO\n7\tAnn\tB-PER\n7\t"Ann Lee"\tx\tO\n\n', "column 0 numbers the tokens"),
    ("-DOCSTART-\n\nAnn\tx\tB-PER\nsang\tx\tO\n\n", None),
])  # fmt: skip
def test_tags_are_one_column_and_one_per_token(file, lines, said):
    path = file("a.txt", lines * 9)
    if said is None:
        data = entities.read(path)
        assert len(data) == 9 and data.columns.label == len(data.columns.columns) - 1 > 0
        return
    with pytest.raises(DataError, match=said):
        entities.read(path)


def test_a_sample_is_shown_as_it_was_read(file):
    long = objects(*({"text": "wort " * 40 + t, "summary": f"a\n{t}"} for t in TEXTS))
    labelled = {"text": "Ann leads Rom", "entities": [[0, 3, "PER"], [10, 13, "LOC"]]}
    triples = {"text": "Ann leads Rom", "spo_list": [["Ann", "leads", "Rom"]]}
    for content, kind, reader, expected in (
        (long, TargetFiles, lambda files, how: read_targets(files, how, 8),
         f'text = "{("wort " * 9)[:33]}...", pair = "a\\nDas Zimmer 0, und das Bad, war..."'),
        (objects({"text": "x", "entities": []}, labelled), TaggedFiles,
         lambda *how: read_tagged(*how, "crf"), 'entities = "0:3 PER Ann, 10:13 LOC Rom"'),
        (objects(triples), RelationFiles, read_relations, 'triples = "(Ann, leads, Rom)"'),
    ):  # fmt: skip
        path = file("a.jsonl", content)
        (line,) = (
            line
            for line in reader(kind(train=path, dev=path), HOW).description.splitlines()
            if line.startswith("sample: text = ")
        )
        assert line.endswith(expected) and len(line) <= 102, line
