"""README, its Chinese version and the pages: the same content, and commands that exist."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from pathlib import Path
from typing import Any, List, Set, Tuple

import pytest

from amp_xla.commands import COMMANDS
from amp_xla.config import flat
from scripts.environment.__main__ import HERE
from tests.packaging.test_program import MAKEFILE, TARGETS
from tests.running import RECIPES, ROOT

pytestmark = pytest.mark.once

STARTS = r"(?:make [a-z]|(?:\./)?amp-xla [a-z])"
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
    elif words[1] == "python":
        check_python(words[2:])
    else:
        check_command(words[1], words[2:])


def check_make(words: List[str]) -> None:
    targets = [word for word in words if "=" not in word]
    values = dict(word.split("=", 1) for word in words if "=" in word)
    assert set(targets) <= set(TARGETS), targets
    assert set(values) <= VARIABLES, values
    if targets == ["train"] and "VALUE" not in values.get("RECIPE", ""):
        recipe_flags(values.get("RECIPE", "classification"), shlex.split(values.get("ARGS", "")))


def check_python(words: List[str]) -> None:
    """Raise AssertionError unless a script, or a benchmark's flags, exist."""
    if words[:1] != ["-m"]:
        script = words[0] if words else "README.md"
        assert script.startswith("my_") or (ROOT / script).is_file(), script
    elif words[1].startswith("benchmarks."):
        check_flags(words[2:], flags_of(words[1]))


def check_command(name: str, words: List[str]) -> None:
    assert name in {*COMMANDS, *HERE}, name
    if name == "train" and "--" not in words:
        words = [*words[:1], "--", *words[1:]]
    at = words.index("--") if "--" in words else len(words)
    own, after = words[:at], words[at + 1 :]
    if name in HERE:
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
        "amp-xla python -m benchmarks.peers --tsk x",
        "./amp-xla python examples/ner.py",
    ):
        with pytest.raises(AssertionError):
            check(line)


def test_messages_name_commands_that_exist() -> None:
    for folder in ("amp_xla", "recipes", "scripts", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            for name in re.findall(r"[`\" ]amp-xla ([a-z]+)", path.read_text(encoding="utf-8")):
                assert name in {*COMMANDS, *HERE, "commands"}, f"{path}: amp-xla {name}"


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


# A file of this project by its path, or by its name alone.
FILE = re.compile(
    r"(?<![\w/.*<-])((?:[\w.-]+/)*[\w.-]+\.(?:py|sh|sbatch|cfg|toml|yaml|ini|def|awk))\b(?![\w*])"
)
MODULE = re.compile(r"python3? (?:-[a-z] )*-m ([\w.]+)")
FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]*)(?![\w])")
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir()}
OUTSIDE_FILES = re.compile(
    r"^((my_|mine|own)\w*\.py|script\.py|(basic|task)_\w+\.py|pretraining/\w+\.py|\w+\.cfg"
    r"|bert4keras/.*|torch/.*|loss_scale_optimizer_test\.py)$"
)
OUTSIDE_MODULES = {"horovod.runner.launch", "pytest", "pip", "venv", "tensorboard.main", "mypy"}
# Flags of other programs: docker, srun, sbatch, pip, git, tensorboard, XLA, ...
OUTSIDE_FLAGS = set(
    """--gpus --network --ipc --rm --name --init --time --userns --output --nv --cleanenv --nodes
    --ntasks --ntasks-per-node --gpus-per-node --gpus-per-task --cpus-per-task --signal --wait
    --container-image --container-remap-root --container-save --container-mounts
    --container-workdir --no-deps --logdir --check-build --runtime --python""".split()
)


def sources() -> List[Tuple[str, str]]:
    """Return the pages, and the docstrings of modules, by name."""
    pages = [path for path in PAGES if path.name != "CHANGELOG.md"]
    texts = [(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in pages]
    for folder in ("amp_xla", "recipes", "benchmarks", "examples", "scripts", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            module = ast.parse(path.read_text(encoding="utf-8"))
            texts.append((str(path.relative_to(ROOT)), ast.get_docstring(module) or ""))
    return texts


def all_flags() -> Set[str]:
    """Return the flags of all commands, recipes, benchmarks, and of scripts with argparse."""
    modules = {command.module for command in COMMANDS.values()}
    modules |= {f"recipes.{name}" for name in RECIPES if not name.startswith("jax_")}
    modules |= {f"benchmarks.{name}" for name in ("gpu", "peers", "record", "relations")}
    scripts = [*(ROOT / "examples").glob("*.py"), *(ROOT / "tests").rglob("*.py")]
    own = {flag for path in scripts for flag in re.findall(r'"(--[a-z-]+)"', path.read_text())}
    return own.union(*(flags_of(module) for module in modules))


def missing(text: str, known: Set[str], names: Set[str]) -> List[str]:
    """Return the programs, files and flags that a text names and this project does not have."""
    files = [
        name
        for name in FILE.findall(text)
        if not name.startswith("../")  # a link
        and not OUTSIDE_FILES.match(name)
        and not ((ROOT / name).exists() if "/" in name else name in names)
    ]
    modules = [
        name
        for name in MODULE.findall(text)
        if name not in OUTSIDE_MODULES
        and not any((ROOT / f"{name.replace('.', '/')}{end}").exists() for end in (".py", ""))
    ]
    return [*files, *modules, *sorted(set(FLAG.findall(text)) - known)]


def test_named_programs_files_and_flags_exist() -> None:
    known = all_flags() | OUTSIDE_FLAGS
    names = {
        path.name
        for folder in FOLDERS - {".venvs", ".git", "runs"}
        for path in (ROOT / folder).rglob("*.*")
    }
    names |= {path.name for path in ROOT.iterdir()}
    found = {place: missing(text, known, names) for place, text in sources()}
    assert not {place: words for place, words in found.items() if words}
    for text in (
        "`benchmarks/tf_idf.py --rounds 2`",
        "python -m scripts.bench_jax",
        "`--kills 9`",
        "test_shape_watch.py",
    ):
        assert missing(text, known, names)
