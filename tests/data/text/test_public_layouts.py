"""Files as public data sets ship them are read for training, evaluation and prediction."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from amp_xla.data.labelled import BatchOptions, Preparation
from amp_xla.data.text.entities import unpack
from amp_xla.data.text.options import TaggedFiles, TextFiles, VocabularyOptions
from amp_xla.tasks.classification import data as classification
from amp_xla.tasks.similarity import data as pairs
from amp_xla.tasks.tagging import data as tagged
from tests.support.public_layouts import DEV, LAYOUTS, TEST, TRAIN, WITH_PAIRS, samples, texts

pytestmark = pytest.mark.once

KINDS = {
    "classification": TextFiles, "similarity": pairs.PairFiles, "tagging": TaggedFiles
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_public_layout(tmp_path, name):
    layout = LAYOUTS[name]
    names = {part: str(tmp_path / f"{part}.{layout.name}") for part in ("train", "dev", "test")}
    Path(names["train"]).write_text(layout.write(samples(TRAIN, 1)), encoding="utf-8")
    Path(names["dev"]).write_text(layout.write(samples(DEV, 2)), encoding="utf-8")
    flags = {flag[2:].replace("-", "_"): value for flag, value in zip(*[iter(layout.flags)] * 2)}
    flags.pop("method", None)
    files = KINDS[layout.recipe](train=names["train"], dev=names["dev"], **flags)
    how = Preparation(VocabularyOptions(vocab_size=300), BatchOptions(max_length=32), None, 0.0, 1)
    if layout.recipe == "tagging":
        data = tagged.read(files, how, "crf")
        for text, label, sample in zip(
            data.train.texts, data.train.labels or [], samples(TRAIN, 1)
        ):
            (entity,) = unpack(label)
            assert "2nd" in name or text[entity.start : entity.end] == sample.name
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
