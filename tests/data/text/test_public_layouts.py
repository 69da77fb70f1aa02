"""Files as public data sets ship them are read for training, evaluation and prediction.

They are written anew from their description. Those of other data sets are in test_columns.py,
test_readers.py and tests/tasks/tagging.
"""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import pytest

from amp_xla.data.batches.options import BatchOptions
from amp_xla.data.labelled import Preparation
from amp_xla.data.text.entities import unpack
from amp_xla.data.text.options import TaggedFiles, TextFiles, VocabularyOptions
from amp_xla.tasks.classification import data as classification
from amp_xla.tasks.similarity import data as pairs
from amp_xla.tasks.tagging import data as tagged

pytestmark = pytest.mark.once

TRAIN, DEV, TEST = 48, 12, 5
KINDS: Dict[str, Any] = {
    "classification": TextFiles, "similarity": pairs.PairFiles, "tagging": TaggedFiles
}  # fmt: skip


class Sample(NamedTuple):
    """A sample in no layout: two texts, a label from 0 on, and an entity of the first text."""

    text: str
    pair: str
    label: int
    start: int
    name: str


def samples(count: int, seed: int) -> List[Sample]:
    names, made = ["张三", "李四光", "王五"], []
    for i in range(count):
        name = names[(i + seed) % 3]
        text = f"第{i * 7 + seed}位, {name}说“{'很好' if i % 2 else '不好'}”"
        made.append(Sample(text, f"{name}说了什么 {i}", i % 2, text.index(name), name))
    return made


Records = Sequence[Sample]


def array(record: Callable[[Sample], Any]) -> Callable[[Records], str]:
    return lambda made: json.dumps([record(s) for s in made], ensure_ascii=False, indent=1)


def table(header: str, row: Callable[[int, Sample], Any], comma: bool = False) -> Any:
    def write(made: Records) -> str:
        rows = [header.split(",")] * bool(header) + [row(*sample) for sample in enumerate(made)]
        if not comma:
            return "".join("\t".join(map(str, cells)) + "\n" for cells in rows)
        file = io.StringIO()
        csv.writer(file).writerows(rows)
        return file.getvalue()

    return write


def conll(made: Records) -> str:
    out = []
    for s in made:
        end = s.start + len(s.name)
        for i, char in enumerate(s.text):
            tag = "O" if not s.start <= i < end else ("BI"[i > s.start] + "-PER.NAM")
            out.append(f"{char}\t{tag}\n")
        out.append("\n")
    return "".join(out)


class Layout(NamedTuple):
    """How a data set is written.

    Attributes:
      recipe: the recipe that trains on it.
      name: name of its training file.
      write, write_test: samples -> file; the test file has no labels.
      says: words of the start of the run.
      fields: fields that flags name.
    """

    recipe: str
    name: str
    write: Callable[[Records], str]
    write_test: Callable[[Records], str]
    says: str
    fields: Sequence[Tuple[str, str]] = ()


def texts(made: Records) -> str:
    return "".join(f"{sample.text}\n" for sample in made)


LAYOUTS: Dict[str, Layout] = {
    "CMeEE": Layout(
        "tagging", "CMeEE_train.json",
        array(lambda s: {"text": s.text, "entities": [{
            "start_idx": s.start, "end_idx": s.start + len(s.name) - 1, "type": "dis",
            "entity": s.name}]}),
        array(lambda s: {"text": s.text}), 'label = "entities" (JSON)',
    ),
    "Weibo NER": Layout(
        "tagging", "weiboNER.conll.train", conll, texts, "text = 0, label = 1 (CoNLL)",
    ),
    "LCQMC": Layout(
        "similarity", "train.txt", table("", lambda i, s: (s.text, s.pair, s.label)),
        table("", lambda i, s: (s.text, s.pair)), "text = 0, pair = 1, label = 2 (no header)",
    ),
    "STS-B": Layout(
        "similarity", "train.tsv",
        table("index,genre,filename,year,old_index,source1,source2,sentence1,sentence2,score",
              lambda i, s: (i, "main", "MSR", "2012", i, "none", "none", s.text, s.pair,
                            f"{i % 6 - 0.2 * (i % 2):.3f}")),
        table("index,genre,filename,year,old_index,source1,source2,sentence1,sentence2",
              lambda i, s: (i, "main", "MSR", "2012", i, "none", "none", s.text, s.pair)),
        'text = 7 "sentence1", pair = 8 "sentence2", label = 9 "score" (header); 0 "index"',
    ),
    "GLUE RTE": Layout(
        "classification", "train.tsv",
        table("index,sentence1,sentence2,label",
              lambda i, s: (i, s.text, s.pair, ("entailment", "not_entailment")[s.label])),
        table("index,sentence1,sentence2", lambda i, s: (i, s.text, s.pair)),
        'pair = 2 "sentence2", label = 3 "label" (header); 0 "index" unused',
    ),
    "spam.csv": Layout(
        "classification", "spam.csv",
        table("v1,v2,,,", lambda i, s: (("ham", "spam")[s.label], s.text, "", "", ""), True), texts,
        'text = 1 "v2", label = 0 "v1" (header); 2 "", 3 "", 4 "" unused',
        (("text_field", "v2"), ("label_field", "v1")),
    ),
}  # fmt: skip
WITH_PAIRS = ("LCQMC", "STS-B", "GLUE RTE")


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_public_layout(tmp_path: Path, name: str) -> None:
    layout = LAYOUTS[name]
    names = {part: str(tmp_path / f"{part}.{layout.name}") for part in ("train", "dev", "test")}
    Path(names["train"]).write_text(layout.write(samples(TRAIN, 1)), encoding="utf-8")
    Path(names["dev"]).write_text(layout.write(samples(DEV, 2)), encoding="utf-8")
    files = KINDS[layout.recipe](train=names["train"], dev=names["dev"], **dict(layout.fields))
    how = Preparation(VocabularyOptions(vocab_size=300), BatchOptions(max_length=32), None, 0.0, 1)
    if layout.recipe == "tagging":
        data = tagged.read(files, how, "crf")
        for text, label, sample in zip(
            data.train.texts, data.train.labels or [], samples(TRAIN, 1)
        ):
            (entity,) = unpack(label)
            assert text[entity.start : entity.end] == sample.name
    elif layout.recipe == "similarity":
        data = pairs.read("cosent", files, how)
    else:
        data = classification.read(files, how)
        first = (data.train.labels or [])[0]
        counts = [(data.train.labels or []).count(first), (data.dev.labels or []).count(first)]
        assert counts == [TRAIN // 2, DEV // 2] and len(data.labels) == 2
    assert (len(data.train), len(data.dev)) == (TRAIN, DEV) and layout.says in data.description
    assert (data.train.pairs is not None) == (name in WITH_PAIRS)
    lines, wanted = files.examples(names["dev"], data.train.columns)
    assert len(lines) == len(wanted) == DEV and wanted == data.dev.labels
    content = layout.write_test(samples(TEST, 3))
    name_of_test = "test.txt" if layout.write_test is texts else os.path.basename(names["test"])
    inputs, _ = files.questions(name_of_test, content.splitlines(), data.train.columns)
    expected = [s.text + f"\t{s.pair}" * (name in WITH_PAIRS) for s in samples(TEST, 3)]
    assert [text for text in inputs if text] == expected
