"""Hostile folders, made at random.

A file of a run, of prepared text or of weights is damaged, has any values, or is a link or a pipe.
Each command ends within a minute, an error is one line; it needs less than 2 GB more than it
starts with, and neither reads nor writes outside. The first few are always tried;
`make test-all ARGS='-m long'` tries ``FUZZ_SEEDS`` of them, and each seed makes the same one again.
"""

import json
import os
import random
import shutil

import pytest

from amp_xla.data.text.vocabulary import SPECIAL_TOKENS
from amp_xla.process import durable
from amp_xla.training.manifest import MANIFEST, manifest_of
from tests.models.test_hugging_face import FOLDERS
from tests.support import google_folder, run_folders
from tests.support.commands import CLI, Commands, bytes_of
from tests.tasks.classification.test_recipe import DATA, WORDS, write_corpus
from tests.tasks.pretraining.test_recipe import SMALLER, prepared

ALL = int(os.environ.get("FUZZ_SEEDS", "320"))
MINE, TRAIN = "runs/classification/mine", " ".join(["train classification", *DATA, "--shapes 1"])
START = f"{TRAIN} --epochs 1 --name new --max-length 20"
PRETRAIN = "--data data --heldout 4 --steps 2 --micro-batch 4 --global-batch 4"
COMMANDS = {
    MINE: [
        f"predict {MINE} new.txt", f"verify {MINE}", f"report {MINE}", "runs runs",
        f"export {MINE} --format hf --to out", f"evaluate {MINE} --file dev.tsv",
        f"{TRAIN} --epochs 3 --name mine --resume",
    ],
    "data": [
        f"train pretraining {PRETRAIN}", f"inspect pretraining -- {PRETRAIN}",
        "prepare corpus.txt data --length 32 --vocab-size 192 --heldout 0.05 --workers 1",
    ],
    **{
        name: [f"convert {name} out --format google", f"{START} --bert {name}"]
        for name in ("bert", "bert_old", "bert_zip", "google")
    },
}  # fmt: skip
SECRET = "do-not-show"
# Before a command. Private memory, from what the process that forks has: a limit of all would count
# what is mapped. The alarm ends a process that hangs.
LIMITS = """
import resource, signal
with open("/proc/self/status") as file:
    (used,) = [int(line.split()[1]) for line in file if line.startswith("VmData")]
resource.setrlimit(resource.RLIMIT_DATA, ((used << 10) + (2 << 30),) * 2)
signal.alarm(60)
"""
VALUES = (
    None, True, -1, 0, 3, 10**6, 10**12, 10**18, 10**30, 10**400, 0.5, 1e308, float("inf"), "", "x",
    "nan", "../x", "/etc/passwd", "\u202e\x1b[31m", "\ud800", "x" * 3000, "y" * 10**6, [], {},
    [[[[]]]], {"a": {"b": [{}]}}, ["x", 1, None], [[1e999]] * 9, list(range(10**5)),
)  # fmt: skip
CONTENTS = (
    b"", b"\xff", b"\0", b"null", b"[1]", b"{}", b'"x"', b"{]", b"[" * 10**6, b'{"a":' * 10**6,
    b"[" + b"1," * 10**6 + b"1]", b'{"a": ' + b"9" * 10**7 + b"}", b" " * (17 << 20) + b"{}",
    b'{"step": 1, "plan": ' + b"[" * 300 + b"]" * 300 + b"}\n",
    b"".join(b'{"step": %d, "loss": 1}\n' % i for i in range(500_000)),
)  # fmt: skip


def signed_again(path):
    """Write a manifest for the current content of a checkpoint, as an attacker would."""
    (path / MANIFEST).unlink()
    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": durable.sha256(file)}
        for file in path.iterdir()
        if file.is_file() and not file.is_symlink() and file.stat().st_size < 1 << 30
    }
    (path / MANIFEST).write_bytes(manifest_of(path.name, files))


