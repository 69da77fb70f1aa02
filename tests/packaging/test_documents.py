"""README, its Chinese version and the pages: the same content, and commands that exist."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path
from typing import Any, List, Set, Tuple

import pytest

from amp_xla.commands import COMMANDS
from amp_xla.config import flat
from tests.packaging.test_program import MAKEFILE, TARGETS
from tests.running import RECIPES, ROOT

pytestmark = pytest.mark.once

STARTS = r"(?:make [a-z]|(?:\./)?amp-xla [a-z]|python -m benchmarks\.)"
INLINE = re.compile(rf"`({STARTS}[^`]*)`")
BLOCK = re.compile(rf"^ {{4,}}({STARTS}.*)$", re.MULTILINE)
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/results/*.md")])
VARIABLES = set(re.findall(r"[A-Z_]+", MAKEFILE.split("VARIABLES := ")[1].split("\n")[0]))


def commands(path: Path) -> List[str]:
    """Return the command lines of a page, without comments."""
    text = path.read_text(encoding="utf-8")
    inline = [" ".join(line.split()) for line in INLINE.findall(text)]
    lines = [*inline, *BLOCK.findall(text)] if path.name != "CHANGELOG.md" else []
    return [re.sub(r"\s+#.*$", "", line) for line in lines]


PRINTED = sorted({line for path in PAGES for line in commands(path)})


def flags_of(module: str) -> Set[str]:
    """Return the flags of a module's Config."""
    names = {name.replace("_", "-") for name in flat(importlib.import_module(module).Config())}
    return {"--help", *(f"--{n}" for n in names), *(f"--no-{n}" for n in names)}


def check(line: str) -> None:
    """Raise AssertionError unless command, variables, recipe and flags exist."""
    line = line.replace("\\|", "|").split(" | ")[0].replace("...", "VALUE")
    try:
        words = shlex.split(line)
    except ValueError:  # a block that continues in the next line
        words = line.replace('"', "").split()
    if words[0] == "make":
        check_make(words[1:])
    elif words[0] == "python":
        check_flags(words[3:], flags_of(words[2]))
    else:
        check_command(words[1], words[2:])


def check_make(words: List[str]) -> None:
    targets = [word for word in words if "=" not in word]
    values = dict(word.split("=", 1) for word in words if "=" in word)
    assert set(targets) <= set(TARGETS), targets
    assert set(values) <= VARIABLES, values
    if targets == ["train"] and "VALUE" not in values.get("RECIPE", ""):
        recipe_flags(values.get("RECIPE", "classification"), shlex.split(values.get("ARGS", "")))


def check_command(name: str, words: List[str]) -> None:
    assert name in {*COMMANDS, "env"}, name
    if name == "train" and "--" not in words:
        words = [*words[:1], "--", *words[1:]]
    at = words.index("--") if "--" in words else len(words)
    own, after = words[:at], words[at + 1 :]
    if name == "env":
        return
    command = COMMANDS[name]
    launcher = {"--runtime", "--python"} - ({"--runtime"} if name == "header" else set())
    check_flags([word for word in own if word not in launcher], flags_of(command.module))
    if command.positional == ("recipe",):
        recipe_flags(own[0] if own and own[0] in RECIPES else "classification", after)


def recipe_flags(recipe: str, words: List[str]) -> None:
    if recipe in RECIPES and not recipe.startswith("jax_"):
        check_flags(words, flags_of(f"recipes.{recipe}"))


def check_flags(words: List[str], known: Set[str]) -> None:
    flags = {word.split("=")[0] for word in words if re.match(r"--[a-z][a-z0-9-]*(=|$)", word)}
    assert flags <= known, sorted(flags - known)


@pytest.mark.parametrize("line", PRINTED)
def test_a_printed_command_exists(line: str) -> None:
    check(line)


def test_wrong_commands_are_found() -> None:
    assert len(PRINTED) > 60
    for line in (
        "make trian",
        'make train ARGS="--epoch 3"',
        "make train STEPS=3",
        "amp-xla predct",
        "./amp-xla inspect classification -- --layer 3",
        "python -m benchmarks.peers --tsk x",
    ):
        with pytest.raises(AssertionError):
            check(line)


def test_messages_name_commands_that_exist() -> None:
    for folder in ("amp_xla", "recipes", "scripts", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            for name in re.findall(r"[`\" ]amp-xla ([a-z]+)", path.read_text(encoding="utf-8")):
                assert name in {*COMMANDS, "env", "commands"}, f"{path}: amp-xla {name}"


def structure(page: str) -> List[Tuple[str, Any]]:
    """Return a page's headings by level, commands and links, in their order."""
    parts: List[Tuple[str, Any]] = []
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        heading = re.match(r"#+ ", line)
        if heading:
            parts.append(("heading", heading.group()))
        elif line.startswith("    ") and re.match(r" {4}(make|pip|\./amp-xla)", line):
            parts.append(("command", re.sub(r"\s+#.*$", "", line)))
        else:
            parts += [("code", code) for code in re.findall(r"`(make [^`]*|amp-xla [^`]*)`", line)]
        parts += [("link", link) for link in re.findall(r"\]\(([^)#]+)\)", line)]
    return parts


@pytest.mark.parametrize("page", ["README", "docs/own-script"])
def test_both_languages_have_the_same_headings_commands_and_links(page: str) -> None:
    pages = [(ROOT / (page + end)).read_text(encoding="utf-8") for end in (".md", ".zh.md")]
    english, chinese = structure(f"{page}.md"), structure(f"{page}.zh.md")
    translated = {"README.md", "docs/own-script.md", "own-script.md", "../README.md"}
    swap = {name.replace(".md", ".zh.md"): name for name in translated}
    assert [swap.get(x, x) for _, x in english] == [swap.get(x, x) for _, x in chinese]
    assert len({page.count("\n") for page in pages}) == 1
    if page == "README":
        for text in pages:
            assert text.count("\n") <= 125 and max(map(len, text.splitlines())) <= 125


def test_links_lead_to_files() -> None:
    for path in PAGES:
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            if "://" not in link:
                assert (path.parent / link).exists(), f"{path.name}: {link}"
