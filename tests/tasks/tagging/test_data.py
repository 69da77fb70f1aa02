"""Entities: files, tokens with their characters, paths through tags, F1 as seqeval computes it."""

from __future__ import annotations

import email
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

from amp_xla.data.alignment import AlignedTexts, warning
from amp_xla.data.text import corpora, entities
from amp_xla.data.text.entities import Entity
from amp_xla.data.text.options import TaggedFiles
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import DataError
from amp_xla.tasks.tagging import spans
from amp_xla.tasks.tagging.data import token_spans
from amp_xla.tasks.tagging.spans import Span
from amp_xla.training.extraction import counted, f1

pytestmark = pytest.mark.once
BIO, BIOES = "O B-a I-a B-b I-b".split(), "O B-a I-a E-a S-a B-b I-b E-b S-b".split()


def texts_of_tags(tags, seed):
    source = np.random.RandomState(seed)
    return [[tags[i] for i in source.randint(len(tags), size=source.randint(1, 9))]
            for _ in range(200)]  # fmt: skip


# precision_score, recall_score, f1_score of seqeval 1.2.2: texts_of_tags(tags, 1), (tags, 2)
# cut or lengthened by O to the same sizes.
SEQEVAL = {
    "BIO": (0.2648305084745763, 0.1987281399046105, 0.22706630336058128),
    "BIOES": (0.3551912568306011, 0.25557011795543905, 0.29725609756097565),
}


@pytest.mark.parametrize("scheme,tags", [("BIO", BIO), ("BIOES", BIOES)])
def test_f1_is_that_of_seqeval_whatever_the_order_of_tags(scheme, tags):
    gold, answers = texts_of_tags(tags, 1), texts_of_tags(tags, 2)
    answers = [(a + ["O"] * len(g))[: len(g)] for a, g in zip(answers, gold)]
    found, wanted = ([entities.chunks(text) for text in side] for side in (answers, gold))
    score = f1(counted(found, wanted, "ab"))
    expected = SEQEVAL[scheme]
    assert (score["precision"], score["recall"], score["f1"]) == pytest.approx(expected, abs=1e-12)


CONLL = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\nPeter NNP B-PER\nBlackburn NNP I-PER\n"
TEXT, ENTITIES = "EU rejects Peter Blackburn", [Entity(0, 2, "ORG"), Entity(11, 26, "PER")]
ROWS = {"tokens": TEXT.split(), "ner_tags": "B-ORG O B-PER I-PER".split()}  # of Hugging Face


def read(tmp_path, content, **how):
    path = tmp_path / "data"
    path.write_text(content, encoding="utf-8")
    return entities.read(str(path), **how)


@pytest.mark.parametrize("content", [
    CONLL,
    CONLL.replace("B-ORG", "S-ORG").replace("I-PER", "E-PER").replace(" ", "\t"),
    CONLL.replace("B-ORG", "U-ORG").replace("I-PER", "L-PER"),
    "\ufeff\n\n" + CONLL.replace("\n", "\r\n") + "\n\n",
    "\ufeff\ufeff" + CONLL,
    json.dumps({"text": TEXT, "entities": [list(e) for e in ENTITIES[::-1]]}) + "\n",
    json.dumps({"id": "7", **ROWS, "pos_tags": [22, 42, 22, 22]}),
    json.dumps([{**ROWS, "ner_tags": "S-ORG O B-PER E-PER".split()}]),
    json.dumps({"tokens": ROWS["tokens"], "tags": ROWS["ner_tags"]}, indent=1),
    json.dumps({"data": [{"labels": ROWS["ner_tags"], "tokens": ROWS["tokens"]}]}),
    json.dumps({"text": "EU  rejects ...", **ROWS}),
])  # fmt: skip
def test_one_text_in_each_format(tmp_path, content):
    data = read(tmp_path, content)
    assert data.texts == [TEXT] and entities.unpack(data.labels[0]) == ENTITIES


CHINESE, NAMES = "患者张三有糖尿病", [Entity(2, 4, "name"), Entity(5, 8, "dis")]


