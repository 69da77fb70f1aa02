"""Files as public data sets ship them are read for training, evaluation and prediction."""

import dataclasses

import pytest

from amp_xla.data.labelled import BatchOptions, Preparation
from amp_xla.data.text.options import TaggedFiles, TextFiles, VocabularyOptions
from amp_xla.tasks.classification import data as classification
from amp_xla.tasks.similarity import data as pairs
from amp_xla.tasks.tagging import data as tagged

pytestmark = pytest.mark.once

TRAIN, DEV, TEST = 48, 12, 5
READ = {
    TextFiles: classification.read,
    pairs.PairFiles: lambda *words: pairs.read("cosent", *words),
    TaggedFiles: lambda *words: tagged.read(*words, "crf"),
}
STS_B = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
STS_B_ROW = "%(i)d\tmain\tMSR\t2012\t%(i)d\tnone\tnone\t%(text)s\t%(pair)s"
# Name -> files and flags; name of the training file; header and line of the training file, of the
# test file, which has no labels; words of the run's start. Lines of an array begin with "[".
LAYOUTS = {
    "CLUENER": (TaggedFiles(), "train.json", "",
                '{"text": "%(text)s", "label": {"name": {"%(name)s": [[%(start)d, %(last)d]]}}}',
                "", '{"id": %(i)d, "text": "%(text)s"}', 'text = "text", label = "label" (JSON)'),
    "CMeEE": (TaggedFiles(), "CMeEE_train.json", "",
              '[{"text": "%(text)s", "entities": [{"start_idx": %(start)d, "end_idx": %(last)d, '
              '"type": "dis", "entity": "%(name)s"}]}',
              "", '[{"text": "%(text)s"}', 'label = "entities" (JSON)'),
    "doccano": (TaggedFiles(), "all.jsonl", "",
                '{"id": %(i)d, "text": "%(text)s", "label": [[%(start)d, %(last)d, "PER"]]}',
                "", "%(text)s", 'text = "text", label = "label" (JSON); "id" unused'),
    "ChnSentiCorp": (TextFiles(), "train.tsv", "label\ttext_a", "%(label)d\t%(text)s",
                     "qid\ttext_a", "%(i)d\t%(text)s",
                     'text = 1 "text_a", label = 0 "label" (header)'),
    "ChnSentiCorp_htl_all": (TextFiles(), "htl.csv", "label,review", '%(label)d,"%(text)s"',
                             ",review", '%(i)d,"%(text)s"',
                             'text = 1 "review", label = 0 "label" (header)'),
    "LCQMC": (pairs.PairFiles(), "train.txt", "", "%(text)s\t%(pair)s\t%(label)d",
              "", "%(text)s\t%(pair)s", "text = 0, pair = 1, label = 2 (no header)"),
    "STS-B": (pairs.PairFiles(), "train.tsv", f"{STS_B}\tscore", f"{STS_B_ROW}\t%(label)d.600",
              STS_B, STS_B_ROW, 'text = 7 "sentence1", pair = 8 "sentence2", label = 9 "score" '),
    "GLUE RTE": (TextFiles(), "train.tsv", "index\tsentence1\tsentence2\tlabel",
                 "%(i)d\t%(text)s\t%(pair)s\tentailment%(label)d", "index\tsentence1\tsentence2",
                 "%(i)d\t%(text)s\t%(pair)s",
                 'pair = 2 "sentence2", label = 3 "label" (header); 0 "index" unused'),
    "spam.csv": (TextFiles(text_field="v2", label_field="v1"), "spam.csv", "v1,v2,,,",
                 'spam%(label)d,"%(text)s",,,', "", "%(text)s",
                 'text = 1 "v2", label = 0 "v1" (header); 2 "", 3 "", 4 "" unused'),
    "GoEmotions": (TextFiles(), "train.tsv", "", "%(text)s\t2%(label)d\teeb%(hash)04d",
                   "", "%(text)s\t4\teeb%(hash)04d", "text = 0, label = 1 (no header); 2 unused"),
    "TNEWS": (TextFiles(), "train.json", "",
              '{"label": "10%(label)d", "label_desc": "news_edu", "sentence": "%(text)s", '
              '"keywords": ""}', "", '{"id": %(i)d, "sentence": "%(text)s", "keywords": ""}',
              'text = "sentence", label = "label" (JSON); "label_desc", "keywords" unused'),
}  # fmt: skip


def samples(count, seed):
    """Return the fields of samples: two texts, a label, and an entity of the first text."""
    names, made = ["张三", "李四光", "王五"], []
    for i in range(count):
        name, end = names[(i + seed) % 3], 2 * (i % 2)
        text = f"第{i * 7 + seed}位, {name}说“{'很好' if end else '不好'}”"
        start = text.index(name)
        made.append({
            "i": i, "text": text, "pair": f"{name}说了什么 {i}", "label": i % 2, "name": name,
            "start": start, "last": start + len(name) - 1, "hash": i * 7919 % 9973,
        })  # fmt: skip
    return made


def content(header, line, fields):
    """Return a file of these samples."""
    lines = [line.lstrip("[") % each for each in fields]
    whole = ",\n  ".join(lines) if line.startswith("[") else "\n".join(lines)
    return f"{header}\n" * bool(header) + (f"[{whole}]\n" if line.startswith("[") else f"{whole}\n")


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_public_layout(file, name):
    files, end, header, line, header_of_test, line_of_test, says = LAYOUTS[name]
    parts = {"train": samples(TRAIN, 1), "dev": samples(DEV, 2)}
    paths = {part: file(f"{part}.{end}", content(header, line, x)) for part, x in parts.items()}
    files = dataclasses.replace(files, **paths)
    how = Preparation(VocabularyOptions(vocab_size=300), BatchOptions(max_length=32), None, 0.0, 1)
    data = READ[type(files)](files, how)
    assert (len(data.train), len(data.dev)) == (TRAIN, DEV) and says in data.description
    assert data.train.texts == [each["text"] for each in parts["train"]]
    paired = "%(pair)s" in line
    assert data.train.pairs == ([each["pair"] for each in parts["train"]] if paired else None)
    if isinstance(files, TextFiles):
        assert len(set(data.train.labels)) == 2 and data.train.labels[0] == data.train.labels[2]
    lines, wanted = files.examples(paths["dev"], data.train.columns)
    assert len(lines) == len(wanted) == DEV and wanted == data.dev.labels
    asked = samples(TEST, 3)
    name_of_test = "test.txt" if line_of_test == "%(text)s" else f"test.{end}"
    text = content(header_of_test, line_of_test, asked)
    inputs, _ = files.questions(name_of_test, text.splitlines(), data.train.columns)
    expected = [each["text"] + f"\t{each['pair']}" * paired for each in asked]
    assert [each for each in inputs if each] == expected
