"""Files with questions, the tokens of answers, spans from scores, EM and F1 as published."""

from __future__ import annotations

import json
import random
import re
import string
from collections import Counter

import numpy as np
import pytest
from nltk.tokenize.destructive import NLTKWordTokenizer

from amp_xla.data.text import corpora
from amp_xla.data.text.readers import Dataset
from amp_xla.data.text.tokenizer import Tokenizer
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


def normalized(text):
    """As in SQuAD's evaluate-v1.1.py and v2.0: case, punctuation, articles, white space."""
    text = "".join(char for char in text.lower() if char not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def squad_of(answer, right, second):
    if second:
        right = [text for text in right if normalized(text)] or [""]
    best = [0, 0]
    for text in right:
        found, wanted = normalized(answer).split(), normalized(text).split()
        same = sum((Counter(found) & Counter(wanted)).values())
        f1 = 0.0
        if second and (not found or not wanted):
            f1 = float(found == wanted)
        elif same:
            precision, recall = same / len(found), same / len(wanted)
            f1 = 2 * precision * recall / (precision + recall)
        best = [max(best[0], normalized(answer) == normalized(text)), max(best[1], f1)]
    return best


MARKS = [*"-:_*^/\\~`+=，。：？！“”；’《》", "……", *"·、「」（）－～『』"]


def segments(text):
    """As mixed_segmentation(text, rm_punc=True) in CMRC 2018's cmrc2018_evaluate.py."""
    result, others = [], ""
    for char in text.lower().strip():
        if char in MARKS:
            continue
        if re.search("[\u4e00-\u9fa5]", char):
            result += [*(NLTKWordTokenizer().tokenize(others) if others else []), char]
            others = ""
        else:
            others += char
    return result + (NLTKWordTokenizer().tokenize(others) if others else [])


def cmrc_of(answer, right):
    def plain(text):
        return "".join(char for char in text.lower().strip() if char not in MARKS)

    scored = [0.0]
    found = segments(answer)
    for text in right:
        wanted, longest = segments(text), 0
        for i in range(len(found)):
            for j in range(len(wanted)):
                size = 0
                while found[i + size : i + size + 1] == wanted[j + size : j + size + 1] != []:
                    size += 1
                longest = max(longest, size)
        if longest:
            precision, recall = longest / len(found), longest / len(wanted)
            scored.append(2 * precision * recall / (precision + recall))
    return [float(any(plain(answer) == plain(text) for text in right)), max(scored)]


ENGLISH = "the The a An rome Rome, 1,000 it's (Corp.) corp – ... $5 U.S. an".split()
CHINESE = [*"北京大学的年月，。《》……·", "BERT", "2018", " 3.5% ", "U.S.", "don't", "-", "…", "α"]


@pytest.mark.parametrize("form", ["1.1", "2.0", "CMRC"])
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
    wanted = [
        cmrc_of(*each) if form == "CMRC" else squad_of(*each, form == "2.0")
        for each in zip(answers, right)
    ]
    np.testing.assert_allclose(found, wanted, atol=1e-12)
    assert 0.1 < found[:, 0].mean() < found[:, 1].mean() < 0.95


def test_a_passage_in_windows_has_the_best_span_of_all_and_the_lowest_score_of_no_answer():
    tokens = [1, *[7] * 2, 2, *[7] * 4, 2]  # a question of 2 tokens, 4 of the passage
    batch = {
        "token_ids": np.array([tokens] * 3), "segment_ids": np.array([[0] * 4 + [1] * 5] * 3),
        "sample_ids": np.array([5, -1, -1]), "owners": np.array([5, 5, -1]),
        "begins": np.array([0, 3, 0]),
    }  # fmt: skip
    values = np.random.RandomState(2).randn(3, 9, 2) - 3
    values[0, 7], values[1, 5] = 4.0, 6.0  # tokens 4 and 5 of the passage
    values[1, 4] = 4.5  # token 4 again
    values[:, 0] = np.array([3.0, 2.0, -9.0])[:, None]
    firsts, lasts, chances, odds, empty = scores.decode(values, batch, 2, 3)
    assert list(zip(firsts[0], lasts[0])) == [(5, 5), (4, 5), (4, 4)]
    places = np.concatenate([values[0, 4:8], values[1, 4:8], values[1, :1]])
    whole = np.exp(places).sum(0).prod()
    np.testing.assert_allclose(chances[0], np.exp([12.0, 10.5, 9.0]) / whole)
    assert odds[0] == pytest.approx(4.0 - 12.0) and not chances[1:].any()
    assert empty[0] == pytest.approx(np.exp(4.0) / whole)
    for span, expected in (
        ([4, 4], [[7, 7], [4, 4]]), ([1, 2], [[4, 5], [0, 0]]), ([0, 0], [[0, 0], [0, 0]]),
        ([-1, -1], [[-1, -1], [-1, -1]]),
    ):  # fmt: skip
        found = data.with_labels(batch, np.array([[0, 0]] * 5 + [span]))
        assert found["labels"].tolist()[:2] == expected
        assert found["weights"].tolist() == [1, 1, 0]


@pytest.mark.parametrize("seed", range(3))
def test_spans_are_those_of_all_pairs_and_the_threshold_of_all_thresholds(seed):
    source = np.random.RandomState(seed)
    ids, segments_of = np.zeros((2, 3, 9), int)
    for row, (question, passage) in enumerate([(2, 3), (1, 5), (3, 1)]):
        ids[row, : question + passage + 3] = 7
        segments_of[row, question + 2 : question + passage + 3] = 1
    batch = {"token_ids": ids, "segment_ids": segments_of, "sample_ids": np.arange(3)}
    values = source.randn(3, 9, 2).astype(np.float32)
    first, last, chances, odds, empty = scores.decode(values, batch, 2, 4)
    for row, places in enumerate([range(4, 7), range(3, 8), range(5, 6)]):
        both = np.exp(values[row].astype(float))
        both /= both[[0, *places]].sum(0)
        spans = [(both[a, 0] * both[b, 1], a, b) for a in places for b in places if 0 <= b - a < 2]
        spans.sort(reverse=True)
        for n, (chance, a, b) in enumerate(spans[:4]):
            shift = places[0] - 1
            assert (first[row, n] + shift, last[row, n] + shift) == (a, b)
            assert chances[row, n] == pytest.approx(chance)
        assert not chances[row, len(spans) :].any()
        assert empty[row] == pytest.approx(both[0].prod())
        assert odds[row] == pytest.approx(np.log(empty[row] / chances[row, 0]))
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