@pytest.mark.parametrize("record", [
    {"label": {"name": {"张三": [[2, 3]]}, "dis": {"糖尿病": [[5, 7]]}}},  # CLUENER
    {"entities": [{"start_idx": 2, "end_idx": 3, "type": "name", "entity": "张三"},
                  {"start_idx": 5, "end_idx": 7, "type": "dis", "entity": "糖尿病"}]},  # CMeEE
    {"entities": [{"start_idx": 2, "end_idx": 4, "type": "name", "entity": "张三"},
                  {"start_idx": 5, "end_idx": 8, "type": "dis", "entity": "糖尿病"}]},  # excluded
    {"id": 3, "label": [[5, 8, "dis"], [2, 4, "name"]], "Comments": []},  # doccano
    {"labels": [[5, 8, "dis"], [2, 4, "name"]]},
    {"tokens": [], "spans": [{"start": 2, "end": 4, "label": "name", "token_start": 2},
                             {"start": 5, "end": 8, "label": "dis", "token_start": 5}]},  # prodigy
    {"entities": [{"id": 0, "label": "name", "start_offset": 2, "end_offset": 4},
                  {"id": 1, "label": "dis", "start_offset": 5, "end_offset": 8}], "relations": []},
    {"entities": [{"start": 2, "end": 4, "label": "name"}, {"start": 5, "end": 8, "label": "dis"}]},
    {"label": [{"start": 2, "end": 4, "text": "张三", "labels": ["name"]},
               {"start": 5, "end": 8, "text": "糖尿病", "labels": ["dis"]}]},  # Label Studio
])  # fmt: skip
@pytest.mark.parametrize("form", ["lines", "array", "pretty"])
def test_entities_in_the_forms_of_public_files(tmp_path, record, form):
    records = [{"text": CHINESE, **record}] * 2
    content = {
        "lines": "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in records),
        "array": json.dumps(records),
        "pretty": "\n".join(json.dumps(each, indent=2) for each in records),
    }[form]
    data = read(tmp_path, content)
    assert data.texts == [CHINESE] * 2
    assert [entities.unpack(label) for label in data.labels] == [NAMES] * 2
    assert data.layout is not None and 'text = "text"' in str(data.layout)
    asked, _ = TaggedFiles().questions("a.json", content.splitlines(), data.layout)
    assert list(filter(None, asked)) == data.texts


@pytest.mark.parametrize("content,text,found", [
    ("张\tB-x\n \tI-x\n三\tI-x\n", "张 三", "张 三"),
    (json.dumps({"tokens": ["张", " ", "三"], "tags": "B-x I-x I-x".split()}), "张 三", "张 三"),
    ("张 B-x\n  I-x\n三 I-x\n", "张 三", "张 三"),
    ("\u3000\tO\n张\tB-x\n三\tI-x\n", "\u3000张三", "张三"),
    ("张 B-x\n\u3000 I-x\n三 I-x\n", "张\u3000三", "张\u3000三"),
    ("\xa0 O\n张 B-x\n", "\xa0张", "张"),
])  # fmt: skip
def test_a_space_may_be_a_token(tmp_path, content, text, found):
    data = read(tmp_path, content)
    (entity,) = entities.unpack(data.labels[0])
    assert data.texts == [text] and text[entity.start : entity.end] == found


def test_positions_behind_tokens_cause_a_warning(tmp_path):
    with_positions = "张0\tB-x\n三1\tI-x\n来0\tO\n\n北0\tB-y\n京1\tI-y\n"
    for content in (with_positions, with_positions.replace("\t", " "), with_positions + "!0\tO\n"):
        assert (
            "warning: tokens such as '张0' end with a digit" in read(tmp_path, content).warnings()
        )
    for content in (CONLL, re.sub("\\d", "", with_positions), "A4 O\npaper O\n"):
        assert read(tmp_path, content).warnings() == ""


