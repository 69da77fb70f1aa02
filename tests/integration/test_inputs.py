"""Mistaken input has an exit code and one line, and changes nothing on the disk.

Real commands in real processes, forked from one that has TensorFlow imported.
"""

import json
import random
import re

import pytest

from tests.support.commands import PREDICT, RECIPE, Commands, bytes_of

pytestmark = pytest.mark.once

TINY = (
    "--train", "train.jsonl", "--dev", "dev.jsonl", "--layers", "1", "--hidden", "64",
    "--max-length", "16", "--shapes", "1", "--vocab-size", "80", "--precision", "fp32",
    "--epochs", "1",
)  # fmt: skip
KITCHEN = "kitchen\n\x1b[31m\t2"  # a label that a terminal must not obey
WORDS = {"weather": "rain wind snow sun cloud", KITCHEN: "soup bread pan salt oven"}
# Blank lines, and characters at which str.splitlines cuts though no file of lines ends one there.
LINES = [
    "rain wind", "", "salt\u2028soup", " \x0c", "snow\x0csun", "pan\x85oven", "sun\rrain", "中文",
]  # fmt: skip


class Place(Commands):
    """A folder with data and a trained run, and commands started in it."""

    def train(self, *flags, **job):
        return self(RECIPE, *TINY, *flags, **job)

    def predict(self, *flags, **job):
        return self(PREDICT, "--run", "runs/classification/good", *flags, **job)


@pytest.fixture(scope="module")
def place(tmp_path_factory, server):
    folder = tmp_path_factory.mktemp("inputs")
    rng = random.Random(1)
    for name, count in (("train.jsonl", 128), ("dev.jsonl", 32)):
        rows = []
        for label in rng.choices(sorted(WORDS), k=count):
            text = " ".join(rng.choices(WORDS[label].split(), k=5))
            rows.append(json.dumps({"text": text, "label": label}) + "\n")
        (folder / name).write_text("".join(rows), encoding="utf-8")
    (folder / "texts.txt").write_text("\n".join(LINES), encoding="utf-8")
    (folder / "dos.txt").write_bytes("\r\n".join([*LINES, ""]).encode("utf-8-sig"))
    (folder / "utf8.txt").write_bytes(b"rain\nsn\xffow\n")
    (folder / "many.txt").write_text("rain sun\n" * 1000)
    created = Place(server, folder)
    result = created.train("--name", "good")
    assert result.code == 0, result.err
    return created


@pytest.mark.parametrize(("file", "encoding"), [("texts.txt", "ascii"), ("dos.txt", "latin-1")])
def test_each_line_has_its_answer_whatever_the_locale(place, file, encoding):
    result = place.predict("--file", file, encoding=encoding)
    assert result.code == 0, result.err
    answers = result.out.split("\n")
    assert answers.pop() == ""
    assert len(answers) == len(LINES)
    for line, answer in zip(LINES, answers):
        if line.strip():
            label, chance, text = answer.split("\t")
            assert label in ("weather", r"kitchen\n\x1b[31m\t2") and 0.5 <= float(chance) <= 1
            assert text == re.sub("[\x0c\r\x85]", lambda c: ascii(c.group())[1:-1], line)
        else:
            assert answer == ""


WRONG = {
    "no such file": (("--file", "nowhere.txt"), {}, 2, "error: nowhere.txt: no such file"),
    "a folder": (("--file", "runs"), {}, 2, "error: runs: cannot be read"),
    "not UTF-8": (("--file", "utf8.txt"), {}, 2, "error: utf8.txt, line 2: is not UTF-8"),
    "nothing": ((), {"stdin": "/dev/null"}, 0, "warning: standard input has no text"),
    "-": (("--file", "-"), {"stdin": "/dev/null"}, 0, "warning: standard input has no text"),
    "JSON": (("--file", "dev.jsonl"), {}, 0, 'columns: text = "text" (JSON); "label" unused'),
    "closed input": ((), {}, 2, "error: standard input is closed"),
    "full": (("--file", "texts.txt"), {"stdout": "/dev/full"}, 2, "error: cannot write to stand"),
    "unread": (("--file", "many.txt"), {"stdout": "unread"}, 141, "standard output was closed"),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(WRONG))
def test_predict_reports_errors_in_one_line(place, case):
    flags, job, code, line = WRONG[case]
    unchanged = bytes_of(place.folder / "runs")
    result = place.predict(*flags, **job)
    assert result.code == code, result.err
    lines = [text for text in result.err.splitlines() if not text.endswith(" ...")]
    (said,) = [text for text in lines if not text.startswith("settings:")]
    assert said.startswith(line) and "Traceback" not in result.err
    assert bytes_of(place.folder / "runs") == unchanged
