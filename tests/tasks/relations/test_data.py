"""Files with triples, their positions in tokens, decoding and counts."""

import email
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

from amp_xla.data.alignment import AlignedTexts, warning
from amp_xla.data.text import corpora
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.tasks.relations import answers as scores
from amp_xla.tasks.relations.data import RelationFiles, Triple, cells_of, span, unpack

pytestmark = pytest.mark.once
TEXT, GOLD = "Ann leads Ann Corp in Rome", [("Ann", "leads", "Ann Corp"), ("Ann", "in", "Rome")]
OBJECTS = [{"subject": s, "predicate": p, "object": o} for s, p, o in GOLD]
VALUES = [
    {"subject": s, "predicate": p, "object": {"@value": o}, "object_type": {"@value": "x"}}
    for s, p, o in GOLD
]


def gold_of(data):
    return list(map(unpack, data.labels or []))


PARTS = [{"subject": "Ann", "predicate": "sings", "object": {"@value": "a song", "inWork": "x"}}]
SUNG = [("Ann", "sings", "a song"), ("Ann", "sings_inWork", "x")]  # each part is a triple


@pytest.mark.parametrize("field, listed, triples", [
    ("spo_list", GOLD, GOLD), ("spo_list", OBJECTS, GOLD), ("spo_list", VALUES, GOLD),
    ("triple_list", GOLD, GOLD), ("spo_list", PARTS, SUNG),
])  # fmt: skip
def test_layouts_of_public_sets(tmp_path, field, listed, triples):
    records = [{"text": TEXT, field: listed}, {field: [], "text": "nothing"}]
    path = tmp_path / "train.json"
    path.write_text(json.dumps(records, indent=1))
    data = RelationFiles().dataset(str(path))
    assert gold_of(data) == [sorted(Triple(*t) for t in triples), []]
    assert data.texts == [TEXT, "nothing"]
    assert data.layout is not None and data.layout.names == {"text": "text", "label": field}


@pytest.fixture
def tokenizer():
    words = "[PAD] [UNK] [CLS] [SEP] ann anna leads corp in rome an ##na a b c".split()
    return Tokenizer(words)


def test_a_name_is_its_first_occurrence_of_whole_tokens(tokenizer):
    aligned = AlignedTexts.of(["Anna, Ann leads Ann"], tokenizer, 16)
    assert span(aligned, 0, "Ann") == (3, 3, "") and aligned.words(0, 3, 3) == "Ann"
    assert span(aligned, 0, "Ann leads") == (3, 4, "")
    assert span(aligned, 0, "nn")[2] == "not at token boundaries"
    assert span(aligned, 0, "Ann ")[2] == "not at token boundaries"
    assert span(aligned, 0, "Rome")[2] == "not in their text"
    cut = AlignedTexts.of(["a a a Ann"], tokenizer, 5)
    assert span(cut, 0, "Ann")[2] == "cut off by --max-length"


def test_what_cannot_be_found_is_counted_and_named(tokenizer):
    aligned = AlignedTexts.of(["Ann leads a Corp in Rome", "a b"], tokenizer, 7)
    gold = [
        [Triple("Ann", "leads", "Corp"), Triple("Ann", "in", "Rome"), Triple("An", "in", "Oslo")],
        [],
    ]
    missed = {}
    cells = cells_of(gold, aligned, {"in": 0, "leads": 1}, missed)
    said = warning(missed, 3, "dev triples")
    assert cells == [[(0, 1, 1), (1, 4, 4), (3, 1, 4), (5, 1, 4)], []]
    assert said == (
        "\nwarning: 2 of 3 dev triples cannot be found and count as missed: 1 cut off by "
        "--max-length, such as 'Rome'; 1 not at token boundaries, such as 'An'"
    )


def by_hand(planes, length):
    """GPLinker's decoding as its definition reads: every pair of spans, every predicate."""
    count, found = (len(planes) - 2) // 2, []
    places = range(1, length - 1)
    spans = [
        [(h, t) for h in places for t in places if h <= t and plane[h, t] > 0]
        for plane in planes[:2]
    ]
    for p, subject, obj in itertools.product(range(count), *spans):
        (sh, st), (oh, ot) = subject, obj
        if planes[2 + p, sh, oh] > 0 and planes[2 + count + p, st, ot] > 0:
            found.append((p, sh, st, oh, ot))
    return sorted(found)


@pytest.mark.parametrize("seed", range(5))
def test_decoding_is_its_definition(seed):
    source = np.random.RandomState(seed)
    planes = source.randn(8, 9, 9).astype(np.float32) - 0.5
    for length in (2, 3, 7, 9):
        assert sorted(scores.decode(planes, length)) == by_hand(planes, length)


def test_counts_exact_and_in_part():
    found = [Triple("a b", "p", "c"), Triple("x", "p", "y"), Triple("x", "q", "y")]
    gold = [Triple("a", "p", "c d"), Triple("x", "p", "y"), Triple("m", "p", "n")]
    result = scores.TripleScores(None, ("p", "q"), [gold, []], [found, []])
    assert result.rows().tolist() == [[1, 3, 3, 2, 2], [0] * 5]
    assert result.score(result.rows()) == pytest.approx(
        {"f1": 1 / 3, "precision": 1 / 3, "recall": 1 / 3, "partial_f1": 2 / 3}
    )
    assert set(result.score(np.zeros((1, 5))).values()) == {0.0}


@pytest.mark.parametrize(
    "planes, said",
    [
        ((-3, -5, -5), "the best of a text is -3.0 on average"),
        ((3, -5, -5), "2 subjects and objects per text, but no predicate links them; the best"),
        ((3, -5, 3), "2 subjects and objects per text and 1 triples; 1 have the right subject"),
    ],
)
def test_an_f1_of_0_is_explained(tokenizer, planes, said):
    aligned = AlignedTexts.of(["ann leads corp"], tokenizer, 32)
    gold = [[Triple("ann", "p", "corp")]]
    (cells, *_) = cells_of(gold, aligned, {"p": 0, "q": 1}, {})
    entities, right, wrong = planes
    values = np.full((2, 6, 8, 8), -6.0)
    for plane, row, column in cells:
        values[0, plane, row, column] = entities if plane < 2 else right
        values[0, plane + 1 if plane > 1 else plane, row, column] = entities if plane < 2 else wrong
    batch = {"sample_ids": np.array([0, -1])}
    found = scores.found_in(batch, {"scores": values}, aligned, ("p", "q"))
    assert said in scores.explained(scores.state(batch, {"scores": values}, found, gold))


def test_the_built_in_texts_have_triples_of_their_code(monkeypatch):
    monkeypatch.setattr(corpora, "LIBRARY", str(Path(email.__file__).parent))
    train, dev = corpora.relations.__wrapped__()
    assert len(train) > 150 and not set(train.texts) & set(dev.texts)
    for text, triples in zip(dev.texts, gold_of(dev)):
        for name in {name for triple in triples for name in triple[::2]}:
            assert len(re.findall(rf"\b{name}\b", text)) == 1
    names = {triple.label for triples in gold_of(train) for triple in triples}
    assert names == {"defines", "extends", "takes"}
