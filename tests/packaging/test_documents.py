"""README, its Chinese version and the pages: the same content, and commands that exist."""

import ast
import importlib
import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from amp_xla.commands import COMMANDS
from amp_xla.config import flat
from benchmarks import record
from scripts.environment.__main__ import HERE
from tests.packaging.test_program import MAKEFILE, TARGETS
from tests.settings.test_config import CONFIGS
from tests.support.running import RECIPES, ROOT

pytestmark = pytest.mark.once

STARTS = r"(?:make [a-z]|(?:\./)?amp-xla [a-z]|python -m (?:recipes|benchmarks|amp_xla)\b)"
INLINE = re.compile(rf"`({STARTS}[^`]*)`")
BLOCK = re.compile(rf"^ *(?:(?<=    ){STARTS}|\./amp-xla [a-z]).*$", re.MULTILINE)
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob(".github/*.md"), *ROOT.glob("docs/**/*.md")])
VARIABLES = set(re.findall(r"[A-Z_]+", MAKEFILE.split("VARIABLES := ")[1].split("\n")[0]))


def sources():
    """Return the pages, and the docstrings of modules, by name."""
    pages = [path for path in PAGES if path.name != "CHANGELOG.md"]
    texts = [(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in pages]
    for folder in ("amp_xla", "recipes", "benchmarks", "examples", "scripts", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            module = ast.parse(path.read_text(encoding="utf-8"))
            texts.append((str(path.relative_to(ROOT)), ast.get_docstring(module) or ""))
    return texts


def commands(text):
    """Return the command lines of a text, without comments."""
    lines = [*INLINE.findall(text), *BLOCK.findall(text)]
    return [re.sub(r"\s+#.*$", "", " ".join(line.split())) for line in lines]


PRINTED = sorted({line for _, text in sources() for line in commands(text)})


def flags_of(module):
    """Return the flags of a module's Config; without one it has none."""
    config = getattr(importlib.import_module(module), "Config", tuple)
    names = {name.replace("_", "-") for name in flat(config())} if config is not tuple else set()
    return {"--help", *(f"--{n}" for n in names), *(f"--no-{n}" for n in names)}


def check(line):
    """Raise AssertionError unless command, variables, recipe and flags exist."""
    line = re.sub(r"<\w+>|\.\.\.", "VALUE", line.replace("\\|", "|").split(" | ")[0])
    try:
        words = shlex.split(line)
    except ValueError:  # a block that continues in the next line
        words = line.replace('"', "").split()
    if words[0] == "make":
        values = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        targets = {word for word in words[1:] if "=" not in word}
        assert targets <= {*TARGETS, "docker-*"} and set(values) <= VARIABLES, line
        if targets == {"train"}:
            recipe_flags(values.get("RECIPE", "classification"), values.get("ARGS", "").split())
    elif "python" not in words[:2]:
        check_command(words[1], words[2:])
    elif "-m" in words[:3]:
        module, *words = words[words.index("-m") + 1 :]
        if module == "amp_xla":
            check_command(words[0], words[1:])
        elif re.match(r"benchmarks\.(?!VALUE)|recipes\.(?!jax_|VALUE|<)", module):
            check_flags(words, flags_of(module))


def check_command(name, words):
    assert name in {*COMMANDS, *HERE}, name
    if name in HERE:
        return
    if name == "train" and "--" not in words:
        words = [*words[:1], "--", *words[1:]]
    at = words.index("--") if "--" in words else len(words)
    own, after = words[:at], words[at + 1 :]
    command = COMMANDS[name]
    launcher = {"--runtime", "--python"} - ({"--runtime"} if name == "header" else set())
    check_flags([word for word in own if word not in launcher], flags_of(command.module))
    if command.positional == ("recipe",):
        recipe_flags(own[0] if own and own[0] in RECIPES else "classification", after)


def recipe_flags(recipe, words):
    assert recipe in RECIPES or recipe in ("", "VALUE", "mine", "stars.py"), recipe
    if recipe in RECIPES and not recipe.startswith("jax_"):
        check_flags(words, flags_of(f"recipes.{recipe}"))


def check_flags(words, known):
    flags = {word.split("=")[0] for word in words if re.match(r"--[a-z][a-z0-9-]*(=|$)", word)}
    assert flags <= known, sorted(flags - known)


@pytest.mark.parametrize("line", PRINTED)
def test_a_printed_command_exists(line):
    check(line)


def test_commands_in_messages_and_public_import_paths_exist():
    assert len(PRINTED) > 60
    for folder in ("amp_xla", "recipes", "scripts", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            for name in re.findall(r"[`\" ]amp-xla ([a-z]+)", path.read_text(encoding="utf-8")):
                assert name in {*COMMANDS, *HERE, "commands"}, f"{path}: amp-xla {name}"
    # Contract 10 of CONTRIBUTING.
    listed = "setup callbacks diagnose sok jax models.derivatives precision precision.loss_scale"
    listed += " precision.optimizer precision.policy precision.jax precision.compat.jmp"
    listed += " precision.compat.keras precision.compat.neurai precision.compat.sok"
    missing = [n for n in listed.split() if importlib.util.find_spec(f"amp_xla.{n}") is None]
    assert not missing


LINK = re.compile(r"\]\(([^)#]+)")  # without the heading, whose words are translated
CHINESE = [path for path in PAGES if path.name.endswith(".zh.md")]


def code(text):
    """Return the lines of code blocks, and the commands in backquotes, without comments."""
    fenced = "".join(re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL))
    lines = [*fenced.splitlines(), *re.findall(r"^ {4}\S.*$", text, re.MULTILINE)]
    return [re.sub(r"\s+#.*", "", line) for line in lines], sorted(set(INLINE.findall(text)))


@pytest.mark.parametrize("page", CHINESE, ids=lambda path: path.name)
def test_a_chinese_page_has_the_code_links_and_figures_of_the_english_one(page):
    pages = [Path(str(page).replace(".zh.md", ".md")), page]
    english, chinese = (path.read_text(encoding="utf-8") for path in pages)
    assert english.count("\n") == chinese.count("\n")
    assert code(english) == code(chinese)
    links = [sorted(LINK.findall(text.replace(".zh.md", ".md"))) for text in (english, chinese)]
    assert links[0] == links[1]
    for one, other in zip(english.splitlines(), chinese.splitlines()):
        if one.startswith("|"):
            assert re.findall(r"\d+\.\d+", one) == re.findall(r"\d+\.\d+", other)
        assert re.match("#*", one).group() == re.match("#*", other).group(), one
    if page.stem == "README.zh":
        for text in (english, chinese):
            assert text.count("\n") <= 105 and max(map(len, text.splitlines())) <= 125


def anchors(path):
    """Return the names that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-").lower() for heading in headings}


def test_links_lead_to_files_and_headings():
    for path in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
            name, _, anchor = link.partition("#")
            target = path.parent / name if name else path
            if "://" not in link:
                assert target.exists(), f"{path.name}: {link}"
                assert not anchor or anchor in anchors(target), f"{path.name}: {link}"


# A file of this project by its path, or by its name alone.
FILE = re.compile(
    r"(?<![\w/.*<-])((?:[\w.-]+/)*[\w.-]+\.(?:py|sh|sbatch|cfg|toml|yaml|ini|def|awk))\b(?![\w*])"
)
MODULE = re.compile(r"python3? (?:-[a-z] )*-m ([\w.]+)")
FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]*)(?![\w])")
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir()}
OUTSIDE_FILES = re.compile(
    r"^((my_|mine|own|stars)\w*\.py|script\.py|(basic|task)_\w+\.py|pretraining/\w+\.py|\w+\.cfg"
    r"|tagger\.py|bert4keras/.*|torch/.*|loss_scale_optimizer_test\.py)$"
)
OUTSIDE_MODULES = {"horovod.runner.launch", "pytest", "pip", "venv", "tensorboard.main", "mypy"}
# Flags of other programs: docker, srun, sbatch, pip, hf, git, tensorboard, XLA, ...
OUTSIDE_FLAGS = set(
    """--gpus --network --ipc --rm --name --init --time --userns --output --nv --cleanenv --nodes
    --ntasks --ntasks-per-node --gpus-per-node --gpus-per-task --cpus-per-task --signal --wait
    --container-image --container-remap-root --container-save --container-mounts
    --container-workdir --local-dir --no-deps --logdir --check-build --runtime --python""".split()
)


def missing(text, known, names):
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


def test_named_programs_files_and_flags_exist():
    scripts = [*(ROOT / "examples").glob("*.py"), *(ROOT / "tests").rglob("*.py")]
    known = {flag for path in scripts for flag in re.findall(r'"(--[a-z-]+)"', path.read_text())}
    known = known.union(OUTSIDE_FLAGS, *map(flags_of, CONFIGS))
    names = {
        path.name
        for folder in FOLDERS - {".venvs", ".git", "runs"}
        for path in (ROOT / folder).rglob("*.*")
    }
    names |= {path.name for path in ROOT.iterdir()}
    found = {place: missing(text, known, names) for place, text in sources()}
    assert not {place: words for place, words in found.items() if words}
    wrong = ("`benchmarks/tf_idf.py`", "python -m scripts.none", "`--kills 9`", "test_shape.py")
    assert all(missing(text, known, names) for text in wrong)


def test_the_changelog_begins_with_the_version_and_the_workflow_runs_all_parts():
    versions = [
        re.findall(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)[0]
        for name, pattern in (
            ("pyproject.toml", r'^version = "(.*)"$'),
            ("amp_xla/__init__.py", r'^__version__ = "(.*)"$'),
            ("CITATION.cff", r"^version: (.*)$"),
            ("CHANGELOG.md", r"^## (?!Unreleased)(\S+) \(\d{4}-\d{2}-\d{2}\)$"),
        )
    ]
    assert len(set(versions)) == 1, versions
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    parts = re.findall(r"parts=\(([a-z].*)\)", script)[0].split()
    assert f"part: [{', '.join(parts)}]" in workflow


RECORDS = record.load()
IDS = [f"{r['recipe']}-{r['runtime']}" for r in RECORDS]


def test_the_recipes_of_readme_have_a_record_of_each_runtime():
    for name in ("classification", "pretraining"):
        assert {f"{name}-tf1", f"{name}-tf2"} <= set(IDS)
    assert {recorded["recipe"] for recorded in RECORDS} <= set(RECIPES)


@pytest.mark.parametrize("recorded", RECORDS, ids=IDS)
def test_what_is_stated_was_recorded(recorded):
    doc = importlib.import_module(f"recipes.{recorded['recipe']}").__doc__
    assert recorded["command"] in doc
    assert record.stated(recorded) in " ".join(doc.split())
    row = next(
        line
        for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
        if line.startswith(f"| `{recorded['command']}` |")
    )
    assert row.split(" | ")[{"tf1": 1, "tf2": 2}[recorded["runtime"]]].rstrip(" |") == record.cell(
        recorded
    )
    if "page" in recorded:  # the page of results has it
        page = (ROOT / "docs" / "results" / recorded["page"]).read_text(encoding="utf-8")
        assert recorded["command"] in page and f"**{recorded['result']}**" in page
