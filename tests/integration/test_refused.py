"""Refusals leave a run as it was, copies in a run folder decide nothing, old runs go on.

Each row of REFUSED is a command as a user types it: what was done to the folder before, words of
the one line on stderr; not a byte of the folder may have changed; WRONG are mistakes of `predict`.
CASES are runs that somebody made up to do harm: a command needs less than 2 GB more than it starts
with, and reads and writes nothing outside. Folders of weights are in tests/models.
"""

import functools
import gzip
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save

from amp_xla.data.text.vocabulary import SPECIAL_TOKENS
from amp_xla.process import durable
from amp_xla.training import checkpoint
from amp_xla.training.recipe import own_recipes
from tests.integration.test_fuzz import LIMITS, SECRET, signed_again
from tests.support import google_folder
from tests.support.commands import CLI, PREDICT, RECIPE, VERIFY, Commands, bytes_of
from tests.support.google_folder import without
from tests.tasks.classification.test_recipe import WORDS, write_corpus

TINY = (
    "--layers", "1", "--hidden", "8", "--max-length", "12", "--shapes", "1", "--batch-size", "16",
    "--learning-rate", "2e-2", "--vocab-size", "80", "--log-every", "2", "--seed", "3",
    "--precision", "fp32",
)  # fmt: skip
RUN = Path("runs/classification/mine")
pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def trained(server, tmp_path_factory):
    """A folder with data, a run ``mine`` of two epochs and its answers."""
    folder = tmp_path_factory.mktemp("trained")
    write_corpus(folder / "train.tsv", 64, 1)
    write_corpus(folder / "other.tsv", 64, 7)
    write_corpus(folder / "dev.tsv", 16, 2)
    (folder / "new.txt").write_text("snow and wind\nsalt the soup\nthe pan with rain\n")
    command = Commands(server, folder)
    assert train(command, "--name", "mine").code == 0
    answers = predict(command)
    assert answers.code == 0, answers.err
    (folder / "answers.txt").write_text(answers.out)
    return folder


@pytest.fixture
def command(server, trained, tmp_path):
    """Commands in a copy of ``trained``."""
    shutil.copytree(str(trained), str(tmp_path / "copy"), symlinks=True)
    return Commands(server, tmp_path / "copy")


def train(command, *flags, data="train.tsv", epochs=2):
    words = ("--train", data, "--dev", "dev.tsv", *TINY, "--epochs", str(epochs))
    return command(RECIPE, *words, *flags)


def predict(command, *flags, **job):
    return command(PREDICT, "--run", str(RUN), *(flags or ("--file", "new.txt")), **job)


def answers(command):
    return (command.folder / "answers.txt").read_text()


def damaged(run):
    for path in checkpoint.steps(run / "checkpoints"):
        data = (path / checkpoint.TENSORS).read_bytes()
        (path / checkpoint.TENSORS).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