@pytest.mark.parametrize("content,message", [
    ("EU B-ORG\nrejects\n", r"data:2: 1 column; needed: a token and its tag: O, or B-"),
    (CONLL.replace("\n", "\r"), "data: only carriage returns end its lines"),
    ("EU ORG\n", r"data:1: 'EU', 'ORG'; needed: a token and its tag"),
    ("a B-x\na M-x\n\na I-x\n",
     r"data: tags of two schemes: B- in line 1, I- in line 4, M- in line 2; needed: BIO, BIOES"),
    ('{"text": "ab", "entities": [[0, 3, "x"]]}', r'data:1: entity \[0, 3, "x"\]; needed: \[start'),
    ('{"text": "ab", "entities": [[0, 1.0, "x"]]}', r"data:1: entity \[0, 1.0"),
    ('{"text": "ab"}', r"data:1: the field 'entities' must be a list; the fields are 'text'"),
    ('{"text": "abc", "entities": [[0, 2, "x"], [1, 3, "x"]]}',
     r"data:1: entities 0:2 and 1:3 overlap, which this .* --head global_pointer"),
    ('{"text": "abc", "entities": [{"start_idx": 0, "end_idx": 1, "type": "x"}]}',
     r"data:1: entity .* add its words as .entity.: they show whether end_idx is inclusive"),
    ('{"text": "abc", "label": {"x": {"bc": [[0, 1]]}}}',
     r"data:1: entity .*: at this place the text has 'ab'"),
    ('{"text": "abc", "label": {"x": {"ab": [0, 1]}}}', "field 'entities' must be a list"),
    ('{"text": "ab", "label": [{"start": 0, "end": 1, "labels": ["x", "y"]}]}', "data:1: entity"),
    ('{"text": "abc", "label": 1}', "must be a list; the fields are 'text', 'label'"),
    ('{"text": "abc", "spo_list": []}', "must be a list; the fields are 'text', 'spo_list'"),
    (" \tO\n", "data:1: the text is blank"),
    ("a O\nb O\n\nc O\nd\n", "data: 1 of 4 lines cannot be used: .*data:5: 1 column; .* skip"),
    ("a O\n" * 3 + "b\n", "data: 1 of 4 lines cannot be used: .*; no sample is left"),
    ("\tO\n", "data:1: '', 'O'; needed: a token and its tag"),
    ("", r"data: the file is empty"),
    ("[\n]", r"data: the file is empty"),
    ('{"data": []}', r"data: the file is empty"),
    ("1\tEU\tB-ORG\n2\trejects\tO\n",
     r"data: column 0 numbers the tokens or the texts \(1, 2, ...\); the token must "),
    ("1 EU B-ORG O\n\n1 no O O\n", "data: column 0 numbers the tokens"),
    ('{"tokens": ["EU"], "ner_tags": [3]}',
     "data:1: ner_tags are numbers without names in the file; write label names"),
    ('{"tokens": ["a"], "tags": ["O"]}\n{"tokens": ["a", "b"], "tags": ["O"]}',
     r'data:2: tokens and tags are \["a", "b"\], \["O"\]; needed: equally long lists of strings'),
    ('{"tokens": "EU", "tags": ["O"]}', 'data:1: tokens and tags are "EU", .* equally long'),
    ('{"tokens": ["EU"], "tags": [null]}', r"data:1: tokens and tags .*null\]; needed: equally"),
    ('{"tokens": ["EU"], "tags": ["ORG"]}', "data:1: 'EU', 'ORG'; needed: a token and its tag"),
    ('{"tokens": ["", "b"], "tags": ["O", "O"]}', "data:1: '', 'O'; needed: a token and its tag"),
    ('{"tokens": [" "], "tags": ["O"]}', "data:1: the text is blank"),
    ('{"tokens": ["\\ud800"], "tags": ["O"]}', "data:1: tokens: character 1 is half a surrogate"),
    ('{"text": "ab", "entities": [[0, 1, "x\\ud800"]]}', "data:1: label: character 2 is half a"),
    ('{"tokens": ["a"], "tags": ["B-x"]}\n{"tokens": ["a"], "tags": ["E-x"]}\n'
     '{"tokens": ["a"], "tags": ["I-x"]}\n{"tokens": ["a"], "tags": ["M-x"]}',
     "data: tags of two schemes: B- in line 1, E- in line 2, I- in line 3, M- in line 4"),
])  # fmt: skip
def test_errors_name_file_and_line(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path, content, nested=False)


def test_entities_that_match_no_span_of_tokens_cannot_be_found():
    """The model learns the tokens that they touch; a space at the edge is in no token."""
    tokenizer = Tokenizer("[PAD] [UNK] [CLS] [SEP] new york ##er is big".split())
    text, names = "New Yorker is big", ("a", "b")
    aligned = AlignedTexts.of([text], tokenizer, max_length=6)
    assert aligned.encoded.lengths.tolist() == [6]
    gold = [Entity(0, 10, "a"), Entity(4, 8, "b"), Entity(6, 9, "a"), Entity(3, 8, "b"),
            Entity(3, 4, "b"), Entity(14, 17, "b")]  # fmt: skip
    missed = {}
    found = token_spans([gold], aligned, {"a": 0, "b": 1}, missed)
    assert found == [[Span(1, 3, 0), Span(2, 2, 1), Span(2, 3, 0), Span(2, 2, 1)]]
    assert set(aligned.entities(0, found[0], names)) & set(gold) == set(gold[:2])
    said = warning(missed, 6, "dev entities")
    assert "4 of 6 dev entities cannot be found and count as missed: 3 not at token" in said
    assert "1 cut off by --max-length, such as 'big'" in said
    assert token_spans([gold[:2]], aligned, {"a": 0, "b": 1}, {}) and warning({}, 2, "") == ""


