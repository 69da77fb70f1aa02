"""Files in the layouts of public data sets, written anew from their description."""

from __future__ import annotations

import csv
import io
import json
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

TRAIN, DEV, TEST = 48, 12, 5


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


def lines(record: Callable[[int, Sample], Any], joined: str = "\n") -> Callable[[Records], str]:
    def write(made: Records) -> str:
        objects = [json.dumps(record(*s), ensure_ascii=False) for s in enumerate(made)]
        return joined.join(objects) + "\n" if joined == "\n" else f"[{joined.join(objects)}]"

    return write


def table(header: str, row: Callable[[int, Sample], Any], comma: bool = False) -> Any:
    def write(made: Records) -> str:
        rows = [header.split(",")] * bool(header) + [row(*sample) for sample in enumerate(made)]
        if not comma:
            return "".join("\t".join(map(str, cells)) + "\n" for cells in rows)
        file = io.StringIO()
        csv.writer(file).writerows(rows)
        return file.getvalue()

    return write


def conll(suffix: Callable[[int], str]) -> Callable[[Records], str]:
    def write(made: Records) -> str:
        out = []
        for s in made:
            end = s.start + len(s.name)
            for i, char in enumerate(s.text):
                tag = "O" if not s.start <= i < end else ("BI"[i > s.start] + "-PER.NAM")
                out.append(f"{char}{suffix(i)}\t{tag}\n")
            out.append("\n")
        return "".join(out)

    return write


class Layout(NamedTuple):
    """How a data set is written.

    Attributes:
      recipe: the recipe that trains on it.
      name: name of its training file.
      write, write_test: samples -> file; the test file has no labels.
      says: words of the start of the run.
      flags: flags of the training.
    """

    recipe: str
    name: str
    write: Callable[[Records], str]
    write_test: Callable[[Records], str]
    says: str
    flags: Sequence[str] = ()


def texts(made: Records) -> str:
    return "".join(f"{sample.text}\n" for sample in made)


LAYOUTS: Dict[str, Layout] = {
    "CLUENER": Layout(
        "tagging", "train.json",
        lines(lambda i, s: {"text": s.text, "label": {"name": {
            s.name: [[s.start, s.start + len(s.name) - 1]]}}}),
        lines(lambda i, s: {"id": i, "text": s.text}), 'text = "text", label = "label" (JSON)',
    ),
    "CMeEE": Layout(
        "tagging", "CMeEE_train.json",
        lines(lambda i, s: {"text": s.text, "entities": [{
            "start_idx": s.start, "end_idx": s.start + len(s.name) - 1, "type": "dis",
            "entity": s.name}]}, ",\n  "),
        lines(lambda i, s: {"text": s.text}, ",\n  "), 'label = "entities" (JSON)',
    ),
    "doccano": Layout(
        "tagging", "all.jsonl",
        lines(lambda i, s: {"id": i, "text": s.text,
                            "label": [[s.start, s.start + len(s.name), "PER"]]}),
        texts, 'text = "text", label = "label" (JSON); "id" unused',
    ),
    "Weibo NER": Layout(
        "tagging", "weiboNER.conll.train", conll(lambda i: ""), texts,
        "text = 0, label = 1 (CoNLL)",
    ),
    "Weibo NER, 2nd edition": Layout(
        "tagging", "weiboNER_2nd_conll.train", conll(lambda i: str(i % 3)), texts,
        "end with a digit",
    ),
    "ChnSentiCorp": Layout(
        "classification", "train.tsv", table("label,text_a", lambda i, s: (s.label, s.text)),
        table("qid,text_a", lambda i, s: (i, s.text)),
        'text = 1 "text_a", label = 0 "label" (header)',
    ),
    "ChnSentiCorp_htl_all": Layout(
        "classification", "htl.csv", table("label,review", lambda i, s: (s.label, s.text), True),
        table(",review", lambda i, s: (i, s.text), True),
        'text = 1 "review", label = 0 "label" (header)',
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
        ("--method", "cross-encoder"),
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
        ("--text-field", "v2", "--label-field", "v1"),
    ),
    "GoEmotions": Layout(
        "classification", "train.tsv",
        table("", lambda i, s: (s.text, 27 - 23 * s.label, f"eeb{i * 7919 % 9973:04d}")),
        table("", lambda i, s: (s.text, 4, f"eeb{i * 7919 % 9973:04d}")),
        "text = 0, label = 1 (no header); 2 unused",
    ),
    "TNEWS": Layout(
        "classification", "train.json",
        lines(lambda i, s: {"label": str(108 + s.label), "label_desc": "news_edu",
                            "sentence": s.text, "keywords": ""}),
        lines(lambda i, s: {"id": i, "sentence": s.text, "keywords": ""}),
        'text = "sentence", label = "label" (JSON); "label_desc", "keywords" unused',
    ),
}  # fmt: skip
WITH_PAIRS = ("LCQMC", "STS-B", "GLUE RTE")