def _places(value):
    """Yield each container inside a JSON value with each of its keys."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(pairs):
        yield value, key
        if isinstance(inner, (dict, list)):
            yield from _places(inner)


def _field(path, chance):
    """Give a field of a JSON file, or of one of its lines, another value."""
    try:
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        number = chance.randrange(len(lines))
        content = json.loads(lines[number])
        container, key = chance.choice(list(_places(content)) or [({"a": 0}, "a")])
    except (ValueError, TypeError, RecursionError):  # spoiled before
        return "unchanged"
    value = chance.choice(VALUES)
    if chance.random() < 0.1:
        del container[key]
    else:
        container[key] = value
    lines[number] = json.dumps(content)
    path.write_text("\n".join([*lines, ""]))
    return f"{key} = {value!r:.40}"


def _other(path, outside, chance):
    """Put something else in place of a file or folder."""
    target, size = outside / path.name.lstrip("."), path.stat().st_size
    kind = chance.choice(("link", "zero", "pipe", "hard link", "folder", "content"))
    if path.is_file() and (size > 1 << 30 or chance.random() < 0.3):
        kind = chance.choice(("sparse", "flips"))
        with path.open("r+b") as file:
            for _ in range(8 if kind == "flips" else 0):
                file.seek(chance.randrange(min(size, 4096) + 1))
                file.write(bytes([chance.randrange(256)]))
            file.truncate(1 << 40 if kind == "sparse" else size)
        return kind
    if kind == "link" and path.is_dir():
        shutil.move(str(path), str(target))
    else:
        text = path.read_bytes() if path.is_file() else b""
        target.write_bytes(text if kind == "hard link" else SECRET.encode() + text)
        shutil.rmtree(str(path)) if path.is_dir() else path.unlink()
    if kind == "pipe":
        os.mkfifo(str(path))
    elif kind == "folder":
        path.mkdir()
    elif kind == "hard link":
        os.link(str(target), str(path))
    elif kind in ("link", "zero"):
        path.symlink_to(target if kind == "link" else "/dev/zero")
    else:
        path.write_bytes(chance.choice(CONTENTS))
    return kind


def spoil(folder, outside, chance):
    """Change a file of a folder, and often the manifest of its checkpoint.

    Returns:
      What was done, for messages.
    """
    paths = sorted(p for p in folder.rglob("*") if not p.is_symlink())
    texts = [
        p for p in paths
        if p.suffix in (".json", ".jsonl") and p.is_file() and 0 < p.stat().st_size < 1 << 20
    ]  # fmt: skip
    path = chance.choice(texts if texts and chance.random() < 0.7 else paths)
    what = (
        _field(path, chance)
        if path in texts and chance.random() < 0.7
        else _other(path, outside, chance)
    )
    if path.parent.parent.name == "checkpoints" and path.name != MANIFEST and chance.random() < 0.7:
        signed_again(path.parent)
        what += ", signed again"
    return f"{path.relative_to(folder)}: {what}"


@pytest.fixture(scope="module")
def foreign(server, tmp_path_factory):
    """Return a folder with a folder of each kind."""
    folder = tmp_path_factory.mktemp("foreign")
    for name, count in (("train.tsv", 64), ("dev.tsv", 16)):
        write_corpus(folder / name, count, count)
    (folder / "new.txt").write_text("snow and wind\nsalt the soup\n")
    command = Commands(server, folder)
    command.done(CLI, *TRAIN.split(), "--epochs", "2", "--name", "mine")
    run_folders.scored(folder / MINE, "sport")
    (folder / MINE / "report.html").unlink()
    (folder / MINE / "nonfinite-00000190").mkdir()
    (folder / MINE / "nonfinite-00000190" / "report.txt").write_text("MatMul\n")
    prepared(folder)
    tokens = [*SPECIAL_TOKENS, "the", "a", "with", *WORDS["weather"], *WORDS["kitchen"]]
    for name in ("bert", "bert_old", "bert_zip"):
        shutil.copytree(str(FOLDERS / name), str(folder / name))
        (folder / name / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    google_folder.write(folder / "google", vocabulary=tokens)
    return folder


def harm(server, foreign, folder, seed):
    """Spoil a folder; return what commands that read it did wrong, empty = nothing."""
    chance = random.Random(seed)
    shutil.copytree(str(foreign), str(folder), symlinks=True)
    name = chance.choice([MINE, MINE, *COMMANDS])
    words = chance.choice(COMMANDS[name])
    (folder / "outside").mkdir()
    count = chance.choice((1, 1, 3))
    done = [spoil(folder / name, folder / "outside", chance) for _ in range(count)]
    before, problems = bytes_of(folder / "outside"), []
    # Reports are fast, and show more of a run's files than others.
    for line in dict.fromkeys([words, *COMMANDS[MINE][2:4]] if name == MINE else [words]):
        result = Commands(server, folder)(CLI, *line.split(), code=LIMITS + SMALLER)
        page = folder / MINE / "report.html"
        own = page.is_file() and not page.is_symlink() and page.stat().st_size < 1 << 30
        shown = result.out + result.err + (page.read_text("utf-8", "replace") if own else "")
        damaged = line.startswith("verify") and "DAMAGED" in result.out and result.code == 1
        wrong = {
            f"ended with {result.code}": not (result.code in (0, 2) or damaged),
            "traceback": "Traceback" in result.err,
            "no error line": result.code == 2
            and not result.err.splitlines()[-1].startswith("error: "),
            "memory": "not enough memory" in result.err,
            "long line": max(map(len, result.err.split("\n"))) > 3000,
            "control characters": "\x1b" in shown or "\u202e" in shown,
            "outside": SECRET in shown or bytes_of(folder / "outside") != before,
        }
        said = f"{line}: {list(filter(wrong.get, wrong))}\n{result.err[-3000:]}"
        problems += [said] * any(wrong.values())
    shutil.rmtree(str(folder))
    return problems and f"{seed}: {name}: {done}: {problems}"


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "seeds", [range(12), pytest.param(range(12, ALL), marks=pytest.mark.long)], ids=str
)
def test_a_hostile_folder_does_no_harm(server, foreign, tmp_path, seeds):
    bad = [harm(server, foreign, tmp_path / str(seed), seed) for seed in seeds]
    assert not any(bad), "\n".join(filter(None, bad))