MINE, WARM = ("--name", "mine"), ("--name", "warm", "--warm-start", str(RUN))
RESUMED = (*MINE, "--resume")
REFUSED = {
    "other data": (None, RESUMED, "other.tsv", ["data train", "file vocab.txt"]),
    "another model, forced": (None, (*RESUMED, "--force-resume", "--hidden", "16"), "train.tsv",
                              ["of another model and cannot be used: tensor ",
                               "setting hidden: 8 in the checkpoint, 16 now"]),
    "another batch size": (None, (*RESUMED, "--batch-size", "8"), "train.tsv",
                           ["setting batch_size: 16 in the checkpoint, 8 now"]),
    "smaller micro-batches": (None, (*RESUMED, "--batch-size", "8", "--accumulate", "3"),
                              "train.tsv", ["setting accumulate: ", "setting batch_size: 16 in"]),
    "no checkpoints": (without("checkpoints"), RESUMED, "train.tsv",
                       ["restore its checkpoints", "config.json", "delete the folder"]),
    "all damaged": (damaged, RESUMED, "train.tsv", ["tensors.safetensors", "no whole"]),
    "a run already": (None, MINE, "train.tsv", ["already holds a run", "--resume"]),
    "a file's name that is not UTF-8": (None, ("--name", "new"), "tr\udcff.tsv",
                                        ["tr\\xff.tsv: the name is not UTF-8"]),
    "a run's name that is not UTF-8": (None, ("--name", "n\udcff"), "train.tsv", ["n\\xff: the"]),
    **{f"misspelt: {name}": (None, ("--name", name, "--resume"), "train.tsv",
                             [f"--name {name}: there is no such run, but there is {RUN};"])
       for name in ("mien", "miine", "min", "Mine")},
    "warm start, other sizes": (None, (*WARM, "--hidden", "16"), "train.tsv",
                                ["tensor Embedding", "float32[512,8], needed float32[512,16]"]),
    "warm start, other words": (None, WARM, "other.tsv", ["vocab.txt differs from this run"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_leaves_every_byte(command, name):
    prepare, flags, data, words = REFUSED[name]
    if prepare:
        prepare(command.folder / RUN)
    before = bytes_of(command.folder)
    error = train(command, *flags, data=data).error
    assert all(word in error for word in words), error
    assert bytes_of(command.folder) == before


# Blank lines, and characters at which str.splitlines cuts though no file of lines ends one there.
LINES = [
    "rain wind", "", "salt\u2028soup", " \x0c", "snow\x0csun", "pan\x85oven", "sun\rrain", "中文",
]  # fmt: skip


@pytest.mark.parametrize(("start", "break_", "encoding"), [
    ("", "\n", "ascii"), ("\ufeff", "\r\n", "latin-1"),
])  # fmt: skip
def test_each_line_has_its_answer_whatever_the_locale(command, start, break_, encoding):
    (command.folder / "lines.txt").write_bytes((start + break_.join(LINES)).encode())
    result = predict(command, "--file", "lines.txt", encoding=encoding)
    assert result.code == 0, result.err
    answers = result.out.split("\n")
    assert answers.pop() == "" and len(answers) == len(LINES)
    for line, answer in zip(LINES, answers):
        if line.strip():
            label, chance, text = answer.split("\t")
            assert label in WORDS and 0.5 <= float(chance) <= 1
            assert text == re.sub("[\x0c\r\x85]", lambda c: ascii(c.group())[1:-1], line)
        else:
            assert answer == ""


WRONG = {
    "no such file": (("--file", "nowhere.txt"), {}, 2, "error: nowhere.txt: no such file"),
    "a folder": (("--file", "runs"), {}, 2, "error: runs: cannot be read"),
    "not UTF-8": (("--file", "utf8.txt"), {}, 2, "error: utf8.txt, line 2: is not UTF-8"),
    "nothing": (("--file", "-"), {"stdin": "/dev/null"}, 0, "warning: standard input has no text"),
    "JSON": (("--file", "a.jsonl"), {}, 0, 'columns: text = "text" (JSON); "label" unused'),
    "closed input": (("--file", "-"), {}, 2, "error: standard input is closed"),
    "full": ((), {"stdout": "/dev/full"}, 2, "error: cannot write to stand"),
    "unread": (("--file", "many.txt"), {"stdout": "unread"}, 141, "standard output was closed"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_predict_reports_errors_in_one_line(command, name):
    flags, job, code, line = WRONG[name]
    (command.folder / "utf8.txt").write_bytes(b"rain\nsn\xffow\n")
    (command.folder / "many.txt").write_text("rain sun\n" * 1000)
    (command.folder / "a.jsonl").write_text('{"text": "rain", "label": "weather"}\n')
    unchanged = bytes_of(command.folder / "runs")
    result = predict(command, *flags, **job)
    assert result.code == code, result.err
    lines = [text for text in result.err.splitlines() if not text.endswith(" ...")]
    (said,) = [text for text in lines if not text.startswith("settings:")]
    assert said.startswith(line) and "Traceback" not in result.err
    assert bytes_of(command.folder / "runs") == unchanged


def changed(run):
    """As somebody who edits them would."""
    for name, old, now in (
        ("config.json", b'"hidden": 8', b'"hidden": 64'),
        ("run.json", b"classification", b"antigravity"),
        ("bert_config.json", b"8", b"9"),
    ):
        data = (run / name).read_bytes()
        assert old in data, name
        (run / name).write_bytes(data.replace(old, now))
    (run / "labels.json").write_text('["weather", "kitchen"]')
    words = (run / "vocab.txt").read_bytes().split(b"\n")
    (run / "vocab.txt").write_bytes(b"\n".join(reversed(words)))


COPIES = ("labels.json", "vocab.txt", "config.json", "run.json", "bert_config.json")


@pytest.mark.parametrize("change", [changed, without(*COPIES)])
def test_copies_decide_nothing_and_are_repaired(command, change):
    run = command.folder / RUN
    first = {name: (run / name).read_bytes() for name in COPIES}
    change(run)
    assert predict(command).out == answers(command)
    resumed = train(command, "--name", "mine", "--resume")
    assert resumed.code == 0, resumed.err
    for name in COPIES:
        assert name in ("config.json", "run.json") or (run / name).read_bytes() == first[name]
        assert json.loads((run / name).read_bytes()) if name.endswith(".json") else True


def rewrite(run, name, change):
    """Change a file of each checkpoint of a run, with a manifest that fits."""
    for path in checkpoint.steps(run / "checkpoints"):
        file = path / name
        durable.write(file, change(file.read_bytes() if file.exists() else b""))
        signed_again(path)


def forged(run, change):
    """Change the state of each checkpoint of a run."""

    def changed(data):
        state = json.loads(data)
        change(state)
        return json.dumps(state).encode()

    rewrite(run, "state.json", changed)


EXPORT = "amp_xla.commands.export"


def asset(name, content):
    """Return a change: another file."""
    return lambda run: rewrite(run, name, lambda data: content)


def numbers(value):
    """Return a change: all weights have this value."""

    def filled(data):
        return save({n: np.full_like(x, value) if x.ndim else x for n, x in load(data).items()})

    return lambda run: rewrite(run, checkpoint.TENSORS, filled)


def made_up(*part, **values):
    """Return a change: other values in a part of the state."""

    def change(state):
        functools.reduce(dict.__getitem__, part, state).update(values)

    return lambda run: forged(run, change)


setting, loop = (functools.partial(made_up, *p) for p in (("identity", "config"), ("loop",)))


def elsewhere(run):
    """The checkpoints are a link."""
    (run / "checkpoints").rename(run.parents[2] / "outside" / "checkpoints")
    (run / "checkpoints").symlink_to(run.parents[2] / "outside" / "checkpoints")


def pipe(run):
    (run / ".lock").unlink()
    os.mkfifo(str(run / ".lock"))


BOMB, LIST = gzip.compress(bytes(1 << 30)), "labels.json"
RANKS = ("size", "first_size", "micro_batches")
CASES = {
    "checkpoints": (elsewhere, "predict resume verify", "checkpoints: is a link"),
    "lock": (pipe, "resume", ".lock: not a regular file"),
    "layers": (setting(layers=10**6), "resume", "a model with layers 1000000, hidden 8"),
    "hidden": (setting(hidden=2**20), "predict", "a model with layers 1, hidden 1048576"),
    "vocabulary": (asset("vocab.txt", BOMB), "predict", "vocab.txt: larger than"),
    "labels": (asset(LIST, b'[1, {"a": 2}]'), "export", "needed: a list of nothing but text"),
    "labels of depth": (asset(LIST, b"[" * 10**6), "predict", "labels.json: JSON nested too deep"),
    "NaN": (numbers(np.nan), "predict export", "tensors.safetensors: Embedding"),
    "infinity": (numbers(np.inf), "predict", "has NaN or infinity"),
    "large numbers": (numbers(3e38), "predict", "NaN"),
    "loop": (loop(step=-1), "resume", "loop.step is -1, not a whole number from 0"),
    "sums": (loop(log_sums=["x"]), "resume", "loop.log_sums"),
    "epochs": (loop(epoch=10**18, step_in_epoch=10**18), "resume", ""),
    "text": (loop(step="8"), "predict", "loop.step is text, not a whole number"),
    "digits": (loop(step=10**400), "predict", "a number of 401 digits"),
    "recipe": (made_up(recipe="evil"), "predict", f"has only {', '.join(own_recipes())};"),
    "module": (made_up(recipe="evil.deeper"), "predict", "give its path: --recipe"),
    "identity": (made_up(identity=[]), "predict", "identity is a list, not an object"),
    "no number": (setting(hidden="8"), "predict", "--hidden '8': allowed is a whole number"),
    "no text": (setting(bert=3), "predict", "--bert 3: allowed is text or null"),
    "batch": (setting(batch_size=10**9), "predict resume", "1 to 65,536"),
    "ranks": (made_up(ranks=dict.fromkeys(RANKS, 10**9)), "predict resume", "ranks.size is 1000"),
    "layout": (asset("layout.json", b'{"a":' * 10**6), "predict", "layout.json: JSON nested too"),
    "columns": (asset("layout.json", b'{"columns": 3}'), "predict", "layout.json: format is miss"),
    "no setting": (setting(hiden=8), "predict", "has no setting hiden"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_forged_run_is_refused_in_one_line(command, name):
    change, words, message = CASES[name]
    (command.folder / "outside").mkdir()
    (command.folder / "evil.py").write_text("open('executed', 'w').write('')\n")
    change(command.folder / RUN)
    before = bytes_of(command.folder / "outside")
    flags = ("--train", "train.tsv", "--dev", "dev.tsv", "--epochs", "3", *TINY[4:])
    arguments = {
        "predict": (PREDICT, "--run", RUN, "--file", "new.txt"), "verify": (VERIFY, "--run", RUN),
        "export": (EXPORT, "--run", RUN, "--format", "hf"), "resume": (RECIPE, *flags, *RESUMED),
    }  # fmt: skip
    for word in words.split():
        result = command(*arguments[word], code=LIMITS)
        assert result.code in (0, 2) and "Traceback" not in result.err, result.err
        assert not message or (result.code == 2 and message in result.error), (word, result.err)
    assert bytes_of(command.folder / "outside") == before
    assert not (command.folder / "executed").exists()


def test_copies_that_lead_elsewhere_are_replaced_and_not_read(command):
    run, outside = command.folder / RUN, command.folder / "outside"
    outside.mkdir()
    for name in ("config.json", "run.json", "metrics.jsonl", "labels.json", "report.html"):
        line = {"step": 1, "kind": "train", "loss": 1.0, "command": SECRET, "recipe": SECRET}
        (outside / name).write_text(json.dumps(line) + "\n")
        (run / name).unlink()
        (run / name).symlink_to(outside / name)
    for name in (".tmp-metrics.jsonl", ".tmp-config.json", ".tmp-report.html", ".tmp-export-hf"):
        (run / name).symlink_to(outside)
    (run / "status.json").unlink()
    for name in ("status.json", ".tmp-status.json", ".tmp-run.json"):
        os.mkfifo(str(run / name))
    before = bytes_of(outside)
    exported = command(EXPORT, "--run", RUN, "--format", "hf")
    for result in (train(command, *RESUMED, epochs=3), exported, predict(command)):
        assert result.code == 0 and SECRET not in result.out + result.err, result.err
    assert bytes_of(outside) == before
    kept = [p for p in run.rglob("*") if p.is_file() and not p.is_symlink()]
    assert all(SECRET.encode() not in path.read_bytes() for path in kept)


def test_a_folder_of_weights_is_refused_before_texts_are_read(command, tmp_path):
    bert = google_folder.write(tmp_path / "bert")
    (bert / google_folder.NAME).write_text(json.dumps({"model_type": "roberta"}))
    (bert / "vocab.txt").unlink()
    words = ("--train", "train.tsv", "--dev", "nowhere.tsv", "--bert", str(bert))
    assert 'model_type is "roberta"; allowed: bert' in command(RECIPE, *words, code=LIMITS).error


@pytest.mark.parametrize("name, words, problem", [
    ("predict", ("--run", str(RUN), "--file", "new.txt", "--vectors", "runs"), "runs: it is a"),
    ("predict", ("--run", str(RUN), "--file", "new.txt", "--vectors", ""), ".: it is a folder"),
    ("report", ("--run", str(RUN), "--to", "runs"), "cannot write runs: it is a folder"),
    ("report", ("--run", str(RUN), "--to", "no/out.html"), "there is no folder no"),
    ("export", ("--run", str(RUN), "--to", "new.txt/out"), "new.txt: Not a directory"),
    ("convert", ("--source", "runs", "--to", "new.txt/out"), "new.txt: Not a directory"),
    ("inspect", ("--recipe", "classification", "--out", "new.txt"), "new.txt: Not a directory"),
    ("inspect", (), "runs/classification/inspect: Not a directory"),
    ("plan", (), "runs/classification/plan: Not a directory"),
    ("prepare", ("--corpus", "train.tsv", "--out", "new.txt/out"), "new.txt: Not a directory"),
    ("evaluate", ("--run", str(RUN), "--file", "dev.tsv"), f"{RUN}/evaluation: Not a directory"),
])  # fmt: skip
def test_a_place_that_cannot_be_written_is_refused_first(command, name, words, problem):
    for taken in ("mine/evaluation", "inspect", "plan"):
        (command.folder / RUN.parent / taken).touch()
    before = bytes_of(command.folder)
    result = command(CLI, name, *words)
    assert problem in result.error and result.err.count("\n") == 1, result.err
    assert bytes_of(command.folder) == before


def test_a_finished_run_is_extended_without_force(command):
    result = train(command, "--name", "mine", "--resume", epochs=3)
    assert result.code == 0, result.err
    assert "extended: epochs 2 in the checkpoint, 3 now; the learning rate" in result.err
    assert "at step 8 of 12" in result.err
    assert command.metrics("classification", "mine")[-1]["step"] == 12
    command.done(VERIFY, "--run", str(RUN))
    command.done(RECIPE, *RESUMED)
    larger = train(command, *RESUMED, "--force-resume", "--batch-size", "32", epochs=4)
    assert "at step 12 of 14" in larger.err and "run is complete" not in larger.err, larger.err
    last = [line for line in command.metrics("classification", "mine") if line["kind"] == "train"]
    assert (last[-1]["step"], last[-1]["epoch"]) == (14, 4) and last[-1]["learning_rate"] > 0
    shorter = train(command, "--name", "mine", "--resume", epochs=1)
    assert "setting epochs: 4 in the checkpoint, 1 now" in shorter.error


@pytest.mark.slow
def test_a_fine_tuned_run_does_not_need_its_bert_again(command, tmp_path):
    tokens = [*SPECIAL_TOKENS, "the", "a", "with", *WORDS["weather"], *WORDS["kitchen"]]
    bert = google_folder.write(tmp_path / "bert", vocabulary=tokens)
    new = train(command, "--name", "mine2", "--bert", str(bert), "--resume")
    assert new.code == 0 and "from the beginning; runs there: mine\n" in new.err, new.err
    run = str(RUN.parent / "mine2")
    first = command.done(PREDICT, "--run", run, "--file", "new.txt")
    # `latest` moved: other words, another shape. Then it is gone.
    (bert / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nword\n")
    (bert / google_folder.NAME).write_text("{}")
    assert command(PREDICT, "--run", run, "--file", "new.txt").out == first.out
    more = train(command, "--name", "mine2", "--bert", str(bert), "--resume", epochs=3)
    assert more.code == 0, more.err
    assert "its vocabulary, architecture and weights" in more.err
    assert "fine-tuning" not in more.err  # nor a warning: the first start printed them
    shutil.rmtree(str(bert))
    command.done(PREDICT, "--run", run, "--file", "new.txt")
    command.done(VERIFY, "--run", run)


def test_a_run_from_before_a_flag_goes_on(command):
    """A setting that one side lacks equals its default; the same for the loop's fields."""

    def older(state):
        identity = state["identity"]
        for name in ("focal_gamma", "patience", "ema", "pooling"):  # flags of today
            identity["config"].pop(name, None)
        del identity["settings"]["infinity"], state["loop"]["stale"], state["loop"]["log_sums"]
        identity["config"]["gone"] = identity["defaults"]["gone"] = [0.5]  # a flag of then

    forged(command.folder / RUN, older)
    assert predict(command).out == answers(command)
    resumed = train(command, *RESUMED, epochs=3)
    assert resumed.code == 0 and "although" not in resumed.err, resumed.err
    forged(command.folder / RUN, lambda state: state["identity"]["config"].pop("learning_rate"))
    refused = train(command, *RESUMED, epochs=3)
    assert "setting learning_rate: 0.0005 in the checkpoint, 0.02 now" in refused.error
    forged(command.folder / RUN, lambda state: state["identity"]["config"].update(gone=1))
    assert "has no setting gone" in predict(command).error
