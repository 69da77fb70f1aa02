"""Files with questions, the tokens of answers, spans from scores, EM and F1 as published."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest

from amp_xla.data.labelled import Preparation, WindowOptions
from amp_xla.data.text import corpora
from amp_xla.data.text.options import VocabularyOptions
from amp_xla.data.text.readers import Dataset
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import DataError
from amp_xla.tasks.reading import data, scores
from amp_xla.tasks.reading.data import ReadingFiles

pytestmark = pytest.mark.once
PASSAGE, QUESTION = "Ann leads Ann Corp in Rome", "Where is Ann Corp?"
WANTED = [["Rome", 22]]
FOUND = {"text": "Rome", "answer_start": 22}
ONE = {"question": QUESTION, "context": PASSAGE}
NESTED = {"id": 1, "question": QUESTION, "answers": [FOUND]}
NONE = {"id": 2, "question": "Who?", "answers": [], "is_impossible": True}


def squad(*questions, **paragraph):
    paragraphs = [{"context": PASSAGE, "qas": list(questions), **paragraph}]
    return {"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}


CMRC = {
    "context_id": "T_1", "context_text": PASSAGE, "title": "t",
    "qas": [{"query_text": QUESTION, "query_id": "T_1_0", "answers": ["Rome"]}],
}  # fmt: skip
LAYOUTS = {
    "SQuAD 1.1": (squad(NESTED), [WANTED]),
    "SQuAD 2.0": (squad(NESTED, {**NONE, "plausible_answers": [FOUND]}), [WANTED, []]),
    "CMRC 2018": ([CMRC, CMRC], [[["Rome", -1]]] * 2),
    "DuReader": (squad({**NESTED, "answers": [{"text": "", "answer_start": -1}]}), [[]]),
    "Hugging Face": ([{**ONE, "answers": {"text": ["Rome"], "answer_start": [22]}},
                      {**ONE, "answers": {"text": [], "answer_start": []}}], [WANTED, []]),
    "objects": ({**ONE, "answers": [FOUND]}, [WANTED]),
    "texts": ([{**ONE, "answer": "Rome"}, {**ONE, "answers": {"text": ["Rome"]}},
               {**ONE, "answers": ["Rome", "in Rome"]}],
              [[["Rome", -1]]] * 2 + [[["Rome", -1], ["in Rome", -1]]]),
    "columns": ([{**ONE, "answer": "Rome", "answer_start": 22}, {**ONE, "answers": FOUND},
                 {**ONE, "answers": ["Rome"], "answer_start": [22]},
                 {**ONE, "answers": {"text": ["Rome"], "answer_start": 22}}], [WANTED] * 4),
}  # fmt: skip


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_public_sets(tmp_path, name, indent):
    content, labels = LAYOUTS[name]
    path = tmp_path / "train.json"
    path.write_text(json.dumps(content, indent=indent))
    read = ReadingFiles().dataset(str(path))
    assert list(map(json.loads, read.labels or [])) == labels
    assert read.texts[0] == QUESTION and read.pairs == [PASSAGE] * len(labels)
    lines = path.read_text().splitlines()
    inputs, _ = ReadingFiles().questions(str(path), lines, read.columns)
    assert inputs[0] == f"{QUESTION}\t{PASSAGE}" and len(inputs) == len(labels)


TOKENS = "[PAD] [UNK] [CLS] [SEP] who ann lead ##s corp in rome , ##ing".split()


@pytest.mark.parametrize(
    "answer, start, tokens, problem",
    [
        ("ann", 0, (1, 1), ""),
        ("ann", 10, (4, 4), ""),
        ("ann", 9, (4, 4), "not at their answer_start"),  # the nearest one
        ("ann", -1, (1, 1), ""),
        ("lead", 4, (2, 3), ""),  # in the whole word
        ("s ann,", 8, (2, 5), ""),
        ("corp in", 15, (6, 7), "longer than --max-answer 1"),
        ("Corp", 15, (-1, -1), "not in their passage"),
        ("rome", 23, (-1, -1), "cut off by --max-length"),
        (None, 0, (0, 0), ""),
    ],
)
def test_an_answer_is_found_or_counted_and_named(answer, start, tokens, problem):
    passage = "ann leads ann, corp in rome"
    aligned = data.encode(["who"], [passage], Tokenizer(TOKENS), 11)
    label = json.dumps([] if answer is None else [[answer, start]])
    problems = {}
    most = 1 if problem.startswith("longer") else 4
    found = data.targets(Dataset(["who"], [passage], [label]), aligned, most, problems)
    assert tuple(found[0]) == tokens and aligned.cut() == 1
    assert [(why[: len(problem)], texts) for why, texts in problems.items()] == (
        [(problem, [answer])] if problem else []
    )


@pytest.mark.parametrize("answers, said", [
    (["Zed"], "passage; training answers not in their passage: 1, such as 'Zed'"),
    (["Zed", "Yak"], "passage; training answers not in their passage: 2, such as 'Yak'"),
    ([], "passage"),
])  # fmt: skip
def test_answers_that_are_not_found_are_one_error(file, answers, said):
    path = file("zed.jsonl", json.dumps({**ONE, "answers": answers}))
    how = Preparation(VocabularyOptions(), WindowOptions(), None, 0.0, 1)
    with pytest.raises(DataError, match=f"^training data: no answer is found in its {said}$"):
        data.read(ReadingFiles(path, path), how, 30)


# Sums of EM and F1 of 500 random answers, each times its number from 1, by the definitions in
# SQuAD's evaluate-v1.1.py and v2.0 and CMRC 2018's cmrc2018_evaluate.py, which this file of
# revision 80cb09e repeats.
PUBLISHED = {
    "1.1": (45408, 60086.54898989898),
    "2.0": (46059, 63893.04256854258),
    "CMRC": (43306, 70660.93008103005),
}
ENGLISH = "the The a An rome Rome, 1,000 it's (Corp.) corp – ... $5 U.S. an".split()
CHINESE = [*"北京大学的年月，。《》……·", "BERT", "2018", " 3.5% ", "U.S.", "don't", "-", "…", "α"]


@pytest.mark.parametrize("form", PUBLISHED)
def test_em_and_f1_are_those_of_the_published_definitions(form):
    draw = random.Random(form)
    words, joint = (CHINESE, "") if form == "CMRC" else (ENGLISH, " ")

    def text():
        return joint.join(draw.choice(words) for _ in range(draw.randint(1, 5))) or "x"

    right = [[text() for _ in range(draw.randint(1, 3))] for _ in range(500)]
    if form == "CMRC":
        right = [[f"中{each}" for each in texts] for texts in right]
    if form == "2.0":
        right = [texts * (draw.random() < 0.7) for texts in right]
    answers = [
        draw.choice([*texts, text(), "", *(f"{x}{text()}" for x in texts)]) for texts in right
    ]
    labels = [json.dumps([(text, 0) for text in texts]) for texts in right]
    found = scores.compared(answers, labels)
    np.testing.assert_allclose(np.arange(1, 501) @ found, PUBLISHED[form], rtol=1e-12)
    assert 0.1 < found[:, 0].mean() < found[:, 1].mean() < 0.95


@pytest.mark.parametrize("seed", range(3))
def test_spans_are_those_of_all_pairs_and_the_threshold_of_all_thresholds(seed):
    """A text of two windows has the best of both, and the lower score of no answer; the last row
    is empty."""
    source, begins = np.random.RandomState(seed), np.array([0, 0, 3, 0, 0])
    owners = np.array([0, 1, 1, 3, -1])
    ids, segments_of = np.zeros((2, 5, 9), int)
    sizes = [(2, 3), (2, 4), (2, 4), (3, 1), (1, 5)]  # tokens of question and passage
    for row, (question, passage) in enumerate(sizes):
        ids[row, : question + passage + 3] = 7
        segments_of[row, question + 2 : question + passage + 3] = 1
    batch = {
        "token_ids": ids, "segment_ids": segments_of, "owners": owners, "begins": begins,
        "sample_ids": np.array([0, 1, -1, 3, -1]),
    }  # fmt: skip
    values = source.randn(5, 9, 2).astype(np.float32)
    values[[1, 2], [7, 4]] += 3  # the token that both windows have
    first, last, chances, odds, empty = scores.decode(values, batch, 2, 4)
    powers, nulls = np.exp(values.astype(float)), values[:, 0].sum(1)
    for windows in ([0], [1, 2], [3]):
        lowest, places, spans = min(windows, key=nulls.__getitem__), [], {}
        for row in windows:
            question, passage = sizes[row]
            inside = range(question + 2, question + 2 + passage)
            places.append(powers[row, inside])
            for a, b in ((a, b) for a in inside for b in inside if 0 <= b - a < 2):
                span = tuple(place - question - 1 + begins[row] for place in (a, b))
                spans[span] = max(spans.get(span, 0), powers[row, a, 0] * powers[row, b, 1])
        whole = np.concatenate([*places, powers[lowest, :1]]).sum(0).prod()
        best = sorted(spans, key=spans.__getitem__, reverse=True)[:4]
        row = windows[0]
        assert list(zip(first[row], last[row]))[: len(best)] == best
        np.testing.assert_allclose(chances[row, : len(best)], [spans[x] / whole for x in best])
        assert not chances[row, len(best) :].any()
        assert empty[row] == pytest.approx(powers[lowest, 0].prod() / whole)
        assert odds[row] == pytest.approx(np.log(empty[row] / chances[row, 0]))
    for span, expected in (
        ([4, 4], [[7, 7], [4, 4]]), ([1, 2], [[4, 5], [0, 0]]), ([0, 0], [[0, 0], [0, 0]]),
        ([-1, -1], [[-1, -1], [-1, -1]]), ([3, 4], [[6, 7], [0, 0]]),
    ):  # fmt: skip
        found = data.with_labels(batch, np.array([[0, 0], span, [0, 0], [0, 0]]))
        assert found["labels"].tolist()[1:3] == expected
        assert found["weights"].tolist() == [1, 1, 1, 1, 0]
    odds, answered, empty = source.randn(40).round(1), source.rand(40), source.rand(40) > 0.5

    def mean(limit):
        return np.where(odds < limit, answered, empty).mean()

    best = max(mean(limit) for limit in [-9, *(odds + 0.05)])
    assert mean(scores.best_threshold(odds, answered, empty)) == pytest.approx(best)


def test_the_built_in_answers_are_where_they_begin_and_the_first_sentence_is_not_enough():
    train, dev = corpora.questions()
    assert not set(train.pairs or []) & set(dev.pairs or []) and len(dev) > 500
    for part in (train, dev):
        for passage, label in zip(part.pairs or [], part.labels or []):
            assert all(passage.startswith(text, at) for text, at in json.loads(label))
        assert 0.05 < (part.labels or []).count(data.NO_ANSWER) / len(part) < 0.5
    sentences = [re.split("[.;] ", passage)[0] for passage in dev.pairs or []]
    assert 0.4 < scores.compared(sentences, dev.labels or [])[:, 1].mean() < 0.5
