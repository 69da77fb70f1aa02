"""Files of public data sets that other tests have no like of, read for all that a file is for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import pytest

from amp_xla.data.batches.options import BatchOptions
from amp_xla.data.labelled import Preparation
from amp_xla.data.text.options import TaggedFiles, TextFiles, VocabularyOptions
from amp_xla.tasks.classification.data import read as read_texts
from amp_xla.tasks.similarity.data import PairFiles
from amp_xla.tasks.similarity.data import read as read_pairs
from amp_xla.tasks.tagging.data import read as read_tagged

pytestmark = pytest.mark.once

TEXTS = [f"第{i * 7}位, 张三说“{'很好' if i % 2 else '不好'}”" for i in range(48)]
STS_B = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
HEADER, UNUSED = f"{STS_B}\tscore\n", "main\tMSR\t2012\t3\tnone\tnone"


def news(i: int) -> Dict[str, Any]:
    return {"label": str(108 + i % 2), "label_desc": "news_edu", "sentence": TEXTS[i]}


def disease(i: int) -> Dict[str, Any]:
    start = TEXTS[i].index("张三")
    entity = {"start_idx": start, "end_idx": start + 1, "type": "dis", "entity": "张三"}
    return {"text": TEXTS[i], "entities": [entity]}


def objects(record: Callable[[int], Any]) -> str:
    return "".join(f"{json.dumps(record(i), ensure_ascii=False)}\n" for i in range(48))


# Name of the file -> its kind, the function that reads it, content, a file without answers, what is
# said of the columns.
LAYOUTS: Dict[str, Tuple[Any, Callable[..., Any], str, str, str]] = {
    "TNEWS.json": (
        TextFiles, read_texts, objects(lambda i: {**news(i), "keywords": ""}),
        objects(lambda i: {"id": i, "sentence": TEXTS[i], "keywords": ""}),
        'text = "sentence", label = "label" (JSON); "label_desc", "keywords" unused',
    ),
    "STS-B.tsv": (
        PairFiles, lambda *rest: read_pairs("cosent", *rest),
        HEADER + "".join(f"{i}\t{UNUSED}\t{TEXTS[i]}\t谁\t{i % 6 - 0.2:.3f}\n" for i in range(48)),
        f"{STS_B}\n" + "".join(f"{i}\t{UNUSED}\t{TEXTS[i]}\t谁\n" for i in range(48)),
        'text = 7 "sentence1", pair = 8 "sentence2", label = 9 "score" (header); 0 "index"',
    ),
    "CMeEE.json": (
        TaggedFiles, lambda *rest: read_tagged(*rest, "crf"),
        json.dumps([disease(i) for i in range(48)], ensure_ascii=False, indent=1),
        json.dumps([{"text": text} for text in TEXTS], ensure_ascii=False, indent=1),
        'label = "entities" (JSON)',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_public_layout(tmp_path: Path, name: str) -> None:
    kind, read, content, without, said = LAYOUTS[name]
    path = str(tmp_path / name)
    Path(path).write_text(content, encoding="utf-8")
    files = kind(train=path, dev=path)
    vocabulary = VocabularyOptions(vocab_size=300)
    data = read(files, Preparation(vocabulary, BatchOptions(max_length=32), None, 0.0, 1))
    assert said in data.description and data.train.texts == TEXTS
    assert set(data.train.pairs or []) == ({"谁"} if kind is PairFiles else set())
    assert files.examples(path, data.train.columns)[1] == data.train.labels
    asked: List[str] = files.questions(f"test.{name}", without.splitlines(), data.train.columns)[0]
    expected = [f"{text}\t谁" for text in TEXTS] if kind is PairFiles else TEXTS
    assert [text for text in asked if text] == expected