def legal(path, length):
    pairs = zip((0, *path), path)
    follows = all(tag == 0 or tag % 2 or before in (tag, tag - 1) for before, tag in pairs)
    return follows and path[0] == 0 and path[length - 1] == 0


def test_the_best_path_is_the_best_of_all():
    source = np.random.RandomState(3)
    scores, transitions = source.randn(8, 5, 5).astype(np.float32), source.randn(5, 5)
    lengths = np.array([5, 5, 5, 4, 3, 2, 1, 5])
    tags = spans.best_tags(scores, transitions, lengths)
    for row, length in enumerate(lengths):

        def total(path, row=row):
            steps = sum(transitions[a, b] for a, b in zip(path, path[1:]))
            return float(steps + sum(scores[row, i, tag] for i, tag in enumerate(path)))

        paths = [p for p in itertools.product(range(5), repeat=int(length)) if legal(p, length)]
        assert tuple(tags[row, :length]) == max(paths, key=total)


@pytest.mark.parametrize("flat", [True, False])
def test_an_answer_is_that_of_the_window_where_it_is_furthest_from_an_edge(flat):
    source, size = np.random.RandomState(4), 8
    for _ in range(50):
        begins = np.cumsum([0, *source.randint(1, size + 1, source.randint(5))]).tolist()
        windows = []
        for _ in begins:
            edges = np.sort(source.choice(np.arange(1, size + 2), 4, replace=False)).tolist()
            each = [Span(a, b - 1, source.randint(2)) for a, b in zip(edges, edges[1:])]
            windows.append(each[::2])
        found = spans.joined(windows, begins, size, flat)

        def nearest(token, begins=begins):  # furthest from an edge, the first of two
            return int(np.argmax([min(token - b, b + size - 1 - token) for b in begins]))

        moved = [
            [Span(begin + first, begin + last, label) for first, last, label in each]
            for each, begin in zip(windows, begins)
        ]
        if flat:
            tags = spans.tags_of(found, begins[-1] + size + 1)
            for token, tag in enumerate(tags[1:]):
                expected = spans.tags_of(moved[nearest(token)], len(tags))[token + 1]
                # An I whose beginning another window has not is a beginning.
                assert tag == expected or (expected % 2 == 0 and tag == expected - 1 > 0)
        else:
            assert found == [
                span for number, each in enumerate(moved) for span in each
                if nearest((span.first + span.last - 2) // 2) == number
            ]  # fmt: skip


def test_a_broken_link_among_packages_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "x.py").touch()
    (tmp_path / ".#x.py").symlink_to("me@host.1")  # as Emacs marks an open file
    paths = dict.fromkeys(("stdlib", "purelib", "platlib"), str(tmp_path))
    monkeypatch.setattr(corpora.sysconfig, "get_paths", lambda: paths)
    assert corpora.package_files() == [[("x", str(tmp_path / "x.py"))]]


def test_built_in_texts_name_what_their_code_has(monkeypatch):
    monkeypatch.setattr(corpora, "LIBRARY", str(Path(email.__file__).parent))
    train, dev = corpora.entities.__wrapped__()
    assert len(train) > 300 and 0.1 < len(dev) / len(train) < 0.25
    assert not set(train.texts) & set(dev.texts)
    for data in (train, dev):
        for text, label in zip(data.texts, data.labels):
            for entity in entities.unpack(label):
                assert re.fullmatch(r"\w+", text[entity.start : entity.end])
    kinds = {e.label for label in dev.labels for e in entities.unpack(label)}
    assert kinds == {"parameter", "class", "function", "constant"}


@pytest.mark.parametrize("tokens,text", [(["Ann", "Lee"], "Ann Lee"), (list("张三 来"), "张三 来")])
def test_predict_reads_tokens_as_training_did(tmp_path, tokens, text):
    lines = [json.dumps({"tokens": tokens, "ner_tags": ["O"] * len(tokens)}) for _ in range(2)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    run = entities.read(str(tmp_path / "a.jsonl")).layout
    for asked in (lines, [json.dumps({"tokens": tokens})] * 2):
        assert run and TaggedFiles().questions("b.jsonl", asked, run)[0] == [text, text]
