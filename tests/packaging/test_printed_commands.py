"""Every command line that is printed anywhere goes through the real shell, make and flag parsers.

`make` runs in a copy of the checkout whose `scripts/environment.sh` writes down what it was given
instead of starting a Python; those words are then parsed by the command that would have had them.
What the commands do with real data: test_make_targets.py.
"""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import List

import pytest

from amp_xla.commands.cli import COMMANDS
from amp_xla.errors import AmpXlaError
from amp_xla.process.arguments import parse, recipe_module, split_words
from tests.packaging.checkout import ROOT, shell_environment
from tests.packaging.commands import STYLES, Printed, everything
from tests.packaging.test_makefile import DEFINED

PRINTED = everything()
# "make" is also a verb.
VERB = ("a", "all", "batches", "the", "their")
STUB = """#!/bin/sh
for word; do printf '%s\\n' "$word"; done >> "$WORDS"
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("Makefile", ".ci"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(
            str(ROOT / name), str(folder / name)
        )
    for name in ("scripts", "recipes"):
        shutil.copytree(str(ROOT / name), str(folder / name))
    (folder / "bin").mkdir()
    for name in ("train.tsv", "dev.tsv", "texts.txt", "vocab.txt", "texts/a.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("a\n")
    (folder / "runs" / "classification" / "latest").mkdir(parents=True)
    stubs = ("docker", "podman", "apptainer")
    for name in ("scripts/environment.sh", *(f"bin/{stub}" for stub in stubs)):
        (folder / name).write_text(STUB)
        (folder / name).chmod(0o755)
    return folder


def words_of_make(line: str, checkout: Path) -> List[str]:
    """What ``line`` hands to scripts/environment.sh or docker."""
    words = checkout / "words"
    words.write_text("")
    done = subprocess.run(
        ["sh", "-c", line],
        cwd=str(checkout),
        env=shell_environment(
            WORDS=str(words), PATH=f"{checkout / 'bin'}{os.pathsep}{os.environ['PATH']}"
        ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout.decode()
    return words.read_text().split("\n")[:-1]


def check_python(words: List[str]) -> None:
    """``words`` behind ``python`` start something that is there, with flags that it knows."""
    assert words[0] == "-m", words
    name, rest = words[1], words[2:]
    if name == "amp_xla":
        if rest:
            check_command(rest)
    elif name == "pytest":
        for word in rest:
            if word.startswith("tests/"):
                assert (ROOT / word.split("::")[0]).exists(), word
    else:
        if importlib.util.find_spec(f"{name}.__main__") if _is_package(name) else None:
            name = f"{name}.__main__"
        module = importlib.import_module(name)
        if hasattr(module, "Config") and not any("{" in word for word in rest):
            own, recipes = split_words(rest)
            parse(module.Config, own, name)
            parse(recipe_module("pretraining").Config, recipes, name)


def _is_package(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    assert spec is not None, name
    return spec.submodule_search_locations is not None


def check_command(words: List[str]) -> None:
    """A command of ``python -m amp_xla`` and the flags of the recipe that it is about."""
    assert words[0] in COMMANDS, words
    own, recipes = split_words(words[1:])
    name = "amp_xla.speed.tune" if words[0] == "tuned" else COMMANDS[words[0]][0]
    config = parse(importlib.import_module(name).Config, own, words[0])
    if recipes:
        recipe = getattr(config, "recipe", "classification")
        parse(recipe_module(recipe).Config, recipes, words[0])


def complete(line: str) -> List[str]:
    """``line`` as a user would type it: with values in the places that are left open."""
    if "{" not in line:
        line = re.sub(r" (<|\[(?!MASK)|\.\.\.).*$| --(recipe|runtime|corpus)$", "", line)
    line = re.sub(r"(RECIPE=|--recipe )(VALUE|<name>|\.\.\.)?(?= |$)", r"\1classification", line)
    line = re.sub(r"=\.\.\.|=$", "=runs/a", line)
    match = re.match(r"make ([a-z*|-]+)(.*)", line)
    if match is None:
        return [line]
    wanted = [name.replace("make ", "") for name in match.group(1).split("|")]
    targets = [n for w in wanted for n in (fnmatch.filter(DEFINED, w) if "*" in w else [w])]
    assert targets, line
    lines = [f"make {target}{match.group(2)}" for target in targets]
    return [f'{t} CMD="doctor"' if t.endswith("docker-run") else t for t in lines]


@pytest.mark.parametrize("printed", PRINTED, ids=lambda p: f"{p.source}: {p.line}")
def test_a_printed_command_is_one(printed: Printed, checkout: Path) -> None:
    for line in complete(printed.line):
        try:
            check(line, printed, checkout)
        except SystemExit as stopped:  # a parser's refusal, or --help
            assert stopped.code == 0, f"{printed.source} prints: {line}"


def check(line: str, printed: Printed, checkout: Path) -> None:
    words = shlex.split(line)
    if words[0] == "make":
        if words[1] in VERB and printed.source.endswith(".py"):
            return
        assert words[1] in DEFINED, f"{printed.source} prints: {line}"
        if words[1] in ("lint", "format", "type", "clean", "clean-env"):
            return  # they take no words; test_make_targets.py runs them
        given = words_of_make(line, checkout)
        if "run" in given and words[1].split("-")[0] not in ("docker", "apptainer"):
            rest = given[given.index("--") + 1 :] if "--recipe" not in given else []
            if "--recipe" in given[: given.index("--")]:
                at = given.index("--recipe")
                if given[at + 1].endswith(".py"):
                    return  # a user's own file
                rest = ["-m", f"recipes.{given[at + 1]}", *given[given.index("--") + 1 :]]
            check_python(rest or given[given.index("--") + 1 :])
    elif words[0] == "amp-xla":
        check_command(words[1:])
    else:
        check_python(words[1:])


def test_the_collection_finds_them_everywhere() -> None:
    """Guards the test above against a pattern that finds nothing any more."""
    lines = {p.line for p in PRINTED}
    sources = {p.source for p in PRINTED}
    for name in ("README.md", "README.zh.md", "CONTRIBUTING.md", "docs/amp.md", "Makefile"):
        assert name in sources, name
    assert 'make train ARGS="--name mine --resume"' in lines  # an indented block
    assert "make bench-peers" in lines  # in a sentence
    assert Printed("docs/results/gpu.md", "make bench-gpu") in PRINTED
    assert "amp-xla predict --run VALUE --file texts.txt" in lines  # a closing line
    assert 'make predict RUN=VALUE ARGS="--file texts.txt"' in lines  # the same in a checkout
    assert any(p.source == "scripts/docker.sh" for p in PRINTED)  # a shell's message
    assert len(STYLES) == 3 and len(PRINTED) > 150


@pytest.mark.parametrize(
    "line",
    [
        "make trian",
        'make train ARGS="--epoch 3"',
        'make inspect ARGS="--layer 3"',
        "make tune TUNE=--fast",
        "amp-xla predct",
        "python -m amp_xla tune -- --no-such-flag 1",
        "python -m scripts.nothing",
    ],
)
def test_a_wrong_command_would_be_found(line: str, checkout: Path) -> None:
    with pytest.raises((AssertionError, AmpXlaError, SystemExit)) as found:
        check(line, Printed("README.md", line), checkout)
    assert getattr(found.value, "code", 2) != 0
